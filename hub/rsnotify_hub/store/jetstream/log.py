"""The log of a hub of many nodes: a replicated stream of NATS JetStream.

Theory of operation. All records of all logs are in one stream, and the position of a record is its
sequence number. Each node follows the whole stream (`StreamFollower`), and keeps an index of it in
memory (`LogIndex`), which is the same on every node. An append succeeds if the log is still as the
index knows it: each record names the last one from which it was planned, and every index skips a
record that came too late. It returns once the index of this node has the record. So the stream
alone decides the order, and no clock does.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rsnotify.format.datetimes import Instant, to_microseconds
from rsnotify_hub.fragments.fragment import Fragment
from rsnotify_hub.store.interface import (
    Appended,
    Backlog,
    LogEntry,
    LogListener,
    LogMoved,
    LogRetention,
    LogState,
)
from rsnotify_hub.store.jetstream.appending import Appender
from rsnotify_hub.store.jetstream.bodies import EntryReader
from rsnotify_hub.store.jetstream.cleaning import Cleaner
from rsnotify_hub.store.jetstream.connection import NatsConnection
from rsnotify_hub.store.jetstream.copies import StoredMessage
from rsnotify_hub.store.jetstream.follower import StreamFollower
from rsnotify_hub.store.jetstream.index import Applied, LogIndex
from rsnotify_hub.store.jetstream.records import (
    LogRecord,
    RecordKind,
    digest_of,
    read_record,
    read_stored_fragment,
    record_of,
)
from rsnotify_hub.store.jetstream.stream import LogStream

log = logging.getLogger("rsnotify.hub.store")


class JetStreamLog:
    """A `LogStore` in NATS JetStream, for any number of nodes.

    Args:
        connection: An open connection; the caller closes it after the log.
        retention: How much of each log is kept.
        clock: Returns the current instant.
        cleans: Returns whether this node deletes what is trimmed of a topic that nobody appends
            to; one node of the cluster should.

    Attributes:
        connection: The connection.
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
        self._stream = LogStream(connection)
        self._index = LogIndex(retention)
        self._follower = StreamFollower(connection, self._stream, self._apply)
        self._appender = Appender(connection, self._stream, self._follower)
        self._reader = EntryReader(self._stream)
        self._cleaner = Cleaner(self._stream)
        self._listener: LogListener | None = None
        self._appending = Counter[str]()

    @property
    def stream(self) -> LogStream:
        """The stream of the log."""
        return self._stream

    @property
    def position(self) -> int:
        """The position up to which this node has followed the stream."""
        return self._follower.position

    @property
    def behind(self) -> int:
        """How many records of the stream this node does not have yet, at least."""
        return self._follower.behind

    @property
    def info(self) -> dict[str, Any]:
        """What the leader of the stream last said of it."""
        return self._follower.info

    def trouble(self) -> str | None:
        """Return why this node cannot use the log at the moment; None if it can."""
        if self.connection.server is None:
            return "this node has lost its connection to NATS, and connects again"
        return self._follower.trouble()

    async def start(self, listener: LogListener) -> list[LogState]:
        states: list[LogState] = []

        def loaded() -> None:
            self._listener = listener
            states.extend(self._index.states())

        await self._stream.prepare()
        await self._follower.start(loaded)
        return states

    def _apply(self, message: StoredMessage) -> None:
        """Apply a message of the stream to the index, and notify the listener."""
        record = read_record(message.position, message.headers, message.size)
        if record is None:
            log.warning("message %d of the log in NATS is not of a hub", message.position)
            return
        applied = self._index.apply(record)
        if record.topic in self._appending and applied.accepted:
            self._appender.accepted(record)
        if self._listener is not None:
            self._notify(self._listener, message, record, applied)
        if not applied.accepted:
            # On every node, so that it precedes a deletion of the record that made this one late.
            self._cleaner.delete(record.position)
        # What the node that appended it did not delete is deleted when another one starts.
        elif self._listener is None or record.topic in self._appending:
            self._clean(record, applied)

    def _notify(
        self, listener: LogListener, message: StoredMessage, record: LogRecord, applied: Applied
    ) -> None:
        try:
            if applied.forgotten:
                listener.forgotten(record.topic)
            if applied.state is not None:
                fragment = read_stored_fragment(record, message.headers, message.body)
                entry = LogEntry(record.position, fragment)
                self._reader.keep(entry)
                listener.appended(record.topic, (entry,), applied.state, applied.replaced)
        except Exception:
            # A bug there must not stop the log.
            log.exception("an entry of the log of %s could not be passed on", record.topic)

    def _clean(self, record: LogRecord, applied: Applied) -> None:
        if applied.replaced is not None:
            self._cleaner.delete(applied.replaced)
        if applied.trimmed and applied.state is not None:
            self._cleaner.trimmed(record.topic, applied.trimmed, _first(applied.state))
        if record.kind is RecordKind.RESET:
            self._cleaner.trimmed(record.topic, 1, record.position, now=True)

    async def append(
        self, topic: str, fragments: Sequence[Fragment], *, after: int, replacing: int | None
    ) -> Appended:
        state = self._index.state(topic)
        if (state.position if state else 0) != after:
            raise LogMoved(f"the log of {topic} has moved on")
        new = self._new(topic, fragments, replacing)
        if not new:
            return self._trimmed(topic)
        entries: list[LogEntry] = []
        with self._queue(topic):
            for number in sorted(new):
                position = await self._append(topic, fragments[number], replacing)
                entries.append(LogEntry(position, fragments[number]))
                replacing = None
        changed = self._index.state(topic)
        if changed is None:
            raise LogMoved(f"another hub has deleted the log of {topic}")
        return Appended(entries, changed)

    def _trimmed(self, topic: str) -> Appended:
        """Trim a log to which nothing is appended, since it has everything."""
        self._index.trim(topic, self._clock())
        state = self._index.state(topic)
        assert state is not None
        assert self._listener is not None
        self._listener.appended(topic, (), state, None)
        return Appended([], state)

    def _new(self, topic: str, fragments: Sequence[Fragment], replacing: int | None) -> set[int]:
        """Return the numbers of the fragments that the log does not have yet."""
        new: dict[bytes, int] = {}
        for number, fragment in enumerate(fragments):
            digest = digest_of(fragment)
            if self._index.find(topic, digest) in (None, replacing):
                new.setdefault(digest, number)
        return set(new.values())

    async def _append(self, topic: str, fragment: Fragment, replacing: int | None) -> int:
        state = self._index.state(topic)
        record = record_of(
            topic,
            fragment,
            received=self._clock(),
            through=state.through if state else None,
            place=self._index.place(topic, replacing),
        )
        return await self._appender.append(record, fragment)

    async def forget(self, topic: str, *, after: int) -> None:
        state = self._index.state(topic)
        if state is None or state.position != after:
            raise LogMoved(f"the log of {topic} has moved on")
        received = to_microseconds(self._clock())
        with self._queue(topic):
            await self._appender.reset(
                LogRecord(0, RecordKind.RESET, topic, received=received, after=after)
            )

    @contextmanager
    def _queue(self, topic: str) -> Iterator[None]:
        self._appending[topic] += 1
        try:
            yield
        finally:
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
            if entries := await self._reader.read(self._expected(topic, positions)):
                return entries
            after = positions[-1]  # another node has trimmed all of them
        return []

    async def changes(self, topic: str, *, since: Instant | None) -> list[LogEntry]:
        self._follower.check()
        positions = self._index.changes(topic, since=since)
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
        """Return how far the stream has come: at least to a position, unless that is past its end.

        Raises:
            StorageError: It is unknown.
        """
        if position > self.position:
            await self.catch_up()
        return self.position

    async def catch_up(self) -> None:
        """Wait until this node has applied all that is in the stream by now."""
        await self._follower.catch_up()

    def queued(self) -> int:
        return self._appending.total()

    async def check(self) -> None:
        self._follower.check()
        await self._appender.check()

    async def close(self) -> None:
        """Stop to follow the stream, and finish deletions."""
        await self._cleaner.close()
        await self._follower.close()


def _first(state: LogState) -> int:
    """Return the position before which records are deleted; the last one always stays."""
    return min(state.first, state.position)
