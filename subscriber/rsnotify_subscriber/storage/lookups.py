"""Looking up how resources are held, many at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rsnotify_subscriber.storage.database import Row
from rsnotify_subscriber.storage.resource_state import ResourceState
from rsnotify_subscriber.storage.uri_spellings import other_spellings

_FIND = """
SELECT uri, changed_at, change, hash, length, lastmod, validator, fetched_at FROM {resources}
    WHERE uri IN
"""
#: How many resources are looked up by one query.
_PART = 500

#: Runs a query with its parameters.
Query = Callable[[str, Sequence[object]], Iterable[Row]]


def look_up(query: Query, uris: Sequence[str]) -> dict[str, ResourceState]:
    """Return how resources are held, by URI, those that are."""
    found: dict[str, ResourceState] = {}
    for begin in range(0, len(uris), _PART):
        part = uris[begin : begin + _PART]
        marks = ", ".join("?" * len(part))
        found.update((row[0], ResourceState(*row)) for row in query(f"{_FIND}({marks})", part))
    return found


def look_up_equivalent(query: Query, uris: Sequence[str]) -> dict[str, ResourceState]:
    """Return the same; of what is not held like this, another spelling of its URI counts."""
    found = look_up(query, uris)
    spellings: dict[str, list[str]] = {}
    for uri in uris:
        held = found.get(uri)
        if (held is None or not held.is_there) and (others := other_spellings(uri)):
            spellings[uri] = others
    if spellings:
        others_held = look_up(query, sorted({one for some in spellings.values() for one in some}))
        for uri, others in spellings.items():
            candidates = [others_held[one] for one in others if one in others_held]
            if uri in found:
                candidates = [one for one in candidates if one.is_there]
            if candidates:
                found[uri] = max(candidates, key=lambda one: (one.is_there, one.changed_at))
    return found
