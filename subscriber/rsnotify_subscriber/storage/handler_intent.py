"""The record of the changes that a handler is about to apply.

It is stored durably before a handler is called. The next commit has the number of the record. A
record with a later number is of effects that may exist though the state does not know of them: a
file of a mirror would stay for ever if the Source deleted the resource meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress

import msgspec
from msgspec import Struct

from rsnotify_subscriber.storage.database import StateDatabase


class HandlerIntent(Struct, frozen=True, array_like=True):
    """The changes of one call of a handler.

    Args:
        batch: The number of the commit that follows.
        uris: The resources of the changes.
        refused: The resources of changes that a handler failed to apply before.
    """

    batch: int = 0
    uris: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    def unfinished(self, committed: int) -> set[str]:
        """Return what may be applied and is not committed, after the commit of this number."""
        if self.batch < committed:
            return set()
        return {*self.refused, *(self.uris if self.batch > committed else ())}


class IntentLog:
    """Stores intents, and reads what the last ones of an earlier run left `unfinished`."""

    def __init__(self, database: StateDatabase, committed: int) -> None:
        self._database = database
        self._batch = self._committed = committed
        self._last = HandlerIntent(committed)
        self.unfinished: set[str] = set()
        for record in database.read_intents():
            # One that was being written is damaged, and no handler was called after it.
            with suppress(msgspec.DecodeError):
                intent = msgspec.json.decode(record, type=HandlerIntent)
                self.unfinished |= intent.unfinished(committed)
                self._batch = max(self._batch, intent.batch)
        if self.unfinished:
            self._batch += 1

    def store(self, uris: Sequence[str], refused: Collection[str]) -> None:
        """Store an intent durably in place of the last; the arguments are as in `HandlerIntent`."""
        self._batch += 1
        self._last = HandlerIntent(self._batch, tuple(uris), tuple(refused))
        self._database.store_intent(msgspec.json.encode(self._last))

    @property
    def applying(self) -> set[str]:
        """What may be applied now and is not committed."""
        return self._last.unfinished(self._committed)

    @property
    def progress(self) -> int:
        """A number that differs after each intent, and after each commit of one."""
        return self._batch + self._committed

    @property
    def batch(self) -> int:
        """The number of the last intent."""
        return self._batch

    def settle(self) -> int | None:
        """Return the number of the last intent for the next commit; None if the last one had it."""
        if self._batch == self._committed:
            return None
        self._committed = self._batch
        return self._batch
