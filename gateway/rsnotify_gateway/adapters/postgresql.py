"""A table in PostgreSQL, through the outbox that triggers on it fill (docs in gateway/README.md).

- Granularity: each committed change, including those of long transactions, in the order in which
  the outbox has them. A NOTIFY wakes the gateway.
- A deletion is seen as a line of the outbox.
- Only what is in the outbox is seen: a row that was there before the triggers has to be written
  into it once, and what is written while triggers are disabled is missed.
- A line that is no change stays in the table, with the reason, and is left out.

The outbox is that of the publisher (`rsnotify_publisher.outbox`). It needs psycopg 3:
`pip install "rsnotify[postgresql]"`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from msgspec import DecodeError, json

from rsnotify.errors import ConfigurationError, StorageError
from rsnotify.format.model import Resource
from rsnotify.format.vocabulary import ChangeType
from rsnotify_gateway.adapter import KnownEntries, MissingEntry, OriginBatch, OriginTerms, SeenEntry
from rsnotify_publisher.changes import check_change
from rsnotify_publisher.journal import system_clock
from rsnotify_publisher.outbox import Outbox, OutboxLine
from rsnotify_publisher.outbox.forwarder import BATCH

if TYPE_CHECKING:
    from rsnotify_publisher.outbox import OutboxQueue

_log = logging.getLogger("rsnotify.gateway")
_decode = json.Decoder(Resource).decode
_LIMITS = (
    "Only what is in the outbox is seen: a row that is older than its trigger was written into it, "
    "or is missing.",
)


class PostgreSQLAdapter:
    """Reads an outbox.

    Args:
        url: Where the database is.
        table: The name of the outbox.
        poll: Seconds between two checks without a NOTIFY.
        clock: Returns microseconds since 1970.

    Raises:
        ConfigurationError: The name of the table is unusable, or psycopg is not installed.
    """

    def __init__(
        self, url: str, table: str, poll: float, clock: Callable[[], int] = system_clock
    ) -> None:
        try:
            from rsnotify_publisher.outbox.postgresql import PostgreSQLQueue
        except ImportError:
            raise ConfigurationError(
                'type = "postgresql" needs psycopg; install it with pip install '
                '"rsnotify[postgresql]"'
            ) from None
        self._queue: OutboxQueue = PostgreSQLQueue(url, Outbox(table))
        self._poll = poll
        self._clock = clock

    def terms(self) -> OriginTerms:
        """Return what an outbox shows."""
        return OriginTerms("PostgreSQL", None, "A deletion is seen at once.", _LIMITS)

    async def changes(self, cursor: str | None, known: KnownEntries) -> AsyncIterator[OriginBatch]:
        """Yield what is committed, again and again; it leaves the outbox once it is recorded."""
        run = asyncio.get_running_loop().run_in_executor
        # The default threads are for short work.
        thread = ThreadPoolExecutor(1, "rsnotify-outbox")
        try:
            while True:
                began, count = self._clock(), BATCH
                while count == BATCH:
                    async with self._forward(thread) as (lines, refused):
                        count = len(lines)
                        yield OriginBatch(tuple(_entries(lines, self._clock(), refused)))
                yield OriginBatch(checked=began)
                await run(thread, self._queue.wait, self._poll)
        except StorageError as error:
            _log.warning("%s", error)
            # Others may read the problem, and need not know where the database is.
            raise StorageError("the database cannot be read; see the log of the gateway") from error
        finally:
            self._queue.interrupt()
            thread.submit(self._queue.close)
            thread.shutdown(wait=False)

    @asynccontextmanager
    async def _forward(
        self, thread: ThreadPoolExecutor
    ) -> AsyncIterator[tuple[Sequence[OutboxLine], dict[int, str]]]:
        """Return a context with lines, which leave the outbox at its end unless they are refused.

        Raises:
            StorageError: The database cannot be read, or another process forwards its outbox.
        """
        loop = asyncio.get_running_loop()
        offered: asyncio.Future[Sequence[OutboxLine]] = loop.create_future()
        recorded: Future[Mapping[int, str]] = Future()

        def record(lines: Sequence[OutboxLine]) -> Mapping[int, str]:
            loop.call_soon_threadsafe(offered.set_result, lines)
            return recorded.result()

        forwarding = loop.run_in_executor(thread, self._queue.forward, BATCH, record)
        try:
            either: set[asyncio.Future[Any]] = {offered, forwarding}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not offered.done():
                forwarding.result()
                raise StorageError("another process forwards this outbox")
            refused: dict[int, str] = {}
            yield offered.result(), refused
            recorded.set_result(refused)
            await forwarding
        finally:
            if not recorded.done():
                recorded.set_exception(StorageError("the lines were not recorded"))
                await asyncio.wait([forwarding])
                forwarding.exception()


def _entries(
    lines: Sequence[OutboxLine], read: int, refused: dict[int, str]
) -> Iterator[SeenEntry | MissingEntry]:
    """Yield the changes in lines that were read at an instant; note why each other is none."""
    for line in lines:
        try:
            change = check_change(_decode(line.entry))
        except (DecodeError, ConfigurationError) as error:
            refused[line.number] = str(error)
            _log.error("line %d of the outbox is no change: %s", line.number, error)
            continue
        if change.change == ChangeType.DELETED:
            yield MissingEntry(change.uri)
        else:
            # Numbers alone may come again, with other changes: after the table was restored.
            yield SeenEntry(change, f"{read}-{line.number}")
