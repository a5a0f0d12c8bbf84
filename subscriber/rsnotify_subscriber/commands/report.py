"""What `rsnotify follow` prints: the status of a copy, and the last line of `--once`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from rsnotify.errors import counted
from rsnotify.format.datetimes import format_datetime
from rsnotify.runtime.command_line import ForcedShutdown, printable, run
from rsnotify.runtime.command_reports import ProgressBar, StatusReport, print_result
from rsnotify_subscriber.events import Status, foreign_files

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rsnotify_subscriber.commands.follow_options import CallbackServer
    from rsnotify_subscriber.fleet.fleet import Fleet
    from rsnotify_subscriber.subscriber import Subscriber

#: The description of a copy without doubts, by the result of the last audit (docs/audit.md).
_LEVEL = {None: "level", True: "in step", False: "other than the Source says"}
#: The first line in a terminal.
LOOKING = "looking for the Source"


class SubscriberReport(StatusReport[Status]):
    """Shows the status of one subscriber.

    A terminal shows a progress bar during a baseline, and while all files are read.
    """

    def __init__(self, url: str = "", *, json: bool = False) -> None:
        super().__init__(LOOKING, json=json)
        self._source = url
        self._bar: ProgressBar | None = None

    def show(self, status: Status) -> None:
        self.name_source(status)
        super().show(status)

    def name_source(self, status: Status) -> None:
        """Print the URL of what is followed once, unless the user gave that one."""
        if status.source is not None and status.source != self._source and not self._json:
            self._source = status.source
            print_result(None, [f"the Source was found at {self._source}"], json=False)

    def sentence(self, status: Status) -> str:
        lag = "" if status.lag_ms is None else f", lag {status.lag_ms:.1f} ms"
        by = f" by {', '.join(status.way)}" if status.way else ""
        reservations = _doubts(status) if status.doubts else status.limits
        doubts = f": {'; '.join(reservations)}" if reservations else ""
        return (
            f"{counted(status.resources, 'resource')}, {counted(status.applied, 'change')} "
            f"applied{lag}, "
            f"{_standing(status)}, {_through(status)}, {_compared(status)}, "
            f"push {status.push}{by}{printable(doubts)}"
        )

    def outcome(self, status: Status) -> str:
        """Return the last line of a run that catches up and exits."""
        if not status.level:
            return self.sentence(status)
        differs = f"; {printable(status.difference)}" if status.difference else ""
        damaged = f"; {_damaged(status)}" if status.damaged else ""
        limits = "".join(f"; {printable(limit)}" for limit in status.limits)
        return (
            f"{_standing(status)}: {counted(status.resources, 'resource')}, "
            f"{_through(status)}, {_compared(status)}{differs}{damaged}{limits}"
        )

    def state(self, status: Status) -> object:
        doubts = len(status.doubts)
        standing = status.level, doubts, status.in_step, status.foreign
        return status.push, status.way, status.baseline, *standing

    def counts(self, status: Status) -> object:
        return status.resources, status.applied, status.pending

    def facts(self, status: Status) -> dict[str, Any]:
        return status_facts(status)

    def display(self, status: Status) -> RenderableType:
        if status.baseline:
            text, done, total = "baseline", status.applied, status.applied + status.pending
        elif status.verified is not None:
            text, done, total = "files verified", status.verified, status.resources
        else:
            return super().display(status)
        if self._bar is None or self._bar.text != text:
            self._bar = ProgressBar(text)
        self._bar.show(done, total)
        return self._bar.rendered


def status_facts(status: Status) -> dict[str, Any]:
    facts = msgspec.structs.asdict(status)
    del facts["baseline"], facts["verified"]
    return facts


def _damaged(status: Status) -> str:
    were = counted(status.damaged, "file was", "files were")
    return f"{were} changed or removed here since they were written: fetched again"


def not_level(status: Status) -> str:
    """Return why a copy is not equal to the Source when a run that catches up has ended."""
    if status.level:
        found = foreign_files(status.foreign, status.foreign_files)
        them = "it" if status.foreign == 1 else "them"
        return printable(f"{found}; remove {them}, or move {them} away")
    stopped = "it was stopped before the copy was level"
    return f"{stopped}: {'; '.join(_doubts(status))}" if status.doubts else stopped


def _doubts(status: Status) -> list[str]:
    """Return why a copy may be wrong, and which files in its folder are not part of it."""
    foreign = foreign_files(status.foreign, status.foreign_files)
    return [*status.doubts, *([foreign] if status.foreign else [])]


def _standing(status: Status) -> str:
    if status.level:
        foreign = counted(status.foreign, "file here is", "files here are")
        beside = f", but {foreign} not part of the copy" if status.foreign else ""
        return f"{_LEVEL[status.in_step]}{beside}"
    return f"{status.pending} pending" if status.pending else "not level"


def _through(status: Status) -> str:
    if status.through is None:
        return "not synced yet"
    return f"synced through {format_datetime(status.through)}"


def _compared(status: Status) -> str:
    if status.compared is None:
        return "never compared with the whole set"
    return f"compared with the whole set at {status.compared:%Y-%m-%dT%H:%M:%SZ}"


_REPORT_EVERY = 1.0
#: How many Sources one sentence names.
_NAMED = 10


def follow_and_show(
    follower: Subscriber | Fleet,
    server: CallbackServer,
    report: StatusReport[Any],
    *,
    once: bool,
    beside: Callable[[], Coroutine[None, None, None]] | None = None,
) -> None:
    """Follow, answer hubs and show the status until stopped; with `once`, until level.

    The coroutine that `beside` returns runs meanwhile.
    """
    import asyncio

    from rsnotify.runtime.tasks import running

    async def follow(stop: asyncio.Event) -> None:
        async def stop_on_signal() -> None:
            await stop.wait()
            follower.stop()

        async def show() -> None:
            while True:
                await asyncio.sleep(_REPORT_EVERY)
                report.show(follower.status)

        coroutines = [stop_on_signal(), show()] + ([] if beside is None else [beside()])
        async with running(*coroutines), server.serving():
            await (follower.catch_up() if once else follower.run())

    shutdown = ForcedShutdown(lambda: unfinished_work(follower.in_handler))
    with report:
        run(follow, shutdown)


def unfinished_work(sources: Sequence[str]) -> str:
    """Return in a sentence what keeps a process from ending in order."""
    what = "what was being done has not ended"
    if sources:
        of = ", ".join(sources[:_NAMED]) + (", …" if len(sources) > _NAMED else "")
        what = f"the handler of {of} has not returned"
    return printable(f"{what}, so it is left behind; the next start does that again")
