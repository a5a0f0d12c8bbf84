"""A pull that is under way: reads its documents, and adds their changes to the pending ones."""

from __future__ import annotations

from rsnotify.errors import RsnotifyError
from rsnotify.format.datetimes import Instant
from rsnotify.format.model import Document
from rsnotify.format.offer import Offer
from rsnotify.plural import counted
from rsnotify.sync.actions import Discover, Fetch
from rsnotify.sync.change_intake import ChangeIntake
from rsnotify.sync.pull import Pull, PullStep
from rsnotify.sync.sync_state import SyncState


class PullRun:
    """One run of a `Pull`, which begins at once.

    With `checks_archive`, closed lists are read again if the archive shows that they have changed.
    """

    def __init__(
        self, state: SyncState, intake: ChangeIntake, offer: Offer, *, checks_archive: bool = True
    ) -> None:
        self._state = state
        self._intake = intake
        self._next_package: Fetch | None = None
        self._checks_archive = checks_archive
        self.pull = Pull(offer, intake.packages, intake.closed)
        state.actions.append(self.pull.current)

    @property
    def current(self) -> Fetch:
        return self.pull.current

    def read(self, document: Document, now: float, sent: Instant | None) -> PullStep | None:
        """Read the document requested by `current`; return the last step if the pull ends."""
        fetch, frontier = self.current, self._state.frontiers.frontier
        return self._follow(fetch, self.pull.read(document, frontier, sent), now)

    def abandon(self, error: RsnotifyError, now: float) -> PullStep | None:
        """Use other documents than `current`; return the last step if the pull ends."""
        fetch, frontier = self.current, self._state.frontiers.frontier
        return self._follow(fetch, self.pull.abandon(error, frontier), now)

    def proceed(self) -> None:
        """Request the next package once most changes of the last one are applied.

        So memory stays flat, and at most two packages are needed at once. Changes that have failed
        do not delay it: a later package may supersede them.
        """
        state = self._state
        if self._next_package is not None and state.pending.untried <= state.pace.in_flight:
            state.settled = False  # a package with something new is no routine
            state.actions.append(self._next_package)
            self._next_package = None

    def _follow(self, fetch: Fetch, step: PullStep, now: float) -> PullStep | None:
        actions, coverage = self._state.actions, step.coverage
        if coverage is not None:
            more = step.fetch is not None
            again = self.pull.is_rereading
            is_open = self.pull.is_open(fetch) and not (again and coverage.closed)
            new = self._intake.add(fetch, coverage, now, is_open=is_open, more=more, again=again)
            if new:
                actions.note(f"{counted(new, 'change')} from the {fetch.kind} {fetch.uri}")
        if self.pull.is_rereading:
            self._state.settled = False
        if step.fetch is not None:
            self._request(step.fetch, fetch)
            return None
        is_complete = step.failure is None and step.gap_ends is None
        if is_complete and coverage is not None and coverage.closed and fetch.package is None:
            actions.append(Discover())  # core §12.1: a closed list has a successor
        if is_complete and self._checks_archive:
            if (archive := self.pull.check_archive()) is not None:
                actions.append(archive)
                return None
            self._intake.record_closed(self.pull)
        return step

    def _request(self, fetch: Fetch, previous: Fetch) -> None:
        if fetch.kind is not previous.kind:
            self._state.settled = False
            self._state.actions.note(f"going on with the {fetch.kind} {fetch.uri}")
        if fetch.package is None or self.pull.is_rereading:
            self._state.actions.append(fetch)
        else:
            self._state.pending.release()
            self._next_package = fetch
