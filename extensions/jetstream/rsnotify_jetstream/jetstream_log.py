"""The log of a multi-node hub: a replicated stream in NATS JetStream.

All records of all logs are in one stream, and the position of a record is its sequence number. Each
node follows the whole stream (`StreamFollower`) and keeps an index of it in memory (`LogIndex`),
which is the same on every node.

The servers only order the records. Each record names its predecessor: the last record of its topic
when it was created. Every index skips a record whose predecessor is no longer the topic's last
record. Therefore a record that is resent after a lost acknowledgement is applied only once, and the
records of an append stay in order even if the stream's leader changes in between. If two nodes
append concurrently, one of them has to retry. An append returns as soon as this node's index
contains the record. Nothing depends on a clock.

Fragments appended together form a *batch*. The servers store a batch at contiguous positions or not
at all, with a single acknowledgement, and only if the predecessor of its first record is still the
topic's last record. Likewise, an index accepts either the whole batch or none of it.

Records that no index contains are deleted from the stream in the background. A deletion may fail or
be repeated. The last entry of a topic is never deleted, because it holds the state of the log.
Single records are deleted in order: a late record can only be recognized while the stream still has
the record that made it late, which a later record may replace.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import Any

import msgspec
from nats.aio.msg import Msg

from rsnotify.errors import StorageError, TooLarge
from rsnotify.format.datetimes import Instant, to_microseconds
from rsnotify.runtime.tasks import cancel
from rsnotify_hub.fragments import Fragment, FragmentKind
from rsnotify_hub.store.interface import (
    Backlog,
    LogEntry,
    LogListener,
    LogMoved,
    LogRetention,
    LogState,
)
from rsnotify_jetstream.log_index import Applied, LogIndex
from rsnotify_jetstream.log_records import (
    LogRecord,
    RecordKind,
    digest_of,
    headers_of,
    read_record,
    read_stored_fragment,
    records_of,
)
from rsnotify_jetstream.nats_connection import ApiError, NatsConnection
from rsnotify_jetstream.stream import LogStream, StoredMessage
from rsnotify_jetstream.stream_follower import StreamFollower

logger = logging.getLogger("rsnotify.hub.store")

#: Number of bytes reserved in a message for the header block and for headers added when sending.
_ENVELOPE_BYTES = 256
#: Maximum number of records in a batch, and of bytes. NATS accepts 1,000 records.
BATCH_RECORDS, BATCH_BYTES = 250, 1024 * 1024
#: Timeout in seconds for storing a record or batch, and for reads that a publication waits for.
#: Servers without a majority do neither, and publishers resend whatever was not acknowledged.
APPEND_SECONDS = 1.8
#: Number of trimmed entries of a log to delete together.
TRIMMED_TOGETHER = 32
#: Seconds before a deletion, so that later deletions can be combined with it.
_CLEAN_DELAY_SECONDS = 0.5
#: Maximum total size of the cached bodies.
CACHE_BYTES = 16 * 1024 * 1024


class JetStreamLog:
    """A `LogStore` in NATS JetStream, for any number of nodes.

    The connection must be open, and the caller closes it after the log. `cleans` returns whether
    this node deletes the trimmed records of topics that nobody appends to. For each topic, exactly
    one node should.
    """

    def __init__(
        self,
        connection: NatsConnection,
        retention: LogRetention,
        clock: Callable[[], Instant],
        *,
        cleans: Callable[[str], bool] = lambda topic: True,
    ) -> None:
        self.connection = connection
        self._clock = clock
        self._cleans = cleans
        self.stream = LogStream(connection)
        self._index = LogIndex(retention)
        self._follower = StreamFollower(self.stream, self._apply)
        self._appender = Appender(self.stream, self._follower, self._index.last)
        self._reader = EntryReader(self.stream)
        self._cleaner = Cleaner(self.stream)
        self._reporter: Reporter | None = None
        self._appending = Counter[str]()

    @property
    def lag(self) -> int:
        """A lower bound on the number of records in the stream that this node does not have yet."""
        return self._follower.lag

    @property
    def info(self) -> dict[str, Any]:
        """The latest information on the stream from its leader."""
        return self._follower.info

    def trouble(self) -> str | None:
        """Return why this node cannot use the log at the moment, or None if it can."""
        if self.connection.server is None:
            return "this node has lost its connection to NATS, and is reconnecting"
        return self._follower.trouble()

    async def start(self, listener: LogListener) -> list[LogState]:
        states: list[LogState] = []

        def loaded() -> None:
            self._reporter = Reporter(listener, self._index)
            states.extend(self._index.states())

        await self.stream.prepare()
        await self._follower.start(loaded)
        return states

    def _apply(self, message: StoredMessage) -> None:
        """Apply a message from the stream to the index, and report it to the listener."""
        record = read_record(message.position, message.headers, message.size)
        if record is None:
            self.connection.warn(logger, "the log in NATS has messages that no hub has written")
            return
        reporter = self._reporter
        if reporter is not None and not reporter.continues(record):
            reporter.report()
        applied = self._index.apply(record)
        if record.topic in self._appending and applied.accepted:
            self._appender.accepted(record)
        if reporter is not None and applied.forgotten:
            reporter.forgotten(record.topic)
        if reporter is not None and applied.added:
            fragment = read_stored_fragment(record, message.headers, message.body)
            entry = LogEntry(record.position, fragment)
            self._reader.keep(entry)
            reporter.add(record.topic, entry, applied.replaced)
        if not applied.accepted:
            # Every node does this, so that this record is deleted before the one that made it late.
            self._cleaner.delete(record.position)
        # When it starts, a node also deletes records that the appending node failed to delete.
        elif reporter is None or record.topic in self._appending:
            self._clean(record, applied)

    def _report_now(self) -> None:
        """Report all pending entries before a caller continues."""
        if self._reporter is not None:
            self._reporter.report()

    def _clean(self, record: LogRecord, applied: Applied) -> None:
        if applied.replaced is not None:
            self._cleaner.delete(applied.replaced)
        if applied.trimmed and (state := self._index.state(record.topic)) is not None:
            self._cleaner.trimmed(record.topic, applied.trimmed, _first(state))
        if record.kind is RecordKind.RESET:
            self._cleaner.trimmed(record.topic, 1, record.position, now=True)

    async def append(
        self, topic: str, fragments: Sequence[Fragment], *, after: int, replacing: int | None
    ) -> int:
        self._report_now()
        state = self._index.state(topic)
        if (state.position if state else 0) != after:
            raise LogMoved(f"the log of {topic} has moved on")
        new = self._new(topic, fragments, replacing)
        if not new:
            self._trim(topic)
            return 0
        with self._queue(topic):
            for batch in batches(new):
                if len(batch) == 1 or not await self._append(topic, batch, replacing):
                    for fragment in batch:
                        # An unanswered attempt may have stored the whole batch in the meantime.
                        if self._new(topic, [fragment], replacing):
                            await self._append(topic, [fragment], replacing)
                        replacing = None
                replacing = None
        if self._index.state(topic) is None:
            raise LogMoved(f"another hub has deleted the log of {topic}")
        return len(new)

    def _trim(self, topic: str) -> None:
        """Trim a log when it already has all the fragments and there is nothing to append."""
        self._index.trim(topic, self._clock())
        state = self._index.state(topic)
        assert state is not None
        assert self._reporter is not None
        self._reporter.listener.appended(topic, (), state, None)

    def _new(
        self, topic: str, fragments: Sequence[Fragment], replacing: int | None
    ) -> Collection[Fragment]:
        """Return the fragments that are not in the log yet, without duplicates."""
        new: dict[bytes, Fragment] = {}
        state = self._index.state(topic)
        for fragment in fragments:
            digest = digest_of(fragment)
            # Duplicates have the same `until`, except whole contents, which the hub dates itself.
            is_whole = fragment.kind is FragmentKind.WHOLE
            may_exist = state is not None and (is_whole or fragment.until <= state.through)
            if not may_exist or self._index.find(topic, digest) in (None, replacing):
                new.setdefault(digest, fragment)
        return new.values()

    async def _append(
        self, topic: str, fragments: Sequence[Fragment], replacing: int | None
    ) -> bool:
        """Append a batch. Return False if its fragments must be appended one at a time."""
        place = self._index.place(topic, replacing)
        records = records_of(topic, fragments, received=self._clock(), place=place)
        return await self._appender.append(records, fragments)

    async def forget(self, topic: str, *, after: int) -> None:
        self._report_now()
        state = self._index.state(topic)
        if state is None or state.position != after:
            raise LogMoved(f"the log of {topic} has moved on")
        received = to_microseconds(self._clock())
        with self._queue(topic):
            reset = LogRecord(0, RecordKind.RESET, topic, received=received, after=after)
            await self._appender.append([reset], [None])

    @contextmanager
    def _queue(self, topic: str) -> Iterator[None]:
        self._appending[topic] += 1
        try:
            yield
        finally:
            self._report_now()
            self._appending[topic] -= 1
            if not self._appending[topic]:
                del self._appending[topic]
                self._appender.ended(topic)

    async def newest(self, *, after: tuple[Instant, str] | None, limit: int) -> list[LogState]:
        self._follower.check()
        return self._index.newest(after, limit)

    async def read(self, topic: str, *, after: int, since: Instant | None = None) -> list[LogEntry]:
        self._follower.check()
        while positions := self._index.read(topic, after=after, since=since):
            # A publication may be waiting for the newest record, which is read alone.
            is_newest = len(positions) == 1
            async with publication_timeout(self.connection) if is_newest else nullcontext():
                entries = await self._reader.read(self._expected(topic, positions))
            if entries:
                return entries
            after = positions[-1]  # another node has trimmed all these entries
        return []

    async def changes(self, topic: str, *, since: Instant | None) -> list[LogEntry]:
        self._follower.check()
        positions = self._index.changes(topic, since=since)
        async with publication_timeout(self.connection):  # a publication may be waiting for it
            return await self._reader.read(self._expected(topic, positions))

    def _expected(self, topic: str, positions: Sequence[int]) -> dict[int, bytes]:
        return {position: self._index.digest(topic, position) for position in positions}

    async def trim(self, topic: str) -> LogState | None:
        self._follower.check()
        trimmed = self._index.trim(topic, self._clock())
        state = self._index.state(topic)
        if state is not None and self._cleans(topic):
            self._cleaner.trimmed(topic, trimmed, _first(state), now=True)
        return state

    async def backlogs(self, topic: str, positions: Sequence[int]) -> list[Backlog]:
        self._follower.check()
        return self._index.backlogs(topic, positions)

    async def reached(self, position: int) -> int:
        """Return the position that this node has reached in the stream.

        It is at least `position`, unless the stream ends before that.

        Raises:
            StorageError: The end of the stream cannot be determined.
        """
        if position > self._follower.position:
            await self.catch_up()
        return self._follower.position

    async def catch_up(self) -> None:
        """Wait until this node has applied every record that is in the stream now."""
        await self._follower.catch_up()
        self._report_now()

    def queued(self) -> int:
        return self._appending.total()

    async def check(self) -> None:
        await self.write_check()

    async def write_check(self) -> int:
        """Check that the log can be written and followed. Return the check record's position."""
        self._follower.check()
        return await self._appender.check()

    async def close(self) -> None:
        await self._cleaner.close()
        await self._follower.close()
        self._report_now()


