"""Doubts about whether a copy agrees with the Source's documents, and the continuous audit.

A follower is `level` only while there are no doubts. Each doubt is a sentence for the Destination's
operator, and leads to a verification:

    doubt                 raised by               stored in                 cleared by
    lists not read        a gap, a failure, a     `SyncState.settled`       the end of a pull
                          moved set, a digest                               or baseline
    lists unreadable      a broken document       `CatchUp.failures`        a complete pull
    changes not applied   a known change          `PendingChanges`          `applied`
    pushed gap            a fragment beyond it    `SyncFrontiers.held`      lists that reach it, or
                                                                            still end before it
    uncovered gap         lists that begin late   `.uncovered_gap`          a newer Resource List
    older Resource List   a Resource List         `.last_list`              a newer Resource List
    overdue pushed change a list that lacks it    `UnconfirmedChanges`      a list that has it; GET
    clock gone back       lost list entries       `ClockRegressionDetector` a full comparison

The subscriber adds doubts that only it can detect: about files of the copy, content that may be
old, and an unreadable offer (`Following.status`).

In a continuous audit (docs/audit.md), a fragment states the number of the Source's resources as of
its `until`, and their digest. This statement can be compared with the copy only at that exact
instant: everything up to it must be applied, nothing later, and nothing in flight. If the copy is
never in this state, the next statement is used.

    waiting       the copy reaches the statement's instant ──> compared
    compared      equal ──> in step
                  different ──> the Change Lists are read from `confirmed`, because a hub may have
                    withheld changes; repeated with each statement while lists may lag
                  still different ──> everything is compared with the Resource List; repeated with
                    doubling waits until the statement and the copy agree
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, StrEnum

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import InvalidDocument, counted, without_credentials
from rsnotify.format.coverage import EARLIEST
from rsnotify.format.datetimes import Instant, format_datetime
from rsnotify.format.hashes import ALGORITHM, SetDigest, SetSum, set_digest
from rsnotify.format.model import Document
from rsnotify.sync.actions import ActionList
from rsnotify.sync.baseline import BaselineRun
from rsnotify.sync.catch_up import CatchUp
from rsnotify.sync.pace import Pace
from rsnotify.sync.pending_changes import PendingChanges
from rsnotify.sync.sync_state import SyncState

OLDER_LIST = (
    "the Resource List or Resource Dump is older than one that was compared before; it may be an "
    "outdated copy, or the Source was restored from a backup"
)
BEHIND = (
    "the Change List or Change Dump lacks changes that it listed before; it may be an outdated "
    "copy, or the Source was restored from a backup"
)


class DoubtKind(StrEnum):
    """The kinds of doubts, for metrics. The subscriber raises the last three."""

    LISTS_UNREADABLE = "lists-unreadable"
    COMPARING = "comparing"
    LISTS_UNREAD = "lists-unread"
    UNAVAILABLE = "resources-unavailable"
    FAILING = "changes-failing"
    WAITING = "changes-waiting"
    UNCOVERED_GAP = "uncovered-gap"
    PUSHED_GAP = "pushed-gap"
    UNLISTED = "pushed-changes-unlisted"
    OLD_LIST = "old-resource-list"
    OLD_CHANGES = "old-change-list"
    FILES = "files"
    OFFER = "offer"
    CONTENT = "content"


#: The doubts about a copy that catches up without failures.
CATCHING_UP = frozenset(
    {DoubtKind.COMPARING, DoubtKind.LISTS_UNREAD, DoubtKind.WAITING, DoubtKind.PUSHED_GAP}
)


def describe_undated(count: int, entries: int, *, are_dates_kept: bool = True) -> str:
    """Describe how many entries do not show whether their content has changed."""
    lack = "no date and no hash" if are_dates_kept else "no hash, and no date that is kept"
    return f"{count:,} of {counted(entries, 'entry has', 'entries have')} {lack}"


def has_doubts(state: SyncState, catch_up: CatchUp) -> bool:
    frontiers = state.frontiers
    return bool(
        not state.settled
        or state.pending
        or frontiers.has_push_gap
        or frontiers.uncovered_gap
        or state.unconfirmed.overdue
        or frontiers.has_older_list
        or catch_up.is_behind
    )


def list_doubts(state: SyncState, catch_up: CatchUp) -> Iterator[tuple[DoubtKind, str]]:
    """Yield the kind of each doubt, and the doubt as a sentence."""
    frontiers, failures = state.frontiers, catch_up.failures
    if failures.count:
        text = f"the Source's documents could not be read: {failures.error}"
        yield DoubtKind.LISTS_UNREADABLE, text
    elif isinstance(catch_up.run, BaselineRun):
        yield DoubtKind.COMPARING, "the copy is being compared with the Source's whole set"
    elif not state.settled:
        yield (
            DoubtKind.LISTS_UNREAD,
            "the Source's lists have not been read completely yet",
        )
    if state.pending:
        yield _unapplied(state.pending)
    gap = frontiers.uncovered_gap
    if gap is not None:
        after, ends = map(format_datetime, (gap.after, gap.ends))
        cure = f"; {gap.cure}" if gap.cure else ""
        text = f"no document covers the changes from {after} to {ends}{cure}"
        yield DoubtKind.UNCOVERED_GAP, text
    if frontiers.has_push_gap:
        yield (
            DoubtKind.PUSHED_GAP,
            "the Source's lists do not contain all pushed changes yet",
        )
    if state.unconfirmed.overdue:
        yield (
            DoubtKind.UNLISTED,
            f"{counted(state.unconfirmed.overdue, 'pushed change')} should be in the Source's "
            "lists by now, but the lists do not contain all of them",
        )
    if frontiers.has_older_list:
        yield DoubtKind.OLD_LIST, OLDER_LIST
    if catch_up.is_behind:
        yield DoubtKind.OLD_CHANGES, BEHIND


def _unapplied(pending: PendingChanges) -> tuple[DoubtKind, str]:
    missing = [change.resource.uri for change in pending.watched]
    if missing:
        text = f"{_first(missing)}: announced, but not available from its server"
        return DoubtKind.UNAVAILABLE, text
    failing = [change.resource.uri for change in pending.failing()]
    if failing:
        return DoubtKind.FAILING, f"{_first(failing)}: could not be fetched or applied yet"
    waiting = counted(len(pending), "resource has", "resources have")
    return DoubtKind.WAITING, f"{waiting} changes that are not applied yet"


def _first(uris: list[str]) -> str:
    more = f" and {len(uris) - 1} more" if len(uris) > 1 else ""
    return without_credentials(uris[0]) + more


#: Maximum time between two full comparisons, as a multiple of `Pace.repair`.
_MAX_WAIT_FACTOR = 64


class Remedy(Enum):
    """The possible reactions to a difference."""

    NOTHING = "nothing"
    PULL = "read the Change Lists"
    COMPARE = "compare everything"


class _Statement(Struct, frozen=True):
    """A Source's digest of its set as of `until`.

    `is_repeated` means that it was already compared, and a remedy was applied.
    """

    until: Instant
    digest: SetDigest
    is_repeated: bool = False


class ContinuousAudit:
    """The continuous audit of one set of resources.

    `incomparable` explains why the copy cannot be audited, for example because it is not a copy of
    the whole set; it is empty if the copy can.
    """

    def __init__(self, pace: Pace, actions: ActionList, incomparable: str = "") -> None:
        self._pace = pace
        self._note = actions.note
        self._incomparable = incomparable
        #: The last statement, until it is compared.
        self.statement: _Statement | None = None
        self._latest_list = EARLIEST
        self._differs_since: float | None = None
        self._has_reported = False
        self._next = 0.0
        self._wait = pace.repair
        #: Whether everything was compared because of a difference that still exists, and the number
        #: of resources that differed.
        self.repairing = False
        self.differences = 0
        #: Whether copy and Source agreed at the last comparison; None before the first.
        self.in_step: bool | None = None
        #: The difference, or why no comparison is possible; empty if copy and Source agree.
        self.reason = ""

    def read_fragment(
        self, document: Document, until: Instant | None, known: Instant | None
    ) -> None:
        """Read a fragment's statement about the set.

        `until` is the end of the fragment's interval, if it has one. All changes up to `known` are
        known.
        """
        try:
            digest = set_digest(document)
        except InvalidDocument as error:
            self._set_unusable(f"the digest in a fragment is invalid: {error}")
            return
        if until is None:
            self.statement = None  # the fragment's changes may be later than all known ones
        elif digest is not None and known is not None and until >= known:
            self._use(_Statement(until, digest))

    def _use(self, statement: _Statement) -> None:
        if self._incomparable:
            self._set_unusable(self._incomparable)
        elif statement.digest.hash != ALGORITHM:
            self._set_unusable("the Source's digest is not based on SHA-256 hashes")
        else:
            self.statement = statement

    def _set_unusable(self, reason: str) -> None:
        if reason != self.reason:
            is_wanted = reason == self._incomparable  # configured, so not worth a warning
            self._note(f"the copy cannot be audited: {reason}", warning=not is_wanted)
        self.in_step, self.reason = None, reason

    def read_list(self, document: Document) -> None:
        """Record the latest instant whose changes a list of resources may contain."""
        latest = document.completed or document.at
        self._latest_list = max(self._latest_list, latest or EARLIEST)

    def reset(self) -> None:
        """Forget all statements and lists, because the Source's clock has gone back."""
        self.statement, self._latest_list, self.in_step = None, EARLIEST, None

    def is_due(self, known: Instant | None) -> bool:
        """Return whether there is a statement as of exactly this instant."""
        return self.statement is not None and self.statement.until == known

    def compare(
        self, held: SetSum, latest: Instant, now: float, *, can_list: bool = True
    ) -> Remedy:
        """Compare the statement with the sum over the copy, and return the remedy.

        `latest` is the datetime of the copy's latest change. `can_list` means that the Source has a
        list of all its resources.
        """
        statement, self.statement = self.statement, None
        if statement is None or statement.until < max(latest, self._latest_list):
            return Remedy.NOTHING
        ours = held.digest()
        if ours is None:
            self._set_unusable("a resource in the copy has no SHA-256 hash")
        elif ours == statement.digest:
            self._agree()
        else:
            remedy = self._differ(ours, statement, now, can_list)
            if remedy is not Remedy.NOTHING:
                self.statement = replace(statement, is_repeated=True)
            return remedy
        return Remedy.NOTHING

    def _agree(self) -> None:
        if self.in_step is False:
            self._note("the copy matches the Source's digest again")
        self.in_step, self.reason = True, ""
        self._differs_since, self.repairing, self._wait = None, False, self._pace.repair

    def _differ(self, ours: SetDigest, statement: _Statement, now: float, can_list: bool) -> Remedy:
        if self._differs_since is None:
            self._differs_since = now
            self.in_step, self.reason = False, _difference(ours, statement)
            self._note(f"{self.reason}; reading the Change Lists", warning=True)
            return Remedy.PULL
        self._report_comparison(now)
        if statement.is_repeated:
            return Remedy.NOTHING
        if now - self._differs_since < self._pace.poll:
            return Remedy.PULL
        return self._escalate(now, can_list) if now >= self._next else Remedy.NOTHING

    def _escalate(self, now: float, can_list: bool) -> Remedy:
        self._next = now + self._wait
        self._wait = min(2 * self._wait, _MAX_WAIT_FACTOR * self._pace.repair)
        unknown = "the Change Lists do not show what differs"
        if not can_list:
            text = f"{unknown}, and the Source has no list of all its resources"
            self._note(text, warning=True)
            return Remedy.PULL
        self._note(f"{unknown}; comparing all resources")
        self.repairing, self._has_reported, self.differences = True, False, 0
        return Remedy.COMPARE

    def _report_comparison(self, now: float) -> None:
        if self.repairing and not self._has_reported:
            self._has_reported = True
            found = counted(self.differences, "resource") if self.differences else "nothing"
            wait = max(0.0, self._next - now)
            self._note(
                f"{found} differed from the Source's list, but the digests still differ: "
                f"{self.reason}; the next full comparison is in {wait:.0f} s at the earliest",
                warning=True,
            )


def _difference(ours: SetDigest, statement: _Statement) -> str:
    at, theirs = format_datetime(statement.until), statement.digest.count
    if ours.count != theirs:
        has = counted(theirs, "resource")
        return f"at {at} the Source has {has}, but the copy has {ours.count:,}"
    return f"at {at} the Source and the copy both have {ours.count:,} resources, but they differ"
