"""Queries for the states of resources, many at a time, and for their identities.

A resource is stored under the spelling of its URI that the Source wrote first, and found by the
normal form of any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from rsnotify.format.uris import normalize
from rsnotify_subscriber.storage.database import Row, StateDatabase
from rsnotify_subscriber.storage.resource_state import ResourceState

_COLUMNS = """
uri, changed_at, change, hash, length, lastmod, validator, fetched_at, mtime, spelling
"""
_FIND = f"SELECT {_COLUMNS} FROM {{resources}} WHERE uri IN"
_FIND_IDENTITY = (
    f"SELECT {_COLUMNS}, identity FROM {{resources}} WHERE identity != '' AND identity IN"
)
_HELD = """
SELECT uri FROM {resources} WHERE change != 'deleted' AND hash IS NOT NULL AND uri > ?
    ORDER BY uri LIMIT ?
"""
_UNIDENTIFIED = (
    "SELECT uri FROM {resources} WHERE identity IS NULL AND uri > ? ORDER BY uri LIMIT ?"
)
_IDENTIFY = "UPDATE {resources} SET identity = ? WHERE uri = ?"
#: How many resources are read by one query.
_PART = 500
#: How many of those without an identity.
_PAGE = 10_000

#: Runs a query with its parameters.
Query = Callable[[str, Sequence[object]], Iterable[Row]]


def look_up(query: Query, uris: Sequence[str]) -> dict[str, ResourceState]:
    """Return the states of resources that have one, by their URIs as they are stored."""
    return {row[0]: ResourceState(*row) for row in select_in(query, _FIND, uris)}


class EquivalentLookup:
    """Finds resources by any spelling of their URIs.

    Attributes:
        has_spellings: Whether any is stored under a URI that is not in normal form.
    """

    has_spellings = False

    def find(self, query: Query, uris: Sequence[str]) -> dict[str, ResourceState]:
        """Return the states of resources that have one, by the given URIs."""
        found = look_up(query, uris)
        others: dict[str, list[str]] = {}
        for uri in uris:
            state = found.get(uri)
            if state is None or not state.exists:
                others.setdefault(normalize(uri), []).append(uri)
        candidates: dict[str, list[ResourceState]] = {}
        if self.has_spellings:
            for *columns, identity in select_in(query, _FIND_IDENTITY, list(others)):
                candidates.setdefault(identity, []).append(ResourceState(*columns))
        spelled = [identity for identity, given in others.items() if given != [identity]]
        for uri, state in look_up(query, spelled).items():
            candidates.setdefault(uri, []).append(state)
        for identity, states in candidates.items():
            best = max(states, key=lambda state: (state.exists, state.changed_at))
            for uri in others[identity]:
                if best.exists or uri not in found:
                    found[uri] = best
        return found


def select_in(query: Query, sql: str, values: Sequence[str]) -> Iterator[Row]:
    """Yield the rows for values, of which a query ends with the parameters."""
    for begin in range(0, len(values), _PART):
        part = values[begin : begin + _PART]
        marks = ", ".join("?" * len(part))
        yield from query(f"{sql} ({marks})", part)


def held_uris(query: Query) -> Iterator[str]:
    after = ""
    while rows := list(query(_HELD, (after, _PART))):
        yield from (uri for (uri,) in rows)
        if len(rows) < _PART:
            return
        after = rows[-1][0]


def identity_of(uri: str) -> str:
    """Return the identity of a resource as it is stored: empty if its URI is in normal form."""
    identity = normalize(uri)
    return "" if identity == uri else identity


def identify(database: StateDatabase) -> bool:
    """Store the identities of resources that an earlier version stored, within a transaction.

    Return whether there are some with the same. Each of these but one keeps its own URI as its
    identity: no list has it, so that the next comparison removes it.
    """
    has_same = False
    after = ""
    while rows := database.execute(_UNIDENTIFIED, (after, _PAGE)).fetchall():
        identities = {uri: identity_of(uri) for (uri,) in rows}
        spelled = [identity for identity in identities.values() if identity]
        taken = set(look_up(database.execute, spelled))
        taken.update(row[-1] for row in select_in(database.execute, _FIND_IDENTITY, spelled))
        for uri, identity in identities.items():
            if identity in taken:
                has_same, identities[uri] = True, ""
            elif identity:
                taken.add(identity)
        database.executemany(_IDENTIFY, [(each, uri) for uri, each in identities.items()])
        after = rows[-1][0]
    return has_same
