"""Tables in PostgreSQL, read through an outbox that their triggers fill.

extensions/gateway/README.md describes the setup. The adapter uses the outbox of the publisher
(`rsnotify_publisher.outbox`), and requires psycopg 3: `pip install "rsnotify[postgresql]"`.

- Each committed change is detected, including changes made in long transactions, in the order of
  the outbox. A NOTIFY wakes the gateway.
- A deletion is detected as a line in the outbox.
- A trigger may be disabled, or missing (for example for TRUNCATE). Once a minute, the adapter reads
  the catalog and reports which changes the triggers miss. If the database has a view of the
  existing resources, the whole set is compared with it every `compare` seconds, and as soon as the
  triggers or tables have changed, including by TRUNCATE. Without the view, a disabled trigger fails
  the check.
- A line that is not a change is skipped, and stays in the table with the reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, closing
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any
from urllib.parse import unquote, urlsplit

from msgspec import DecodeError, json
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError, RsnotifyError, StorageError, without_credentials
from rsnotify.format.datetimes import format_datetime
from rsnotify.format.model import ChangeType, Resource
from rsnotify.runtime.temporary_sets import TemporarySet
from rsnotify_gateway.adapter import (
    KnownEntries,
    MissingEntry,
    OriginBatch,
    OriginCursor,
    OriginTerms,
    OriginType,
    SeenEntry,
    is_due,
)
from rsnotify_gateway.outbox_tables import OutboxTables, TriggerState
from rsnotify_publisher.changes import check_record, check_resource
from rsnotify_publisher.journal import system_clock
from rsnotify_publisher.outbox import Outbox, OutboxLine
from rsnotify_publisher.outbox.forwarder import BATCH_SIZE
from rsnotify_publisher.outbox.outbox import DEFAULT_TABLE
from rsnotify_publisher.outbox.postgresql import PostgreSQLQueue
from rsnotify_subscriber.fetching.credentials import without_login

logger = logging.getLogger("rsnotify.gateway")
_decode = json.Decoder(Resource).decode
#: Default seconds between comparisons with the view.
_COMPARISON_INTERVAL = 86_400.0
#: Seconds between readings of the triggers.
_TRIGGER_INTERVAL = 60.0
_MICROSECONDS_PER_SECOND = 1_000_000


class TableCursor(OriginCursor, omit_defaults=True):
    """The state of the tables at the last comparison or change of the triggers.

    Args:
        fingerprint: The fingerprint of the triggers and tables; empty before the first reading.
        compared: When the whole set was last compared, as a Unix timestamp.
        gap: When the adapter last found that changes may have been missed.
        unusable: The number of rows in the view that are not resources.
    """

    fingerprint: str = ""
    compared: float = 0.0
    gap: str | None = None
    unusable: int = 0


class PostgreSQLAdapter:
    """Reads the outbox `table`, after each NOTIFY and at least every `poll` seconds.

    It compares the set with the view of the resources every `compare` seconds.
    """

    def __init__(self, url: str, table: str, poll: float, compare: float | None = None) -> None:
        outbox = Outbox(table)
        self._tables = OutboxTables(url, table)
        self._queue = PostgreSQLQueue(url, outbox)
        self._user = unquote(urlsplit(url).username or "")
        self._poll = poll
        self._compare = compare or _COMPARISON_INTERVAL
        self._state: TriggerState | None = None
        self._last = TableCursor()

    def terms(self) -> OriginTerms:
        state, last = self._state, self._last
        limits = [] if state is None else list(state.limits)
        if state is None or not state.has_resources:
            limits.append(
                f"There is no view {self._tables.view} to compare with, so only changes in the "
                "outbox are detected. Rows that are older than their trigger are missing, unless "
                "they were inserted into the outbox."
            )
        else:
            limits.append(
                "Changes that are not in the outbox are detected by comparison with the view "
                f"{self._tables.view}, every {self._compare:g} seconds and after each change of "
                "the triggers or tables."
            )
        if last.gap is not None:
            limits.append(f"Changes may have been missed before {last.gap}.")
        if last.unusable:
            limits.append(
                f"Invalid rows in the view {self._tables.view}: {last.unusable:,}. Until they are "
                "corrected, comparisons detect no deletions."
            )
        return OriginTerms("PostgreSQL", None, "Deletions are detected immediately.", tuple(limits))

    async def changes(self, cursor: str | None, known: KnownEntries) -> AsyncIterator[OriginBatch]:
        """Yield committed changes without end. Lines are removed once they are recorded."""
        self._last = TableCursor.decoded(cursor)
        # The default thread pool is for short tasks.
        thread = ThreadPoolExecutor(1, "rsnotify-outbox")
        run = asyncio.get_running_loop().run_in_executor
        clock, triggers_read = asyncio.get_running_loop().time, -_TRIGGER_INTERVAL
        try:
            while True:
                began = system_clock()
                async with aclosing(self._lines(thread)) as lines:
                    async for batch in lines:
                        yield batch
                is_compared = False
                if clock() >= triggers_read + _TRIGGER_INTERVAL:
                    triggers_read, state = clock(), await run(thread, self._tables.state)
                    self._state, is_due = state, self._is_due(state)
                    if is_due and state.has_resources:
                        async with aclosing(self._comparison(thread, known)) as batches:
                            async for batch in batches:
                                yield batch
                        is_compared = True
                    if is_due:
                        self._update_cursor(state)
                        yield OriginBatch(cursor=self._last.encoded())
                self._check_enabled()
                # While a trigger is disabled, only a comparison shows all changes.
                if is_compared or self._state is None or not self._state.disabled:
                    yield OriginBatch(checked=began)
                await run(thread, self._queue.wait, min(self._poll, _TRIGGER_INTERVAL))
        except StorageError as error:
            logger.warning("%s", str(error).replace(f'"{self._user}"', '"…"'))
            # The error is published in origin.json, so it must not reveal where the database is.
            raise StorageError("the database cannot be read; see the gateway's log") from error
        finally:
            self._queue.interrupt()
            thread.submit(self._queue.close)
            thread.shutdown(wait=False)

    def _is_due(self, state: TriggerState) -> bool:
        """Return whether changes may be missing from the outbox, or a comparison is due."""
        is_new = state.fingerprint != self._last.fingerprint
        is_late = is_due(self._last.compared, self._compare)
        return is_new or (state.has_resources and (is_late or bool(state.disabled)))

    def _update_cursor(self, state: TriggerState) -> None:
        now = system_clock() / _MICROSECONDS_PER_SECOND
        last = replace(self._last, fingerprint=state.fingerprint)
        if state.has_resources:
            last = replace(last, compared=now, gap=None)
        elif self._last.fingerprint:
            last = replace(last, gap=format_datetime(datetime.fromtimestamp(now, UTC)))
            logger.warning("the triggers or tables were altered; some changes may be missed")
        self._last = last

    def _check_enabled(self) -> None:
        state = self._state
        if state is not None and state.disabled and not state.has_resources:
            reason = "; ".join(state.disabled)
            raise _TriggerDisabled(
                f"{reason}: enable or drop it, or create the view {self._tables.view}"
            )

    async def _lines(
        self, thread: ThreadPoolExecutor, seen: set[str] | None = None
    ) -> AsyncGenerator[OriginBatch, None]:
        """Yield all lines of the outbox, and add their URIs to `seen`.

        The caller must close the generator, because a transaction is open between two batches.
        """
        count = BATCH_SIZE
        while count == BATCH_SIZE:
            async with self._forward(thread) as (lines, refused):
                count, read = len(lines), system_clock()
                entries = tuple(_entries(lines, read, refused))
                if seen is not None:
                    seen.update(map(_uri, entries))
                yield OriginBatch(entries, at=read)

    async def _comparison(
        self, thread: ThreadPoolExecutor, known: KnownEntries
    ) -> AsyncGenerator[OriginBatch, None]:
        """Yield the rows of the view, new lines of the outbox, and the resources in neither."""
        run = asyncio.get_running_loop().run_in_executor
        rows = self._tables.resources()
        #: The resources whose current state is in a line of the outbox, which is newer.
        changed: set[str] = set()
        unusable = 0
        with closing(TemporarySet()) as present:
            try:
                pending: list[str] = await run(thread, next, rows)
                changed.update(uri for line in pending if (uri := _uri_of(line)) is not None)
                while (entries := await run(thread, next, rows, None)) is not None:
                    found = [_listed(entry) for entry in entries]
                    unusable += found.count(None)
                    batch = [entry for entry in found if entry is not None]
                    present.update(map(_uri, batch))
                    yield OriginBatch(tuple(one for one in batch if _uri(one) not in changed))
                    async with aclosing(self._lines(thread, changed)) as lines:
                        async for line in lines:
                            yield line
            finally:
                thread.submit(rows.close)
            self._last = replace(self._last, unusable=unusable)
            if unusable:
                logger.warning("invalid rows in %s: %d", self._tables.view, unusable)
                return
            missing = await known.select(lambda uri, _: uri not in present and uri not in changed)
            yield OriginBatch(tuple(MissingEntry(uri) for uri, _ in missing))

    @asynccontextmanager
    async def _forward(
        self, thread: ThreadPoolExecutor
    ) -> AsyncIterator[tuple[Sequence[OutboxLine], dict[int, str]]]:
        """Yield lines of the outbox, and a dictionary for the reasons why lines are refused.

        When the context ends, the lines are removed from the outbox, except the refused ones.

        Raises:
            StorageError: The database cannot be read, or another process forwards its outbox.
        """
        loop = asyncio.get_running_loop()
        offered: asyncio.Future[Sequence[OutboxLine]] = loop.create_future()
        recorded: Future[Mapping[int, str]] = Future()

        def record(lines: Sequence[OutboxLine]) -> Mapping[int, str]:
            loop.call_soon_threadsafe(offered.set_result, lines)
            return recorded.result()

        forwarding = loop.run_in_executor(thread, self._queue.forward, BATCH_SIZE, record)
        try:
            either: set[asyncio.Future[Any]] = {offered, forwarding}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not offered.done():
                forwarding.result()
                raise StorageError("another process is reading this outbox; stop one of them")
            refused: dict[int, str] = {}
            yield offered.result(), refused
            recorded.set_result(refused)
            await forwarding
        finally:
            if not recorded.done():
                recorded.set_exception(StorageError("the lines were not recorded"))
                await asyncio.wait([forwarding])
                forwarding.exception()


class _TriggerDisabled(RsnotifyError):
    """A trigger is disabled, and there is no view to detect the missed changes."""


def _entries(
    lines: Sequence[OutboxLine], read: int, refused: dict[int, str]
) -> Iterator[SeenEntry | MissingEntry]:
    """Yield the changes in lines, which were read at the instant `read` (µs).

    Add the number of each line that is not a change to `refused`, with the reason.
    """
    for line in lines:
        try:
            change = check_record(_without_logins(_decode(line.entry))).resource
        except (DecodeError, ConfigurationError) as error:
            refused[line.number] = without_credentials(str(error))
            logger.error(
                "line %d of the outbox is not a change: %s", line.number, refused[line.number]
            )
            continue
        if change.change == ChangeType.DELETED:
            yield MissingEntry(change.uri)
        else:
            # After a restore of the table, other changes may have the same numbers.
            yield SeenEntry(change, f"{read}-{line.number} {_metadata(change)}".rstrip())


def _listed(row: str) -> SeenEntry | None:
    """Return the entry for a row of the view; None if the row is not a resource."""
    try:
        resource = check_resource(_without_logins(_decode(row)))
    except (DecodeError, ConfigurationError):
        return None
    return SeenEntry(resource, f"- {_metadata(resource)}".rstrip(), is_listing=True)


def _without_logins(resource: Resource) -> Resource:
    links = tuple(replace(link, href=without_login(link.href)) for link in resource.links)
    return replace(resource, uri=without_login(resource.uri), links=links)


def _metadata(resource: Resource) -> str:
    """Return a hash of the metadata, or an empty string if there is none."""
    bare = Resource(resource.uri)
    found = replace(resource, change=None, datetime=None)
    return "" if found == bare else blake2b(json.encode(found), digest_size=12).hexdigest()


def _uri(entry: SeenEntry | MissingEntry) -> str:
    return entry.resource.uri if isinstance(entry, SeenEntry) else entry.uri


def _uri_of(line: str) -> str | None:
    try:
        return without_login(_decode(line).uri)
    except DecodeError:
        return None


POSTGRESQL = OriginType(
    lambda origin, *_: PostgreSQLAdapter(
        origin.url, origin.table or DEFAULT_TABLE, origin.poll, origin.compare
    ),
    uses_http=False,
)