@asynccontextmanager
async def publication_timeout(connection: NatsConnection) -> AsyncIterator[None]:
    """Limit the duration of a step that a publication waits for. Raise `StorageError` after it."""
    try:
        async with asyncio.timeout(APPEND_SECONDS):
            yield
    except TimeoutError:
        raise StorageError(
            f"NATS at {connection.settings.place} did not answer in time; check that most of its "
            "servers run"
        ) from None


def batches(fragments: Iterable[Fragment]) -> Iterator[list[Fragment]]:
    """Divide fragments into batches.

    A whole content is a batch by itself, because the next one replaces it.
    """
    batch: list[Fragment] = []
    size = 0
    for fragment in fragments:
        size += len(fragment.body)
        is_full = size > BATCH_BYTES or len(batch) == BATCH_RECORDS
        if batch and (is_full or FragmentKind.WHOLE in (fragment.kind, batch[-1].kind)):
            yield batch
            batch, size = [], len(fragment.body)
        batch.append(fragment)
    if batch:
        yield batch


def _first(state: LogState) -> int:
    """Return the position of the first record to keep, which is at most that of the last record."""
    return min(state.first, state.position)


class Reporter:
    """Reports changes of the index to a listener, with all entries of a batch in one call.

    `report` is called before a record of another batch is applied, and before a caller of the log
    continues. Otherwise, it is called in the next iteration of the event loop.
    """

    def __init__(self, listener: LogListener, index: LogIndex) -> None:
        self.listener = listener
        self._index = index
        self._topic = ""
        self._entries: list[LogEntry] = []
        self._replaced: int | None = None

    def continues(self, record: LogRecord) -> bool:
        """Return whether a record may be reported together with the previous ones."""
        return record.number > 0 and record.topic == self._topic

    def add(self, topic: str, entry: LogEntry, replaced: int | None) -> None:
        """Add an entry to the next report. If others are pending, it is of the same batch."""
        if not self._entries:
            self._topic, self._replaced = topic, replaced
            asyncio.get_running_loop().call_soon(self.report)
        self._entries.append(entry)

    def forgotten(self, topic: str) -> None:
        self._call(topic, lambda: self.listener.forgotten(topic))

    def report(self) -> None:
        if not self._entries:
            return
        topic, replaced = self._topic, self._replaced
        entries, self._entries = self._entries, []
        state = self._index.state(topic)
        assert state is not None
        self._call(topic, lambda: self.listener.appended(topic, entries, state, replaced))

    def _call(self, topic: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            # A bug in the listener must not stop the log.
            logger.exception("the listener failed for the log of %s", topic)


class Appender:
    """Appends records to the stream.

    The follower applies stored records to the index, in which `last` returns the position of a
    topic's last record. `JetStreamLog` calls `accepted` for each record that the index accepts, and
    `ended` after the last append to a topic.
    """

    def __init__(
        self, stream: LogStream, follower: StreamFollower, last: Callable[[str], int]
    ) -> None:
        self._connection = stream.connection
        self._stream = stream
        self._follower = follower
        self._last = last
        self._accepted: dict[str, set[tuple[int, bytes]]] = {}

    def accepted(self, record: LogRecord) -> None:
        self._accepted.setdefault(record.topic, set()).add((record.after, record.digest))

    def ended(self, topic: str) -> None:
        self._accepted.pop(topic, None)

    async def append(
        self, records: Sequence[LogRecord], fragments: Sequence[Fragment | None]
    ) -> bool:
        """Append a batch of records to a log, and return whether it was stored.

        If not, the servers cannot store the batch, and the caller may append its records one at a
        time. The fragment of a reset is None.

        Raises:
            LogMoved: Another node has appended to the log, or deleted it.
            TooLarge: The server does not accept a message of this size.
            StorageError: The records may or may not have been stored.
        """
        messages = [
            self._message(record, fragment)
            for record, fragment in zip(records, fragments, strict=True)
        ]
        async with publication_timeout(self._connection):
            return await self._store(records, messages)

    async def _store(
        self, records: Sequence[LogRecord], messages: Sequence[tuple[bytes, dict[str, str]]]
    ) -> bool:
        subject = self._stream.subject(records[0].topic)
        if len(messages) == 1:
            body, headers = messages[0]
            await self._follow(await self._connection.request(subject, body, headers=headers))
        else:
            # The servers refuse the whole batch unless the predecessor of its first record is
            # still the topic's last record.
            messages[0][1]["Nats-Expected-Last-Subject-Sequence"] = str(records[0].after)
            answer = await self._connection.request_batch(subject, messages)
            try:
                await self._follow(answer)
            except ApiError as error:
                logger.debug("a batch was not stored: %s", error)
                await self._follower.catch_up()  # an unanswered attempt may have succeeded
                if not self._has(records) and self._last(records[0].topic) == records[0].after:
                    return False
        # If a record was sent twice, the index accepts the first one.
        if not self._has(records):
            raise LogMoved(f"another hub has changed the log of {records[0].topic}")
        return True

    def _has(self, records: Sequence[LogRecord]) -> bool:
        """Return whether the index has accepted all of these records."""
        accepted = self._accepted.get(records[0].topic, set())
        return all((record.after, record.digest) in accepted for record in records)

    async def check(self) -> int:
        """Replace the previous check record, and return the position of the new one."""
        headers = headers_of(LogRecord(0, RecordKind.CHECK)) | {"Nats-Rollup": "sub"}
        subject = self._stream.check_subject
        return await self._follow(await self._connection.request(subject, b"", headers=headers))

    async def _follow(self, message: Msg) -> int:
        """Wait until the index has applied an acknowledged record, and return its position."""
        answer: dict[str, Any] = msgspec.json.decode(message.data)
        if (error := answer.get("error")) is not None:
            raise ApiError("to store a record", error)
        position = int(answer["seq"])
        await self._follower.reach(position)
        return position

    def _message(
        self, record: LogRecord, fragment: Fragment | None
    ) -> tuple[bytes, dict[str, str]]:
        """Return the payload and the headers of a record, after checking their size."""
        headers = headers_of(record, None if fragment is None else fragment.content_type)
        body = b"" if fragment is None else fragment.body
        size = sum(len(name) + len(value) + 4 for name, value in headers.items())
        limit = self._connection.client.max_payload
        if size + len(body) + _ENVELOPE_BYTES > limit:
            raise TooLarge(
                f"it has {len(body)} bytes, but NATS accepts {limit} including headers; send "
                "smaller fragments, or increase max_payload of the NATS servers"
            )
        return body, headers


class EntryReader:
    """Reads entries by position, and caches recently read and recently added ones."""

    def __init__(self, stream: LogStream) -> None:
        self._stream = stream
        self._cache: OrderedDict[int, LogEntry] = OrderedDict()
        self._size = 0

    def keep(self, entry: LogEntry) -> None:
        """Cache an entry, evicting the least recently used ones if necessary."""
        size = len(entry.fragment.body)
        if size > CACHE_BYTES // 8 or entry.position in self._cache:
            return
        self._cache[entry.position] = entry
        self._size += size
        while self._size > CACHE_BYTES:
            self._size -= len(self._cache.popitem(last=False)[1].fragment.body)

    async def read(self, expected: Mapping[int, bytes]) -> list[LogEntry]:
        """Return the entries at the given positions, in order. They must have the given digests.

        Entries that another node has already trimmed are omitted.
        """
        reads = (self._entry(position, digest) for position, digest in expected.items())
        found = await asyncio.gather(*reads, return_exceptions=True)
        entries = []
        for entry in found:
            if isinstance(entry, BaseException):
                raise entry
            if entry is not None:
                entries.append(entry)
        return entries

    async def _entry(self, position: int, digest: bytes) -> LogEntry | None:
        entry = self._cache.get(position)
        if entry is not None:
            self._cache.move_to_end(position)
            return entry
        message = await self._stream.get(position)
        if message is None:
            return None
        entry = _checked(message, digest)
        if entry is None:
            raise StorageError(
                f"the record {position} of the log in NATS is not the one that was stored: a "
                "server's copy is damaged or was restored; restart that server with an empty "
                "store_dir"
            )
        self.keep(entry)
        return entry


def _checked(message: StoredMessage, digest: bytes) -> LogEntry | None:
    """Return the entry in a message, or None if it is not the expected entry."""
    record = read_record(message.position, message.headers, message.size)
    if record is None or record.kind in (RecordKind.RESET, RecordKind.CHECK):
        return None
    fragment = read_stored_fragment(record, message.headers, message.body)
    return LogEntry(message.position, fragment) if digest_of(fragment) == digest else None


class Cleaner:
    """Deletes records in the background, until `close`."""

    def __init__(self, stream: LogStream) -> None:
        self._stream = stream
        self._trimmed: dict[str, int] = {}
        self._purges: dict[str, int] = {}
        self._deletions: deque[int] = deque()
        self._wanted = asyncio.Event()
        self._cleaning = asyncio.create_task(self._clean())

    def delete(self, position: int) -> None:
        """Schedule the deletion of a record that was replaced or late."""
        self._deletions.append(position)
        self._wanted.set()

    def trimmed(self, topic: str, entries: int, first: int, *, now: bool = False) -> None:
        """Schedule the deletion of the records before `first`.

        They are kept until there are enough of them, unless `now` is set.
        """
        count = self._trimmed.pop(topic, 0) + entries
        if count >= TRIMMED_TOGETHER or (now and count):
            self._purges[topic] = first
            self._wanted.set()
        elif count:
            self._trimmed[topic] = count

    async def _clean(self) -> None:
        while True:
            await self._wanted.wait()
            await asyncio.sleep(_CLEAN_DELAY_SECONDS)
            self._wanted.clear()
            purges, self._purges = self._purges, {}
            try:
                for topic, first in purges.items():
                    await self._stream.purge(topic, first)
                while self._deletions:
                    await self._stream.delete(self._deletions[0])
                    self._deletions.popleft()
            except StorageError as error:
                logger.info("cannot delete old records of the log, retrying later: %s", error)

    async def close(self) -> None:
        await cancel([self._cleaning])
