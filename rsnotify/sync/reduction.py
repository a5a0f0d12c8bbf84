"""Reduces several changes of a resource to the one that has to be applied.

`rsnotify audit` uses the same functions as the follower, so both agree.

`reduce_changes` reduces a list to the final change of each resource. In a chronological list (core
§12.1), the last entry of a resource is final. In other lists, for example with the newest change
first, datetimes decide. The resource itself is fetched if its final change is ambiguous:

- A `lastmod` may be older than its change, and may contradict the order of the list.
- The datetimes are too coarse, such as dates without times.
- The URI has two spellings, one of them deleted. A Source that respells its URIs may list this as
  the creation of one resource and the deletion of another.

`merged` and `successor_of` decide between the changes in several documents and fragments. The
resource is fetched if they contradict each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import ge

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.format.coverage import EARLIEST, Change, CheckMethod
from rsnotify.format.datetimes import Instant, is_undecided
from rsnotify.format.hashes import agree
from rsnotify.format.model import ChangeType

#: Maximum number of datetimes that restored files may have put in reverse order by accident.
_BY_ACCIDENT = 10


class ReducedChanges(Struct, frozen=True):
    """The final change of each resource in a list, by URI in document order.

    `since` has the datetime of each resource's earliest change in the list. A resource whose final
    change cannot be determined is `ambiguous`, and is fetched. This includes `respelled` resources,
    which are deleted under one spelling of their URI but not under another.
    """

    latest: dict[str, Change]
    since: dict[str, Instant]
    ambiguous: frozenset[str]
    respelled: frozenset[str] = frozenset()


def reduce_changes(
    changes: Sequence[Change],
    *,
    ordered: bool,
    compare: bool = False,
    from_: Instant | None = None,
) -> ReducedChanges:
    """Return the final change of each resource in a list.

    `changes` are in document order, which is chronological if `ordered` is true. With `compare`,
    the changes are compared with the copy, because datetimes may be wrong. The list begins at
    `from_`; the datetime of an earlier entry is unreliable.
    """
    latest: dict[str, Change] = {}
    since: dict[str, Instant] = {}
    ambiguous: set[str] = set()
    outside: set[str] = set()
    undecided: set[str] = set()
    respelled: set[str] = set()
    newest_first = not ordered and _is_newest_first(changes)
    is_reversed = newest_first and len({change.at for change in changes}) > _BY_ACCIDENT
    for change in changes:
        uri = change.uri
        before = latest.get(uri)
        if before is None:
            latest[uri], since[uri] = change, change.at
            continue
        since[uri] = min(since[uri], change.at)
        if from_ is not None and (_is_older(before, from_) or _is_older(change, from_)):
            outside.add(uri)
        if _is_respelled(before, change):
            respelled.add(uri)
        elif is_undecided(before.stated_at, change.stated_at) and not _is_equal(before, change):
            undecided.add(uri)
        if ordered:
            if change.stated_at < before.stated_at and not _is_equal(before, change):
                undecided.add(uri)  # the clock went back, or the newest entries are first
            latest[uri] = change
            continue
        if _contradict(before, change, is_reversed=is_reversed):
            ambiguous.add(uri)
        if change.at > before.at or (change.at == before.at and not newest_first):
            latest[uri] = change
            if change.at > before.at and not _is_dated_by_lastmod(change):
                ambiguous.discard(uri)
    ambiguous |= undecided | respelled
    if compare or not ordered:
        ambiguous |= outside
        compared = latest.keys() - ambiguous
        latest.update((uri, replace(latest[uri], check=CheckMethod.COMPARE)) for uri in compared)
    _fetch_ambiguous(changes, latest, ambiguous)
    return ReducedChanges(latest, since, frozenset(ambiguous), frozenset(respelled))


def _fetch_ambiguous(
    changes: Sequence[Change], latest: dict[str, Change], ambiguous: set[str]
) -> None:
    """Replace the changes of ambiguous resources with changes that fetch the resources."""
    if not ambiguous:
        return
    deleted = {change.uri for change in changes if change.change is ChangeType.DELETED}
    spellings = {
        change.uri: change.resource.uri
        for change in changes
        if change.change is not ChangeType.DELETED
    }
    for uri in ambiguous:
        change = latest[uri]
        kind = ChangeType.DELETED if uri in deleted else change.change
        spelling = spellings.get(uri, change.resource.uri)
        resource = replace(change.resource, uri=spelling, change=kind, hash=None, length=None)
        latest[uri] = replace(change, change=kind, resource=resource, check=CheckMethod.FETCH)


def _is_newest_first(changes: Sequence[Change]) -> bool:
    times = [change.at for change in changes]
    return all(map(ge, times, times[1:]))


def _contradict(before: Change, change: Change, *, is_reversed: bool) -> bool:
    """Return whether neither position nor datetime determines which of two changes is later."""
    if change.at == before.at:
        return not _is_equal(before, change)
    # A `lastmod` may be older than the change (core §7), for example of a restored file. Position
    # and datetime then contradict each other, unless the whole list is in reverse order.
    return change.at < before.at and not is_reversed and _is_dated_by_lastmod(change)


def _is_older(change: Change, from_: Instant) -> bool:
    return min(change.at, change.resource.changed_at or change.at) < from_


def _is_equal(first: Change, second: Change) -> bool:
    if ChangeType.DELETED in (first.change, second.change):
        return first.change is second.change
    one, other = first.resource, second.resource
    return one.hash == other.hash and (one.hash is not None or one.changed_at == other.changed_at)


def _is_respelled(first: Change, second: Change) -> bool:
    """Return whether a resource is deleted under one spelling of its URI but not the other."""
    is_deleted = first.change is ChangeType.DELETED
    return first.resource.uri != second.resource.uri and (
        is_deleted is not (second.change is ChangeType.DELETED)
    )


def _is_dated_by_lastmod(change: Change) -> bool:
    return change.resource.datetime is None


def merged(before: Change, change: Change) -> Change:
    """Return the change that replaces two consecutive untried changes of the same resource."""
    return successor_of(verified_if_needed(change, before), before) or before


def verified_if_needed(change: Change, announced: Change) -> Change:
    """Return the change, or one that fetches the resource if it contradicts `announced`."""
    if not _is_undecided(change, announced) and not (
        change.at < announced.at and _contradicts(change, announced)
    ):
        return change
    is_deleted = ChangeType.DELETED in (change.change, announced.change)
    change = replace(change, at=max(change.at, announced.at))
    return _verification(change, ChangeType.DELETED if is_deleted else change.change)


def successor_of(change: Change, before: Change) -> Change | None:
    """Return the change that supersedes `before`; None if `change` does not."""
    if change.check is CheckMethod.FETCH:
        # A whole set shows which of the resources exist that only push announced before it.
        is_listed = before.change is ChangeType.UPDATED and before.resource.change is None
        return None if change.pushed and is_listed and change.at <= before.at else change
    if change.at < before.at:
        return fetching(replace(change, at=before.at)) if _revokes(change, before) else None
    if change.check is CheckMethod.DATE and before.check is not CheckMethod.DATE:
        return replace(change, check=CheckMethod.COMPARE)
    return change


def _revokes(change: Change, before: Change) -> bool:
    """Return whether a listed change follows the opposite entry that `before` verifies.

    The verification may have the later datetime of a whole set.
    """
    kind, changed_at = before.resource.change, before.resource.changed_at
    if before.check is not CheckMethod.FETCH or kind is None or changed_at is None or change.pushed:
        return False
    is_deletion = change.change is ChangeType.DELETED
    return changed_at <= change.at and is_deletion is not (kind is ChangeType.DELETED)


def listed_at_of(change: Change) -> Instant:
    """Return when a change in a document announced that its resource exists."""
    return EARLIEST if change.change is ChangeType.DELETED else announced_at(change)


def as_listed(change: Change, listed_at: Instant) -> Change:
    """Return a verification of a pushed change that also verifies what documents announced."""
    is_verification = change.check is CheckMethod.FETCH and announced_at(change) == EARLIEST
    if not (change.pushed and is_verification) or listed_at == EARLIEST:
        return change
    resource = replace(change.resource, change=ChangeType.UPDATED, datetime=listed_at)
    return replace(change, change=ChangeType.UPDATED, resource=resource, pushed=False)


def _is_undecided(change: Change, announced: Change) -> bool:
    """Return whether coarse datetimes do not determine which of two different changes is later."""
    if CheckMethod.FETCH in (change.check, announced.check):
        return False
    if not is_undecided(change.stated_at, announced.stated_at):
        return False
    same = agree(change.resource.hash, announced.resource.hash)
    return change.change is not announced.change or same is not True


def _contradicts(change: Change, listed: Change) -> bool:
    """Return whether a change to be compared contradicts an entry of a Resource List.

    A change with neither a datetime nor a hash may be later than the list.
    """
    if change.check is not CheckMethod.COMPARE or listed.resource.change is not None:
        return False
    if change.resource.changed_at is None and change.resource.hash is None:
        return True
    is_deletion = change.change is ChangeType.DELETED
    if is_deletion or listed.change is ChangeType.DELETED:
        return is_deletion is not (listed.change is ChangeType.DELETED)
    return agree(change.resource.hash, listed.resource.hash) is False


def _verification(change: Change, kind: ChangeType) -> Change:
    """Return a change that stores the server's version.

    If `kind` is a deletion, the resource may be missing, and is then removed.
    """
    return fetching(replace(change, change=kind, resource=replace(change.resource, change=kind)))


def fetching(change: Change) -> Change:
    """Return a change that stores whatever version the server returns.

    If `change` is a deletion, the resource may be missing.
    """
    resource = replace(change.resource, hash=None, length=None)
    return replace(change, resource=resource, package=None, check=CheckMethod.FETCH)


def announced_at(change: Change) -> Instant:
    """Return when documents announced a resource, or `EARLIEST` if only push did."""
    is_listed = change.resource.change is None or change.resource.changed_at is not None
    return change.at if is_listed else EARLIEST
