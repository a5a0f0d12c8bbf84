"""The six rules by which each run is judged.

right      Whenever the copy is said to be right, every byte of it is what the Source's documents
           say; for the audit, too.
polite     No URL is requested more often than polling allows.
ends       `--once` ends: within seconds where waiting is of no use, otherwise within the patience.
progresses What is not concerned goes on beside single resources that are in trouble.
bounded    Tasks, timers, files and messages stay few.
heals      Once the trouble has ended, the copy becomes right, and is said to be.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import TYPE_CHECKING

from rsnotify_subscriber.storage.baseline_tables import UNSETTLED_INTERVAL
from tests.harnesses.matrix.ways import CHECK_FILES, PACE, Claim
from tests.wild.documents import days

if TYPE_CHECKING:
    from tests.harnesses.matrix.run import Run

#: Seconds over which requests are counted.
_WINDOW = 60.0
#: How often a URL may be requested within them: twice for each poll, and after news and failures
#: a few times more, at growing distances.
_MOST_REQUESTS = int(2 * _WINDOW / PACE.poll) + 12
#: How many times as often a repair may: it audits twice, and compares up to three times each time.
_TIMES_BY_REPAIRS = 4
#: Within how many seconds `--once` ends where waiting is of no use.
_FINAL = 30.0
#: What a run may have at its end.
_MOST_TASKS, _MOST_TIMERS, _MOST_FILES, _MOST_MESSAGES = 200, 300, 60, 100


class Log(logging.Handler):
    """Keeps the warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


