"""Writes the cursors of subscriptions and brokers to the database in batches."""

from __future__ import annotations

import asyncio
import logging
import sqlite3

from rsnotify_hub.store.group_commit import GroupCommit

logger = logging.getLogger("rsnotify.hub.store")

#: Delay before moved cursors are written, so that others can join the batch, in seconds.
FLUSH_DELAY_SECONDS = 0.25
#: Delay before a failed write is retried, in seconds.
RETRY_DELAY_SECONDS = 5.0

_Cursors = dict[tuple[str, str], int | bytes | None]


class CursorWriter:
    """Writes subscription cursors, broker cursors or failure states in batches.

    Flushing each one separately would delay publishers. A failed write is retried. If a crash loses
    a batch, the hub delivers some fragments twice.

    Args:
        sql: The statement that moves a cursor. Its parameters are the position and the two-part
            key.
    """

    def __init__(self, writer: GroupCommit, sql: str) -> None:
        self._writer = writer
        self._sql = sql
        self._loop = asyncio.get_running_loop()
        self._moved: _Cursors = {}
        self._flushing: _Cursors = {}
        self._flush: asyncio.TimerHandle | None = None
        self._is_writing = False

    def move(self, first: str, second: str, position: int | bytes | None) -> None:
        """Move the cursor, or set the failure state, with this two-part key."""
        self._moved[first, second] = position
        if self._flush is None:
            self._flush_in(FLUSH_DELAY_SECONDS)

    def forget(self, first: str, second: str) -> None:
        """Discard an unwritten move because another write is about to replace it."""
        for cursors in (self._moved, self._flushing):
            cursors.pop((first, second), None)

    def _flush_in(self, seconds: float) -> None:
        if self._flush is None and self._moved and not self._is_writing:
            self._flush = self._loop.call_later(seconds, self._flush_now)

    def _flush_now(self) -> None:
        self._flush = None
        self._is_writing = True
        self._flushing, self._moved = self._moved, {}
        rows = [(position, *key) for key, position in self._flushing.items()]
        written = self._writer.submit(lambda database: database.executemany(self._sql, rows))
        written.add_done_callback(self._on_flushed)

    def _on_flushed(self, written: asyncio.Future[sqlite3.Cursor]) -> None:
        self._is_writing = False
        flushed, self._flushing = self._flushing, {}
        if written.cancelled() or (error := written.exception()) is None:
            self._flush_in(FLUSH_DELAY_SECONDS)
            return
        logger.warning(
            "cannot save cursors; retrying (after a crash, some fragments are delivered twice): %s",
            error,
        )
        self._moved = flushed | self._moved
        self._flush_in(RETRY_DELAY_SECONDS)

    async def close(self) -> None:
        await self._writer.idle()
        if self._flush is not None:
            self._flush.cancel()
            self._flush_now()
            await self._writer.idle()
        if self._flush is not None:  # the write failed
            self._flush.cancel()
