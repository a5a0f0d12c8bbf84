"""The log of a multi-node hub: a replicated stream in NATS JetStream.

All records of all logs are in one stream, and the position of a record is its sequence number. Each
node follows the whole stream (`StreamFollower`) and keeps an index of it in memory (`LogIndex`),
which is the same on every node.

The servers only order the records. Each record names its predecessor: the last record of its topic
when it was created. Every index skips a record whose predecessor is no longer the topic's last
record. Therefore a record that is resent after a lost acknowledgement counts only once, and the
records of one append keep their order even if the stream's leader changes in between. If two nodes
append at the same time, one of them has to start over. An append returns as soon as this node's
index contains the record. Nothing depends on a clock.

Fragments that wait together form a *batch*. The servers store a batch at contiguous positions or
not at all, with a single acknowledgement, and only if the predecessor of its first record is still
the topic's last record. Likewise, an index accepts either a whole batch or none of it.

Records that no index contains are deleted from the stream in the background. A deletion may fail or
happen twice. The last entry of a topic is never deleted, because it holds the state of the log.
Single records are deleted in order: a late record can be recognized as late only while the stream
still has the record that came before it, which a later record may replace.
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
from rsnotify_jetstream.connection import ApiError, NatsConnection
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
from rsnotify_jetstream.stream import LogStream, StoredMessage
from rsnotify_jetstream.stream_follower import StreamFollower

log = logging.getLogger("rsnotify.hub.store")

#: Bytes reserved in a message for the lines around the headers and for headers added on sending.
_ENVELOPE = 256
#: Maximum number of records in a batch, and of bytes. NATS accepts 1,000 records.
BATCH_RECORDS, BATCH_BYTES = 250, 1024 * 1024
#: Seconds within which the servers must store a record or batch, or answer a read that a
#: publication waits for. Without a majority they do neither, and a publisher may resend
#: everything that was not acknowledged.
APPEND_SECONDS = 1.8
#: Number of trimmed entries of a log that are deleted together.
TRIMMED_TOGETHER = 32
#: Seconds that a deletion waits, so that later ones can join it.
_DELAY = 0.5
#: Maximum number of bytes of all cached bodies.
CACHE_BYTES = 16 * 1024 * 1024


class JetStreamLog:
    """A `LogStore` in NATS JetStream, for any number of nodes.

    The connection is open, and the caller closes it after the log. `cleans` returns whether this
    node deletes the trimmed records of a topic that nobody appends to. Exactly one node of the
    cluster should.
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
    def behind(self) -> int:
        """A lower bound on the number of records in the stream that this node does not have yet."""
        return self._follower.behind

    @property
    def info(self) -> dict[str, Any]:
        """The latest information on the stream from its leader."""
        return self._follower.info

    def trouble(self) -> str | None:
        """Return the reason why this node cannot use the log at the moment, or None if it can."""
        if self.connection.server is None:
            return "this node has lost its connection to NATS, and connects again"
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
            self.connection.warn(log, "the log in NATS has messages that are not of a hub")
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
            # Every node does this, so that it precedes a deletion of the record that made this one
            # late.
            self._cleaner.delete(record.position)
        # A node that starts also deletes records that the appending node failed to delete.
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
                        # An unanswered attempt may still store the whole batch, even now.
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
        """Return the fragments that the log does not have yet, each once."""
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
        """Append fragments together. Return False if the servers only store them one at a time."""
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
            async with in_time(self.connection) if len(positions) == 1 else nullcontext():
                entries = await self._reader.read(self._expected(topic, positions))
            if entries:
                return entries
            after = positions[-1]  # another node has trimmed all of them
        return []

    async def changes(self, topic: str, *, since: Instant | None) -> list[LogEntry]:
        self._follower.check()
        positions = self._index.changes(topic, since=since)
        async with in_time(self.connection):  # a publication may be waiting for it
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
        """Check that the log can be written and followed. Return the test record's position."""
        self._follower.check()
        return await self._appender.check()

    async def close(self) -> None:
        await self._cleaner.close()
        await self._follower.close()
        self._report_now()


