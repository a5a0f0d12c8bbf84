"""What a program can read from a `Follower`."""

from __future__ import annotations

from collections.abc import Iterable

from rsnotify.errors import RsnotifyError
from rsnotify.format.coverage import Change
from rsnotify.format.datetimes import Instant
from rsnotify.sync.actions import Progress
from rsnotify.sync.apply_results import ApplyResults
from rsnotify.sync.catch_up import CatchUp
from rsnotify.sync.continuous_audit import ContinuousAudit
from rsnotify.sync.doubts import has_doubts, list_doubts
from rsnotify.sync.push_intake import PushIntake
from rsnotify.sync.sync_state import SyncState


class FollowerView:
    """The readable state of a follower, which consists of these parts."""

    _state: SyncState
    _catch_up: CatchUp
    _audit: ContinuousAudit
    _push: PushIntake
    _results: ApplyResults

    # What to store, and when to call

    @property
    def progress(self) -> Progress | None:
        """The progress to store; None until a first baseline is complete."""
        return self._results.progress()

    def progress_after(self, changes: Iterable[Change]) -> Progress | None:
        """Return the progress to store with changes of an `Apply`, before `applied` is called."""
        return self._results.progress_after(list(changes))

    @property
    def wakeup(self) -> float | None:
        """When `tick` is due, if no event comes before."""
        catch_up = None if self._catch_up.busy else self._state.schedule.due
        offer, pending = self._state.schedule.offer_due, self._state.pending.wakeup()
        due = (self._push.gap_due, pending, catch_up, offer)
        return min((time for time in due if time is not None), default=None)

    @property
    def audit_due(self) -> bool:
        """Whether the copy is now at the instant of a statement, so that `audited` is due."""
        if not self._audit.is_comparable_at(self.since) or self._catch_up.busy:
            return False
        return self.level

    # How far the copy is

    @property
    def since(self) -> Instant | None:
        """Where push has to join: every change up to here is known."""
        return self._state.frontiers.known

    @property
    def level(self) -> bool:
        """Whether nothing is known to be missing, and the Source's lists have confirmed that.

        The value is kept while the lists are read as a matter of routine, until they have
        something new.
        """
        return not has_doubts(self._state, self._catch_up)

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why the copy may differ from the Source's documents; empty while `level`."""
        return tuple(list_doubts(self._state, self._catch_up))

    @property
    def pending(self) -> int:
        """How many resources have changes that are known and not yet applied."""
        return len(self._state.pending)

    @property
    def untried(self) -> int:
        """How many of them have not failed so far."""
        return self._state.pending.untried

    def is_pending(self, uri: str) -> bool:
        return uri in self._state.pending

    def holds(self, change: Change) -> bool:
        """Return whether this very change of `verify` is pending."""
        return self._state.pending.holds(change)

    @property
    def is_deferred(self) -> bool:
        """Whether T waits only for a change that is put off on purpose (`Pace.spread`)."""
        return self._state.pending.is_deferred

    @property
    def unconfirmed(self) -> int:
        """How many resources have changes that push announced and no list has repeated yet."""
        return len(self._state.unconfirmed)

    @property
    def gap(self) -> bool:
        """Whether changes were pushed that do not join what is known."""
        return self._state.frontiers.has_push_gap

    @property
    def gap_is_uncovered(self) -> bool:
        """Whether no document covers some of the changes since the last run."""
        return self._state.frontiers.uncovered_gap is not None

    @property
    def cure_of_gap(self) -> str:
        """What the Source should add to its documents so that they cover them, if that is known."""
        gap = self._state.frontiers.uncovered_gap
        return gap.cure if gap is not None else ""

    # Comparisons with the whole set

    @property
    def baselining(self) -> bool:
        return self._catch_up.baselining

    @property
    def is_comparing(self) -> bool:
        """Whether a comparison is under way, or about to begin for what the copy has lost."""
        return self._catch_up.is_comparing

    @property
    def is_settled(self) -> bool:
        """Whether the lists were read to their end, and nothing has cast doubt on that since."""
        return self._state.settled

    @property
    def compared(self) -> float:
        """When the copy was last compared with the whole set, by the clock of `now`."""
        return self._catch_up.comparisons.compared

    @property
    def in_step(self) -> bool | None:
        """Whether the copy agreed with the Source's statement when they were last compared."""
        return self._audit.in_step

    @property
    def difference(self) -> str:
        """What differed then, or why the two cannot be compared; empty if they agreed."""
        return self._audit.reason

    # Failures

    @property
    def failures(self) -> int:
        """How often in a row the Source's lists could not be followed."""
        return self._catch_up.failures.count

    @property
    def error(self) -> RsnotifyError | None:
        """Why the Source's lists could not be followed the last time, if they could not."""
        return self._catch_up.failures.error

    def failing(self) -> list[Change]:
        """Return the changes that could not be applied so far, and are retried."""
        return self._state.pending.failing()

    def is_stuck(self, now: float) -> bool:
        """Whether only another answer of the Source can still make the copy `level`.

        That is so once what has failed was tried often enough, and the lists were read since; or if
        nothing new came for `Pace.patience`, or cannot come within that time.
        """
        state, catch_up = self._state, self._catch_up
        if catch_up.busy or not state.pending.all_given_up:
            return False
        is_read = all(failed < catch_up.began for failed in state.pending.first_failures())
        if state.settled and is_read:
            frontiers = state.frontiers
            if state.pending or frontiers.uncovered_gap or frontiers.has_older_list:
                return True
        patience, failures = state.pace.patience, catch_up.failures
        if failures.count:
            return max(now, state.schedule.due or now) - failures.since >= patience
        return now - catch_up.news_at >= patience
