"""Decides when everything is compared with the Source's set, and from which documents."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from rsnotify.format.coverage import EARLIEST
from rsnotify.format.datetimes import Instant, format_datetime
from rsnotify.format.model import Document, Resource
from rsnotify.format.offer import Offer
from rsnotify.sync.baseline import Baseline
from rsnotify.sync.pace import Pace
from rsnotify.sync.sync_state import SyncState

#: How many baselines in a row are tried before a gap stays uncovered. Two, as the Resource List may
#: have been replaced by a newer one while it was read.
_MOST_IN_A_ROW = 2
#: How much sooner than usual everything is compared after a comparison has failed.
_SPEEDUP_AFTER_FAILURE = 24
#: Seconds between two conditional requests of one Source, on average, if no document lists changes.
_EACH_CHECKABLE = 1.0
#: Polls come no sooner than this before they are due.
_ROUNDING = 0.5


class BaselinePolicy:
    """Why a baseline is needed, and how it begins."""

    def __init__(self, state: SyncState) -> None:
        self._state = state
        self._in_a_row = 0
        self._last_dump: Document | None = None
        #: Where the Source's lists of changes begin and end, once its clock has gone back.
        self._restarted: tuple[Instant, Instant] | None = None
        #: Whether a pull is not enough.
        self.needed = False
        #: The instant of the Resource Dump from which the copy was made, until a list is compared.
        self.dump_at: Instant | None = None

    def new_baseline(self, offer: Offer, *, reads_old: bool) -> Baseline:
        """Return the next baseline.

        An empty copy needs everything, and a dump has it in one document. If the Resource List did
        not close a gap, a younger dump may. With `reads_old`, even an old dump is compared: the
        Source has moved, so that its resources may have new URIs, or the copy has lost resources.
        """
        frontiers = self._state.frontiers
        begins, ends = self._restarted or (None, None)
        is_empty = frontiers.known is None and ends is None
        is_second = self.needed and self._in_a_row % 2 == 1
        return Baseline(
            offer,
            frontiers.known or begins or EARLIEST,
            dump_first=is_empty or is_second,
            is_old=(lambda _: False) if reads_old else frontiers.covers,
            last_dump=None if reads_old else self._last_dump,
            until=ends,
        )

    def compared(self, baseline: Baseline) -> None:
        self._last_dump = baseline.undated_dump or self._last_dump
        self.dump_at = baseline.at if baseline.by_dump else None
        self._restarted = None

    def baseline_ended(self) -> None:
        self._in_a_row += 1
        self.needed = False

    def pull_ended(self) -> None:
        self.needed = self._state.frontiers.uncovered_gap is not None
        if not self.needed:
            self._in_a_row = 0

    def restart(self, begins: Instant, ends: Instant, *, can_compare: bool) -> None:
        """Forget earlier baselines, as the Source's clock has gone back to these lists."""
        self._in_a_row = 0
        self.needed = can_compare
        self._restarted = (begins, ends) if can_compare else None
        self._state.frontiers.reset(None if can_compare else begins)

    def handle_gap(self, ends: Instant, *, can_compare: bool, cure: str = "") -> None:
        """Compare everything, or skip the gap, as no document covers the changes until it ends.

        `cure` is what the Source should add to its documents, if that is known.
        """
        frontiers, note = self._state.frontiers, self._state.actions.note
        self._state.settled = False
        after, before = format_datetime(frontiers.confirmed), format_datetime(ends)
        if can_compare and self._in_a_row < _MOST_IN_A_ROW:
            note(f"no list of changes reaches back to {after}")
            self.needed = True
        elif can_compare:
            note(
                "the lists of all resources are older than the lists of changes, which begin at "
                f"{before}; waiting for a newer Resource List or Resource Dump",
                warning=True,
            )
            frontiers.skip_gap(ends, cure)
        elif frontiers.confirmed == EARLIEST:
            # A first copy of a Source that lists only changes can begin nowhere else.
            note(f"the Source lists nothing before {before}")
            frontiers.advance(ends)
        else:
            note(
                f"no document covers the changes from {after} to {before}, and the Source offers "
                "no list of all its resources that could replace them",
                warning=True,
            )
            frontiers.skip_gap(ends, cure)


class ComparisonSchedule:
    """When everything is compared as a matter of routine.

    Some Sources never list a deletion, and only leave the resource out of the Resource List.
    `capability_list` is the Capability List of the Source at the last comparison.
    """

    def __init__(self, pace: Pace, compared: float, capability_list: str | None) -> None:
        self._pace = pace
        self._next = compared + pace.compare
        self._is_urgent = self._was_just_done = False
        self._unproven_at = self._checked_at = -inf
        self._requests_unproven = self._requests_checkable = False
        #: How many resources of the comparison under way, and of the last, are checkable.
        self._checkable = self._last_checkable = 0
        #: Whether the copy was made from a dump, and the Resource List was not compared yet.
        self.awaits_list = False
        self.compared = compared
        self.capability_list = capability_list

    def is_due(self, now: float) -> bool:
        """Return whether everything has to be compared; but not twice without a pull between."""
        was_just_done, self._was_just_done = self._was_just_done, False
        due = max(self._next, self.compared + self._pace.compare)
        if self._is_urgent:
            due = min(due, self.compared + self._pace.repair)
        return (now >= due or self.awaits_list) and not was_just_done

    def begin(self, now: float, *, is_forced: bool) -> None:
        """Decide whether to request resources whose entries do not show if they have changed.

        So it is in the first comparison of a run, and as often as everything is compared. Where a
        conditional request shows it, and no document lists changes, it is more often: each second
        one resource on average.
        """
        compare = self._pace.compare
        wait = min(compare, max(self._pace.poll, self._last_checkable * _EACH_CHECKABLE))
        self._requests_unproven = is_forced or now >= self._unproven_at + compare
        is_due = now >= self._checked_at + wait - _ROUNDING
        self._requests_checkable = self._requests_unproven or is_due
        self._checkable = 0

    def unproven_requests(
        self,
        unproven: Sequence[Resource],
        checkable: Sequence[Resource],
        *,
        has_content: bool,
    ) -> tuple[list[Resource], list[Resource]]:
        """Return which of the resources to request, and which not; `has_content` of a package."""
        self._checkable += len(checkable)
        requested: list[Resource] = []
        left: list[Resource] = []
        (requested if has_content or self._requests_unproven else left).extend(unproven)
        (requested if has_content or self._requests_checkable else left).extend(checkable)
        return requested, left

    def expedite(self) -> None:
        """Compare soon, as only that shows whether a resource is still listed."""
        self._is_urgent = True

    def done(
        self,
        now: float,
        capability_list: str | None,
        *,
        is_settled: bool,
        awaits_list: bool = False,
    ) -> None:
        """Record a complete comparison, and whether it settled all missing resources.

        A first copy that was made from a dump is compared with the Resource List once, as either
        of them may lack resources. The next run does that if this one cannot.
        """
        self.awaits_list = awaits_list
        if not awaits_list:
            self.compared = now
        if self._requests_unproven:
            self._unproven_at = now
        if self._requests_checkable:
            self._checked_at = now
        self._last_checkable = self._checkable
        self.capability_list = capability_list
        self._is_urgent = not is_settled
        self._was_just_done = True

    def put_off(self, now: float) -> None:
        """Try again later, as a comparison has failed; but not without a pull between."""
        self._next = now + self._pace.compare / _SPEEDUP_AFTER_FAILURE
        self._was_just_done = True
        self._is_urgent = self.awaits_list = False
