"""Doubts about whether a copy agrees with the Source's documents, and the continuous audit.

A follower is `level` only while there is no doubt. Each doubt is a sentence for the operator of the
Destination, and each leads to a verification:

    doubt                 raised by               kept in                   cleared by
    lists not read        a gap, a failure, a     `SyncState.settled`       the end of a pull
                          moved set, a digest                               or baseline
    lists unreadable      a document              `CatchUp.failures`        a complete pull
    changes not applied   a known change          `PendingChanges`          `applied`
    pushed gap            an early fragment       `SyncFrontiers.held`      lists that reach it, or
                                                                            still end before it
    uncovered gap         lists that begin late   `.uncovered_gap`          a newer list of all
    older list of all     a list of all           `.last_list`              a newer list of all
    overdue pushed ones   a list without them     `UnconfirmedChanges`      a list with them, a GET
    clock gone back       a list that lost some   `ClockRegressionDetector` a comparison of all

The subscriber adds doubts that only it can detect: about the files of the copy, content that may be
old, and an offer that could not be read (`Following.status`).

In a continuous audit (docs/audit.md), a fragment states the number of the Source's resources as of
its `until`, and their digest. This statement can be compared with the copy only at that exact
instant: when everything up to it is applied, nothing later is, and nothing is in flight. Such a
moment usually occurs sooner or later. If it does not, the next statement is used. If the two
differ:

    statement ──differs──> the Change Lists are read from `confirmed` on, because a hub may have
                           withheld changes; repeated with each statement while lists may lag
              ──still────> everything is compared with the Resource List; repeated, but less and
                           less often, until the two agree
              ──agrees───> in step
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
from rsnotify.sync.follower_state import SyncState
from rsnotify.sync.pace import Pace
from rsnotify.sync.pending_changes import PendingChanges

OLDER_LIST = (
    "the Resource List or Resource Dump is older than one that was compared before; it may be an "
    "old copy, or the Source was restored from a backup"
)
BEHIND = (
    "the Change List lacks changes that it listed earlier; it may be an old copy, or "
    "the Source was restored from a backup"
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


#: The doubts about a copy while it catches up without any failure.
CATCHING_UP = frozenset(
    {DoubtKind.COMPARING, DoubtKind.LISTS_UNREAD, DoubtKind.WAITING, DoubtKind.PUSHED_GAP}
)


def undated(count: int, entries: int, *, are_dates_kept: bool = True) -> str:
    """Return a clause on the number of entries that do not show whether content has changed."""
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
    """Yield the kind of each doubt, and the doubt in a sentence."""
    frontiers, failures = state.frontiers, catch_up.failures
    if failures.count:
        text = f"the Source's documents could not be read: {failures.error}"
        yield DoubtKind.LISTS_UNREADABLE, text
    elif isinstance(catch_up.run, BaselineRun):
        yield DoubtKind.COMPARING, "the copy is being compared with the Source's whole set"
    elif not state.settled:
        yield (
            DoubtKind.LISTS_UNREAD,
            "the Source's lists have not been read to their end yet",
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
            "changes were pushed that the Source's lists do not reach yet",
        )
    if state.unconfirmed.overdue:
        yield (
            DoubtKind.UNLISTED,
            f"{counted(state.unconfirmed.overdue, 'pushed change')} should be in the Source's "
            "lists by now, and the lists do not have all of them",
        )
    if frontiers.has_older_list:
        yield DoubtKind.OLD_LIST, OLDER_LIST
    if catch_up.is_behind:
        yield DoubtKind.OLD_CHANGES, BEHIND


def _unapplied(pending: PendingChanges) -> tuple[DoubtKind, str]:
    missing = [change.resource.uri for change in pending.watched]
    if missing:
        text = f"{_first(missing)}: announced, and not available from its server"
        return DoubtKind.UNAVAILABLE, text
    failing = [change.resource.uri for change in pending.failing()]
    if failing:
        return DoubtKind.FAILING, f"{_first(failing)}: could not be fetched or applied yet"
    waiting = counted(len(pending), "resource has", "resources have")
    return DoubtKind.WAITING, f"{waiting} changes that are not applied yet"


def _first(uris: list[str]) -> str:
    more = f" and {len(uris) - 1} more" if len(uris) > 1 else ""
    return without_credentials(uris[0]) + more


#: The longest wait between two comparisons of everything, as a multiple of the first one.
_LONGEST_WAIT = 64


class Remedy(Enum):
    """The ways to repair a difference."""

    NOTHING = "nothing"
    PULL = "read the Change Lists"
    COMPARE = "compare everything"


class _Statement(Struct, frozen=True):
    """A Source's statement about its set as of `until`.

    `is_repeated` means that it was already compared, and a remedy was applied since.
    """

    until: Instant
    digest: SetDigest
    is_repeated: bool = False


class ContinuousAudit:
    """The continuous audit of one set of resources.

    `incomparable`, unless empty, states why the copy is not an exact copy of the whole set.
    """

    def __init__(self, pace: Pace, actions: ActionList, incomparable: str = "") -> None:
        self._pace = pace
        self._note = actions.note
        self._incomparable = incomparable
        #: The last statement, until it has been compared.
        self.statement: _Statement | None = None
        self._latest_list = EARLIEST
        self._differs_since: float | None = None
        self._has_reported = False
        self._next = 0.0
        self._wait = pace.repair
        #: Whether everything was compared because of a difference that still exists, and the number
        #: of resources found to differ.
        self.repairing = False
        self.differences = 0
        #: Whether copy and Source agreed at the last comparison; None if they were never compared.
        self.in_step: bool | None = None
        #: The difference, or why no comparison is possible; empty if copy and Source agree.
        self.reason = ""

    def read_fragment(
        self, document: Document, until: Instant | None, known: Instant | None
    ) -> None:
        """Read a fragment's statement about the set.

        `until` is where the fragment's interval ends, if it has one. Every change up to `known` is
        already known.
        """
        try:
            digest = set_digest(document)
        except InvalidDocument as error:
            self._set_unusable(f"the digest of the set in a fragment cannot be read: {error}")
            return
        if until is None:
            self.statement = None  # the fragment's changes may be later than all known ones
        elif digest is not None and known is not None and until >= known:
            self._use(_Statement(until, digest))

    def _use(self, statement: _Statement) -> None:
        if self._incomparable:
            self._set_unusable(self._incomparable)
        elif statement.digest.hash != ALGORITHM:
            self._set_unusable("the digest of the Source is not made of SHA-256 hashes")
        else:
            self.statement = statement

    def _set_unusable(self, reason: str) -> None:
        if reason != self.reason:
            is_wanted = reason == self._incomparable  # intended, so there is nothing to repair
            self._note(f"the copy cannot be audited: {reason}", warning=not is_wanted)
        self.in_step, self.reason = None, reason

    def read_list(self, document: Document) -> None:
        """Record how far a list of resources reaches, possibly beyond its `at`."""
        latest = document.completed or document.at
        self._latest_list = max(self._latest_list, latest or EARLIEST)

    def reset(self) -> None:
        """Forget all statements and lists, because the Source's clock has gone back."""
        self.statement, self._latest_list, self.in_step = None, EARLIEST, None

    def is_due(self, known: Instant | None) -> bool:
        """Return whether there is a statement about the set at exactly this instant."""
        return self.statement is not None and self.statement.until == known

    def compare(
        self, held: SetSum, latest: Instant, now: float, *, can_list: bool = True
    ) -> Remedy:
        """Compare the statement with the sum over the copy. Return the remedy for a difference.

        `latest` is the datetime of the copy's latest change. `can_list` means that the Source has a
        list of all its resources.
        """
        statement, self.statement = self.statement, None
        if statement is None or statement.until < max(latest, self._latest_list):
            return Remedy.NOTHING
        ours = held.digest()
        if ours is None:
            self._set_unusable("a resource of the copy has no SHA-256 hash")
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
            self._note("the copy agrees again with the set that the Source states")
        self.in_step, self.reason = True, ""
        self._differs_since, self.repairing, self._wait = None, False, self._pace.repair

    def _differ(self, ours: SetDigest, statement: _Statement, now: float, can_list: bool) -> Remedy:
        if self._differs_since is None:
            self._differs_since = now
            self.in_step, self.reason = False, _difference(ours, statement)
            self._note(f"{self.reason}; the Change Lists are read", warning=True)
            return Remedy.PULL
        self._report_comparison(now)
        if statement.is_repeated:
            return Remedy.NOTHING
        if now - self._differs_since < self._pace.poll:
            return Remedy.PULL
        return self._escalate(now, can_list) if now >= self._next else Remedy.NOTHING

    def _escalate(self, now: float, can_list: bool) -> Remedy:
        self._next = now + self._wait
        self._wait = min(2 * self._wait, _LONGEST_WAIT * self._pace.repair)
        unknown = "the Change Lists do not show what differs, "
        if not can_list:
            self._note(unknown + "and the Source has no list of all its resources", warning=True)
            return Remedy.PULL
        self._note(unknown + "so all resources are compared")
        self.repairing, self._has_reported, self.differences = True, False, 0
        return Remedy.COMPARE

    def _report_comparison(self, now: float) -> None:
        if self.repairing and not self._has_reported:
            self._has_reported = True
            found = counted(self.differences, "resource") if self.differences else "nothing"
            wait = max(0.0, self._next - now)
            self._note(
                f"{found} differed from the Source's list, but the digests still do: "
                f"{self.reason}; everything is compared again in {wait:.0f} s at the earliest",
                warning=True,
            )


def _difference(ours: SetDigest, statement: _Statement) -> str:
    at, theirs = format_datetime(statement.until), statement.digest.count
    if ours.count != theirs:
        has = counted(theirs, "resource")
        return f"at {at} the Source has {has}, and {ours.count:,} are held"
    return f"at {at} the Source has {ours.count} resources, and as many are held, but not the same"
