"""Reduces a list of changes to the final change of each resource.

Both `rsnotify follow` and `rsnotify audit` reduce lists here, so that they never disagree. A list
in chronological order (core §12.1) is read from its first to its last entry. Some Sources write the
newest change first, or in no order: then datetimes decide, and if they do not, the resource itself
has to be fetched. So it is where a coarse datetime, as of a day, leaves open which change is later:
such a list may have been sorted by what is written. And so it is where a list has a resource in two
spellings, once deleted and once not: a Source that changes how it spells its URIs may list this as
the creation of one resource and the deletion of another.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import ge

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.format.coverage import Change, CheckMethod
from rsnotify.format.datetimes import Instant
from rsnotify.format.timestamp_precision import is_undecided
from rsnotify.format.vocabulary import ChangeType


class ReducedChanges(Struct, frozen=True):
    """The latest change of each resource in a list, by URI in document order.

    `since` has the datetime of its earliest change in the list. If the list does not determine the
    latest one, the resource is `ambiguous`, and its change makes a Destination store its current
    state. So it is if it is `respelled`: deleted in one spelling of its URI, and not in another.
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
    """Return the final change of each resource in a list, whose entries are in document order.

    `ordered` says that they are in chronological order, `compare` that their datetimes may be wrong
    nevertheless. The list begins at `from_`; an entry dated before it has no reliable datetime.
    """
    latest: dict[str, Change] = {}
    since: dict[str, Instant] = {}
    ambiguous: set[str] = set()
    outside: set[str] = set()
    undecided: set[str] = set()
    respelled: set[str] = set()
    newest_first = not ordered and _is_newest_first(changes)
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
            latest[uri] = change
            continue
        if _contradict(before, change, newest_first=newest_first):
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
    _verify(changes, latest, ambiguous)
    return ReducedChanges(latest, since, frozenset(ambiguous), frozenset(respelled))


def _verify(changes: Sequence[Change], latest: dict[str, Change], ambiguous: set[str]) -> None:
    """Mark the ambiguous resources to be fetched."""
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


def _contradict(before: Change, change: Change, *, newest_first: bool) -> bool:
    """Return whether position and datetime leave open which of two changes came last."""
    if change.at == before.at:
        return not _is_equal(before, change)
    # A `lastmod` may be older than the change (core §7): a restored file keeps it. Position and
    # datetime then contradict each other, unless the whole list is in reverse order.
    return change.at < before.at and not newest_first and _is_dated_by_lastmod(change)


def _is_older(change: Change, from_: Instant) -> bool:
    return min(change.at, change.resource.changed_at or change.at) < from_


def _is_equal(first: Change, second: Change) -> bool:
    if ChangeType.DELETED in (first.change, second.change):
        return first.change is second.change
    return first.resource.hash == second.resource.hash


def _is_respelled(first: Change, second: Change) -> bool:
    """Return whether a resource is deleted in one spelling of its URI, and not in the other."""
    is_deleted = first.change is ChangeType.DELETED
    return first.resource.uri != second.resource.uri and (
        is_deleted is not (second.change is ChangeType.DELETED)
    )


def _is_dated_by_lastmod(change: Change) -> bool:
    return change.resource.datetime is None
