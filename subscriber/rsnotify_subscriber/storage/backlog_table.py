"""The table of the backlog: changes that wait until all lists are read (`rsnotify.sync.backlog`).

It is temporary, since a later run reads the lists again, and exists only while it has rows. So it
costs no flush, and copies that are level need no memory for it.
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
from rsnotify_subscriber.storage.resource_state import select_in
from rsnotify_subscriber.storage.state_database import StateDatabase, StateTransactions

_CREATE = """
CREATE TABLE {backlog} (
    number INTEGER PRIMARY KEY, uri TEXT NOT NULL, since BIGINT NOT NULL, change {bytes} NOT NULL,
    UNIQUE (uri, number), UNIQUE (since, number))
"""
_INSERT = "INSERT INTO {backlog} (number, uri, since, change) VALUES (?, ?, ?, ?)"
_KNOWN = "SELECT DISTINCT uri FROM {backlog} WHERE uri IN"
_FIRST = "SELECT uri FROM {backlog} ORDER BY since, number LIMIT ?"
_ROWS = "SELECT number, since, change FROM {backlog} WHERE uri IN"
_DELETE = "DELETE FROM {backlog} WHERE uri = ?"

_encode = msgspec.msgpack.Encoder().encode
#: A change, and which of its datetimes are coarse: MessagePack does not keep their `fold`.
_decode = msgspec.msgpack.Decoder(tuple[Change, bool, tuple[str, ...]]).decode
_DATETIMES = ("datetime", "lastmod")

_Changes = list[tuple[Change, Instant]]


class BacklogTable:
    def __init__(self, database: StateDatabase, transactions: StateTransactions) -> None:
        self._database = database
        self._transactions = transactions
        self._resources = 0
        self._last = 0

    def use(self, action: BacklogAction) -> tuple[BacklogExtent, _Changes]:
        """Carry out an action; return what the backlog has then, and the changes it has removed."""
        changes: _Changes = []
        match action:
            case StoreBacklog():
                self._store(action.changes)
            case TakeBacklog():
                changes = self._take(action.most, action.uris)
            case ClearBacklog():
                self.clear()
        with self._transactions.storage_errors():
            return self._extent(), changes

    def _store(self, changes: Sequence[tuple[Change, Instant]]) -> None:
        uris = list({change.uri for change, _ in changes})
        with self._transactions.writing():
            if not self._resources:
                self._database.execute(_CREATE)
            known = list(select_in(self._database.execute, _KNOWN, uris)) if self._resources else []
            rows = (
                (number, change.uri, to_microseconds(since), _encoded(change))
                for number, (change, since) in enumerate(changes, self._last + 1)
            )
            self._database.executemany(_INSERT, rows)
            self._last += len(changes)
            self._resources += len(uris) - len(known)

    def _take(self, most: int, uris: Sequence[str]) -> _Changes:
        if not self._resources:
            return []
        with self._transactions.writing():
            if not uris:
                first = self._database.execute(_FIRST, (most,))
                uris = list(dict.fromkeys(uri for (uri,) in first))
                taken = len(uris)
            else:
                taken = len(list(select_in(self._database.execute, _KNOWN, uris)))
            rows = sorted(select_in(self._database.execute, _ROWS, uris))
            self._resources -= taken
            if self._resources:
                self._database.executemany(_DELETE, [(uri,) for uri in uris])
            else:
                self._drop()
        return [(_decoded(change), from_microseconds(at)) for _, at, change in rows]

    def clear(self) -> None:
        if self._resources:
            with self._transactions.writing():
                self._drop()
            self._resources = 0

    def _drop(self) -> None:
        self._database.execute("DROP TABLE {backlog}")

    def _extent(self) -> BacklogExtent:
        if not self._resources:
            return BacklogExtent()
        ((since,),) = self._database.execute("SELECT min(since) FROM {backlog}").fetchall()
        return BacklogExtent(self._resources, from_microseconds(since))


def _encoded(change: Change) -> bytes:
    entry = change.resource
    coarse = [name for name in _DATETIMES if (at := getattr(entry, name)) and at.fold]
    return _encode((change, bool(change.at.fold), coarse))


def _decoded(record: bytes) -> Change:
    change, is_coarse, names = _decode(record)
    if names:
        entry = change.resource
        dates = {name: getattr(entry, name).replace(fold=1) for name in names}
        change = replace(change, resource=replace(entry, **dates))
    return replace(change, at=change.at.replace(fold=1)) if is_coarse else change