@asynccontextmanager
async def in_time(connection: NatsConnection) -> AsyncIterator[None]:
    """Run a step that a publication waits for. Raise `StorageError` if it takes too long."""
    try:
        async with asyncio.timeout(APPEND_SECONDS):
            yield
    except TimeoutError:
        raise StorageError(
            f"NATS at {connection.settings.place} does not answer in time: are most of its servers "
            "running?"
        ) from None


def batches(fragments: Iterable[Fragment]) -> Iterator[list[Fragment]]:
    """Divide fragments into batches.

    A fragment with the whole content is a batch by itself, because the next one replaces it.
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
    """Return the position before which records are deleted, keeping at least the last record."""
    return min(state.first, state.position)


class Reporter:
    """Reports changes of the index to a listener, with all entries of a batch in one call.

    `report` is called before a record that is not part of the same batch is applied, and before a
    caller of the log continues. Otherwise it runs in the next iteration of the event loop.
    """

    def __init__(self, listener: LogListener, index: LogIndex) -> None:
        self.listener = listener
        self._index = index
        self._topic = ""
        self._entries: list[LogEntry] = []
        self._replaced: int | None = None

    def continues(self, record: LogRecord) -> bool:
        """Return whether the next record may be reported together with the previous ones."""
        return record.number > 0 and record.topic == self._topic

    def add(self, topic: str, entry: LogEntry, replaced: int | None) -> None:
        """Add an entry to the next report. It continues a batch if there are pending entries."""
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
            log.exception("the log of %s could not be passed on", topic)


class Appender:
    """Appends records to the stream.

    The follower applies stored records to the index. `last` returns the position of a topic's last
    record in it. `JetStreamLog` calls `accepted` for each record that the index accepts, and
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
        """Append all records to a log, or none of them, and return whether they were stored.

        If they were not, the servers cannot store them together, and the caller may append them one
        at a time. All records but the first continue its batch. The fragment of a reset is None.

        Raises:
            LogMoved: Another node has appended to the log, or deleted it.
            TooLarge: The server does not accept a message of this size.
            StorageError: It is unknown whether the records were stored.
        """
        messages = [
            self._message(record, fragment)
            for record, fragment in zip(records, fragments, strict=True)
        ]
        async with in_time(self._connection):
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
                log.debug("a batch was not stored: %s", error)
                await self._follower.catch_up()  # an unanswered attempt may have succeeded
                if not self._has(records) and self._last(records[0].topic) == records[0].after:
                    return False
        # If a record was sent twice, the first one counts.
        if not self._has(records):
            raise LogMoved(f"another hub has changed the log of {records[0].topic}")
        return True

    def _has(self, records: Sequence[LogRecord]) -> bool:
        """Return whether the index has accepted all of these records."""
        accepted = self._accepted.get(records[0].topic, set())
        return all((record.after, record.digest) in accepted for record in records)

    async def check(self) -> int:
        """Store an empty record in place of the previous one, and return its position."""
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
        if size + len(body) + _ENVELOPE > limit:
            raise TooLarge(
                f"it has {len(body)} bytes, and NATS accepts {limit} with the headers; send "
                "smaller fragments, or set max_payload in the configuration of the NATS servers"
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
        """Return the entries at some positions, which must have the given digests, in order.

        An entry that another node has already trimmed is left out.
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
                f"the record {position} of the log in NATS is not the one that was stored: the "
                "copy of one of its servers is damaged, or was restored; start that server with an "
                "empty store_dir"
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
        """Schedule the deletion of a record that was replaced or came too late."""
        self._deletions.append(position)
        self._wanted.set()

    def trimmed(self, topic: str, entries: int, first: int, *, now: bool = False) -> None:
        """Schedule the deletion of the records before `first`.

        They stay until enough records have been trimmed, unless `now` is set.
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
            await asyncio.sleep(_DELAY)
            self._wanted.clear()
            purges, self._purges = self._purges, {}
            try:
                for topic, first in purges.items():
                    await self._stream.purge(topic, first)
                while self._deletions:
                    await self._stream.delete(self._deletions[0])
                    self._deletions.popleft()
            except StorageError as error:
                log.info("old records of the log stay in NATS for now: %s", error)

    async def close(self) -> None:
        await cancel([self._cleaning])
