"""The table of the backlog: changes that wait until all lists are read (`ChangeBacklog`).

The table is temporary, because the next run reads the lists again, so it needs no flush. It exists
only while it has rows, so copies that are level need no memory for it. It has one row per resource,
keyed by the hash of the URI. Resources with the same hash share a row. Changes of a resource are
merged when they arrive, as in memory, so the size of the table depends on the number of resources,
not of changes.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from rsnotify.format.coverage import Change
from rsnotify.format.datetimes import Instant, from_microseconds, to_microseconds
from rsnotify.sync.actions import (
    BacklogAction,
    BacklogExtent,
    ClearBacklog,
    StoreBacklog,
    TakeBacklog,
)
from rsnotify.sync.reduction import merged
from rsnotify_subscriber.storage.resource_state import select_in
from rsnotify_subscriber.storage.state_database import Row, StateDatabase, StateTransactions

# `number` preserves the order of resources with the same instant.
_CREATE = """
CREATE {unlogged} TABLE {backlog} (
    key {integer} PRIMARY KEY, since {integer} NOT NULL, number {integer} NOT NULL,
    changes {bytes} NOT NULL, UNIQUE (since, number))
"""
_FIND = "SELECT key, since, number, changes FROM {backlog} WHERE key IN"
_INSERT = "INSERT INTO {backlog} (key, since, number, changes) VALUES (?, ?, ?, ?)"
# Leaves the index unchanged.
_UPDATE = "UPDATE {backlog} SET changes = ? WHERE key = ?"
_UPDATE_ALL = "UPDATE {backlog} SET since = ?, changes = ? WHERE key = ?"
_FIRST = "SELECT key, since, number, changes FROM {backlog} ORDER BY since, number LIMIT ?"
_DELETE = "DELETE FROM {backlog} WHERE key = ?"
#: Number of changes to merge at once.
_BATCH_SIZE = 5_000

#: Changes with the names of their coarse datetimes, because MessagePack does not keep `fold`.
_Record = list[tuple[Change, tuple[str, ...]]]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Record).decode

_Taken = list[tuple[Change, Instant]]


class BacklogTable:
    def __init__(self, database: StateDatabase, transactions: StateTransactions) -> None:
        self._database = database
        self._transactions = transactions
        self._resources = 0
        self._last = 0

    def use(self, action: BacklogAction) -> tuple[BacklogExtent, _Taken]:
        """Carry out an action, and return the resulting extent and the removed changes."""
        taken: _Taken = []
        match action:
            case StoreBacklog():
                self._store(action.changes)
            case TakeBacklog():
                taken = self._take(action.most, action.uris)
            case ClearBacklog():
                self.clear()
        with self._transactions.storage_errors():
            return self._extent(), taken

    def clear(self) -> None:
        if self._resources:
            with self._transactions.writing():
                self._drop()
            self._resources = 0

    def _store(self, changes: Sequence[tuple[Change, Instant]]) -> None:
        with self._transactions.writing():
            if not self._resources:
                self._database.execute(_CREATE)
            for begin in range(0, len(changes), _BATCH_SIZE):
                self._merge(changes[begin : begin + _BATCH_SIZE])

    def _merge(self, changes: Sequence[tuple[Change, Instant]]) -> None:
        # Sort by key, so that each page of the table is read and written only once.
        grouped: dict[int, list[tuple[Change, Instant]]] = {}
        for one in changes:
            grouped.setdefault(hash(one[0].uri), []).append(one)
        keys = sorted(grouped)
        known: dict[int, Row] = {}
        if self._resources:
            known = {row[0]: row for row in select_in(self._database.execute, _FIND, keys)}
        new, merged_only, earlier = [], [], []
        for key in keys:
            since = to_microseconds(min(instant for _, instant in grouped[key]))
            before = known.get(key)
            combined = [] if before is None else decode_changes(before[-1])
            for change, _ in grouped[key]:
                _add(change, combined)
            if before is None:
                self._last += 1
                new.append((key, since, self._last, encode_changes(combined)))
            elif since < before[1]:
                earlier.append((since, encode_changes(combined), key))
            else:
                merged_only.append((encode_changes(combined), key))
        for query, rows in ((_INSERT, new), (_UPDATE, merged_only), (_UPDATE_ALL, earlier)):
            self._database.executemany(query, rows)
        self._resources += len(new)

    def _take(self, most: int, uris: Sequence[str]) -> _Taken:
        if not self._resources:
            return []
        with self._transactions.writing():
            if uris:
                keys = list({hash(uri) for uri in uris})
                rows = list(select_in(self._database.execute, _FIND, keys))
            else:
                rows = self._database.execute(_FIRST, (most,)).fetchall()
            self._resources -= len(rows)
            if self._resources:
                self._database.executemany(_DELETE, [(key,) for key, *_ in rows])
            else:
                self._drop()
        taken = ((from_microseconds(since), decode_changes(record)) for _, since, _, record in rows)
        return [(change, since) for since, changes in taken for change in changes]

    def _drop(self) -> None:
        self._database.execute("DROP TABLE {backlog}")

    def _extent(self) -> BacklogExtent:
        if not self._resources:
            return BacklogExtent()
        ((since,),) = self._database.execute("SELECT min(since) FROM {backlog}").fetchall()
        return BacklogExtent(self._resources, from_microseconds(since))


def _add(change: Change, before: list[Change]) -> None:
    """Add a change to a row's changes, merging it with an earlier one of its resource."""
    for index, one in enumerate(before):
        if one.uri == change.uri:
            before[index] = merged(one, change)
            return
    before.append(change)


def encode_changes(changes: Sequence[Change]) -> bytes:
    """Encode changes. Their datetimes stay coarse, although MessagePack does not keep `fold`."""
    return _encode([(change, _coarse(change)) for change in changes])


def _coarse(change: Change) -> list[str]:
    entry = change.resource
    named = {"at": change.at, "datetime": entry.datetime, "lastmod": entry.lastmod}
    named |= {str(number): link.modified for number, link in enumerate(entry.links)}
    return [name for name, at in named.items() if at is not None and at.fold]


def decode_changes(record: bytes) -> list[Change]:
    return [_with_fold(change, names) if names else change for change, names in _decode(record)]


def _with_fold(change: Change, names: Sequence[str]) -> Change:
    entry = change.resource
    dated = [name for name in ("datetime", "lastmod") if name in names]
    dates = {name: getattr(entry, name).replace(fold=1) for name in dated}
    links = tuple(
        replace(link, modified=link.modified.replace(fold=1))
        if link.modified is not None and str(number) in names
        else link
        for number, link in enumerate(entry.links)
    )
    at = change.at.replace(fold=1) if "at" in names else change.at
    return replace(change, at=at, resource=replace(entry, links=links, **dates))
