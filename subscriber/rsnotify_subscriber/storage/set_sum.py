"""The sum over the resources of a state (docs/audit.md): of all of them, or after a change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from rsnotify.format.digest import SetSum
from rsnotify_subscriber.storage.database import Rows
from rsnotify_subscriber.storage.resource_state import ResourceState

#: The number of resources in the copy, the datetime (µs) of the latest change of any, and how many
#: rows have an `identity` other than their URI, or none that is known.
EXTENT = """
SELECT count(CASE WHEN change != 'deleted' THEN 1 END), max(changed_at),
    count(CASE WHEN identity != '' THEN 1 END), count(CASE WHEN identity IS NULL THEN 1 END)
    FROM {resources}
"""
_HASHES = """
SELECT uri, hash, coalesce(spelling, uri) FROM {resources}
    WHERE change != 'deleted' AND uri > ? ORDER BY uri LIMIT ?
"""
#: How many resources are read at once.
_PAGE = 10_000


def sum_up(execute: Callable[[str, Sequence[object]], Rows]) -> SetSum:
    total = SetSum()
    after = ""
    while rows := execute(_HASHES, (after, _PAGE)).fetchall():
        total.add((spelling, hash) for _, hash, spelling in rows)
        after = rows[-1][0]
    return total


def usable(stored: str | None, count: int) -> SetSum | None:
    """Return a stored sum; None if it cannot be that of so many resources.

    A version that knew no sums may have run since it was stored.
    """
    try:
        total = SetSum.parse(stored or "0 0 0")
    except ValueError:
        return None
    return total if total.count == count else None


def sum_after(
    total: SetSum, before: Mapping[str, ResourceState], after: Iterable[ResourceState]
) -> SetSum:
    """Return the sum after a change; of several states of one resource, the last counts."""
    changed = total.copy()
    changed.remove((state.source_uri, state.hash) for state in before.values() if state.exists)
    last = {state.uri: state for state in after}
    changed.add((state.source_uri, state.hash) for state in last.values() if state.exists)
    return changed
