"""Queries for the states of resources, many at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from rsnotify_subscriber.storage.database import Row
from rsnotify_subscriber.storage.resource_state import ResourceState
from rsnotify_subscriber.storage.uri_spellings import other_spellings

_FIND = """
SELECT uri, changed_at, change, hash, length, lastmod, validator, fetched_at, mtime
    FROM {resources}
    WHERE uri IN
"""
_HELD = """
SELECT uri FROM {resources} WHERE change != 'deleted' AND hash IS NOT NULL AND uri > ?
    ORDER BY uri LIMIT ?
"""
#: How many resources are read by one query.
_PART = 500

#: Runs a query with its parameters.
Query = Callable[[str, Sequence[object]], Iterable[Row]]


def look_up(query: Query, uris: Sequence[str]) -> dict[str, ResourceState]:
    """Return the states of resources that have one, by URI."""
    found: dict[str, ResourceState] = {}
    for begin in range(0, len(uris), _PART):
        part = uris[begin : begin + _PART]
        marks = ", ".join("?" * len(part))
        rows = query(f"{_FIND}({marks})", part)
        found.update((row[0], ResourceState(*row)) for row in rows)
    return found


def look_up_equivalent(query: Query, uris: Sequence[str]) -> dict[str, ResourceState]:
    """Return the same; a resource not in the copy is also found by other spellings of its URI."""
    found = look_up(query, uris)
    spellings: dict[str, list[str]] = {}
    for uri in uris:
        state = found.get(uri)
        if (state is None or not state.exists) and (others := other_spellings(uri)):
            spellings[uri] = others
    if spellings:
        by_spelling = look_up(query, sorted({uri for some in spellings.values() for uri in some}))
        for uri, others in spellings.items():
            candidates = [by_spelling[other] for other in others if other in by_spelling]
            if uri in found:
                candidates = [state for state in candidates if state.exists]
            if candidates:
                found[uri] = max(candidates, key=lambda state: (state.exists, state.changed_at))
    return found


def held_uris(query: Query) -> Iterator[str]:
    after = ""
    while rows := list(query(_HELD, (after, _PART))):
        yield from (uri for (uri,) in rows)
        if len(rows) < _PART:
            return
        after = rows[-1][0]
