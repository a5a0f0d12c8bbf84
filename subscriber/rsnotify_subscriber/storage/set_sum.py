"""The sum over what a state holds (docs/audit.md): all of it, or what a change makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from rsnotify.format.digest import SetSum
from rsnotify_subscriber.storage.database import Rows
from rsnotify_subscriber.storage.resource_state import ResourceState

#: How many resources are held, and the datetime (µs) of the latest change of any.
EXTENT = """
SELECT count(CASE WHEN change != 'deleted' THEN 1 END), max(changed_at) FROM {resources}
"""
_HASHES = """
SELECT uri, hash FROM {resources} WHERE change != 'deleted' AND uri > ? ORDER BY uri LIMIT ?
"""
#: How many resources are read at once.
_PAGE = 10_000


def sum_up(execute: Callable[[str, Sequence[object]], Rows]) -> SetSum:
    """Sum up all that is held."""
    total = SetSum()
    after = ""
    while rows := execute(_HASHES, (after, _PAGE)).fetchall():
        total.add(rows)
        after = rows[-1][0]
    return total


def usable(kept: str | None, count: int) -> SetSum | None:
    """Return a sum that was kept; None where it cannot be that of what is held.

    Args:
        kept: What was kept, if anything was. A version that knew no sums may have gone on since.
        count: How many resources are held.
    """
    try:
        total = SetSum.parse(kept or "0 0 0")
    except ValueError:
        return None
    return total if total.count == count else None


def sum_after(
    total: SetSum, before: Mapping[str, ResourceState], after: Iterable[ResourceState]
) -> SetSum:
    """Return what becomes of a sum.

    Args:
        total: The sum as it is.
        before: How the resources were held, by URI, those that were.
        after: How they are held from now on; of one resource the last counts.
    """
    changed = total.copy()
    changed.remove((one.uri, one.hash) for one in before.values() if one.is_there)
    last = {one.uri: one for one in after}
    changed.add((one.uri, one.hash) for one in last.values() if one.is_there)
    return changed