class Judge:
    """Checks a run.

    Attributes:
        prepared: When the troubles were prepared, in seconds of the run.
        began: When they began; None before.
        ended: When they ended; None before.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.log = Log()
        self.prepared = 0.0
        self.began: float | None = None
        self.ended: float | None = None
        self._was_silent = False

    # Right

    def is_right(self) -> bool:
        return not self.difference()

    def difference(self) -> str:
        return self._problem(self._run.loop.now)

    def _problem(self, since: float, claim: Claim | None = None) -> str:
        """Return what in the copy was never right since an instant.

        Files that troubles add have to be named in a `claim`.
        """
        run = self._run
        foreign = {trouble.names for trouble in run.troubles} | run.destination.found
        absent = {name for trouble in run.troubles for name in trouble.absent}
        if run.shape.through:
            absent |= {name for trouble in run.troubles for name in trouble.uncopied}
        named = foreign if claim is None else foreign & set(claim.foreign)
        held = run.destination.contents()
        is_troubled = self.ended is None or since < self.ended
        for name in sorted(held.keys() | run.source.history.keys()):
            accepted = {None} if name in run.excluded else run.source.accepted(name, since)
            if is_troubled and name in absent:
                accepted |= {None}
            content = held.get(name)
            if content not in accepted and name not in named:
                shown = "missing" if content is None else repr(content[:40])
                return f"{name} is {shown}, not {[one and one[:40] for one in accepted]}"
        return ""

    def _since(self, begun: float, grace: float) -> float:
        """Return since when what was true may count as true."""
        since = begun - grace
        run = self._run
        # What is between says nothing of what it could not read.
        veils = run.shape.through or any(trouble.veils for trouble in run.troubles)
        if veils and self.began is not None:
            lags = max(trouble.lags for trouble in run.troubles)
            if run.shape.through:  # which tries again less and less often
                lags += 300.0
            is_over = self.ended is not None and begun > self.ended + grace + lags
            since = since if is_over else min(since, self.prepared - 1.0)
        return since

    def check(self, claim: Claim) -> None:
        """Check what a Destination that runs says now."""
        run = self._run
        requested = UNSETTLED_INTERVAL if run.shape.lastmod is days else PACE.compare
        grace = run.way.interval + 10.0 + run.shape.late + requested * claim.limited
        if self._may_be_unchecked():
            return
        if claim.right:
            problem = self._problem(self._since(run.loop.now, grace), claim)
            if problem:
                run.wrong("right", f"level, and {problem}")
        elif not claim.reasons and self._was_silent:
            run.wrong("right", "not level, without a reason")
        self._was_silent = not claim.right and not claim.reasons

    def _may_be_unchecked(self) -> bool:
        """Return whether files may have changed since they were checked last."""
        run = self._run
        if self.began is None or not any(trouble.place == "disk" for trouble in run.troubles):
            return False
        return self.began <= run.loop.now < self.began + CHECK_FILES + 15.0

    def check_once(self, claim: Claim, begun: float, *, troubled: bool) -> None:
        """Check what `--once` says, and how long it took."""
        run = self._run
        took = run.loop.now - begun
        if claim.right:
            problem = self._problem(self._since(begun, run.shape.late), claim)
            if problem:
                run.wrong("right", f"`--once` exits with 0, and {problem}")
        elif not claim.reasons:
            run.wrong("right", "`--once` fails without a reason")
        final = not troubled or all(trouble.final for trouble in run.troubles)
        if run.source.restored_at > 0:
            final = False  # the documents look as if they were outdated
        limit = _FINAL if final else sum(trouble.limit for trouble in run.troubles)
        limit += run.shape.late
        if took > limit and not (run.way.repairs and troubled):
            run.wrong("ends", f"`--once` ends after {took:.0f} s: {claim.reasons[:1]}")

    def check_audit(self, claim: Claim, begun: float, *, was_right: bool) -> None:
        run = self._run
        if claim.right and not was_right:
            problem = self._problem(self._since(begun, run.shape.late), claim)
            if problem:
                run.wrong("right", f"the audit says in step, and {problem}")
        elif (
            not claim.right
            and self.ended is not None
            and run.shape.can_be_audited
            and was_right
            and self.is_right()
        ):
            are_contradictory = any(trouble.contradicts for trouble in run.troubles)
            if claim.wrong or not are_contradictory:
                run.wrong("audit", f"the copy is right, and the audit says {claim.reasons}")

    # The others

    def check_politeness(self) -> None:
        run = self._run
        if self.began is None:
            return
        requests = defaultdict[str, list[float]](list)
        for one in run.source.log:
            if one.client != "auditor" and one.at >= self.began:
                requests[one.path].append(one.at)
        most = _MOST_REQUESTS * (_TIMES_BY_REPAIRS if run.way.repairs else 1)
        requests["the hub"] = [at for at in run.hub.joins if at >= self.began]
        for path, times in requests.items():
            first = 0
            for number, at in enumerate(times):
                while times[first] < at - _WINDOW:
                    first += 1
                if number - first + 1 > most:
                    count = len(times)
                    took = run.loop.now - self.began
                    run.wrong("polite", f"{count} requests for {path} within {took:.0f} s")
                    break

    def check_progress(self) -> None:
        """Check that `b` and `c` have changed beside `a`."""
        run = self._run
        if not all(trouble.local for trouble in run.troubles):
            return
        held = run.destination.contents()
        # A file that was there before the first copy is not removed.
        kept = {"d"} if run.way.adopts else set()
        for name in {"b", "c", "d", "n"} - run.excluded - kept:
            if held.get(name) != run.source.contents.get(name):
                run.wrong("progresses", f"{name} is not up to date beside another in trouble")

    def finish(self) -> None:
        """Check that little is left."""
        run = self._run
        files = sum(path.is_file() for path in run.destination.root.rglob("*"))
        tasks = sum(not task.done() for task in run.loop.tasks)
        timers, messages = run.loop.timers, len(self.log.texts)
        if files > _MOST_FILES or tasks > _MOST_TASKS:
            run.wrong("bounded", f"{files} files, {tasks} tasks")
        if timers > _MOST_TIMERS or messages > _MOST_MESSAGES:
            run.wrong("bounded", f"{timers} timers, {messages} messages")
