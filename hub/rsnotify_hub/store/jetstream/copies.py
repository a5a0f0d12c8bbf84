"""Reads a stream from several of its copies at once, and passes on what they agree on.

Theory of operation. Each server reads its own copy of a stream, and a copy may be wrong: with NATS
2.9.10 that of a leader which was suspended for some seconds. So a majority of the copies is read
side by side. Where two of them have another record at one position, it is read from all servers,
and the copies that differ from the majority are left out. A record that only some copies have is
passed on: the others have deleted it already, or lack it. So a wrong record is not noticed where
all other copies that are read have deleted theirs.

What follows the end of the shortest copy is not read here. A stream with one copy is read as it is.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Collection, Iterable
from contextlib import AsyncExitStack, suppress
from typing import Any

from msgspec import Struct
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription

from rsnotify.errors import StorageError
from rsnotify_hub.store.jetstream.connection import NatsConnection

log = logging.getLogger("rsnotify.hub.store")

#: Records per request of a reader, without and with their payloads.
_BATCH_HEADERS, _BATCH_BODIES = 2_000, 64
#: Seconds without a record after which a reader gives up, and the server deletes it.
_READER_SECONDS = 5.0
#: How many consumers are created until one is on the wanted server; the servers choose at random.
_ATTEMPTS = 60
_NANOSECONDS = 1_000_000_000


class StoredMessage(Struct, frozen=True):
    """A message of the stream.

    Args:
        position: Its sequence number.
        headers: Its headers.
        body: Its payload; empty if only the headers were read.
        size: The bytes of its payload.
    """

    position: int
    headers: dict[str, str]
    body: bytes
    size: int


class ScanRange(Struct, frozen=True):
    """What is read.

    Args:
        stream: The name of the stream.
        position: The first position.
        bodies: Whether to read the payloads, too.
        subjects: Only the messages of these subjects; None for all.
    """

    stream: str
    position: int
    bodies: bool
    subjects: str | None = None


class _Differ(Exception):
    """Two copies have another record at a position."""

    def __init__(self, position: int) -> None:
        self.position = position


class _CopyReader:
    """Reads the copy of one server.

    Attributes:
        server: The name of the server; empty if there is only one.
        head: The next message; None at the end of the copy.
    """

    def __init__(self, connection: NatsConnection, range: ScanRange) -> None:
        self._connection = connection
        self._client = connection.client
        self._range = range
        self._batch = _BATCH_BODIES if range.bodies else _BATCH_HEADERS
        self._expected = 0
        self._is_last = False
        self.server = ""
        self.head: StoredMessage | None = None

    async def open(self, servers: Collection[str]) -> None:
        """Open the copy of one of some servers; whichever, if there are none."""
        for _ in range(_ATTEMPTS):
            answer = await self._connection.api(
                f"CONSUMER.CREATE.{self._range.stream}",
                {"stream_name": self._range.stream, "config": self._settings()},
                what="a reader of the log",
            )
            self._consumer = str(answer["name"])
            self.server = str((answer.get("cluster") or {}).get("leader", ""))
            if not servers or self.server in servers:
                break
            await self._delete()
        else:
            raise StorageError(f"NATS reads no copy of {self._range.stream} on {_named(servers)}")
        self._inbox = self._client.new_inbox()
        self._subscription: NatsSubscription = await self._client.subscribe(
            self._inbox, pending_bytes_limit=0, pending_msgs_limit=0
        )

    def _settings(self) -> dict[str, Any]:
        settings = {
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self._range.position,
            "ack_policy": "none",
            "replay_policy": "instant",
            "headers_only": not self._range.bodies,
            "inactive_threshold": int(4 * _READER_SECONDS * _NANOSECONDS),
            "mem_storage": True,
            "num_replicas": 1,
        }
        if self._range.subjects is not None:
            settings["filter_subject"] = self._range.subjects
        return settings

    async def advance(self) -> None:
        """Read the next message.

        Raises:
            StorageError: The server stopped.
        """
        self.head = None
        if self._is_last:
            return
        if not self._expected:
            pull = f"$JS.API.CONSUMER.MSG.NEXT.{self._range.stream}.{self._consumer}"
            request = b'{"batch":%d,"no_wait":true}' % self._batch
            await self._client.publish(pull, request, reply=self._inbox)
            self._expected = self._batch
        try:
            message = await self._subscription.next_msg(_READER_SECONDS)
        except Exception:  # the library raises many
            raise StorageError("NATS stopped in the middle of the log") from None
        self._expected -= 1
        found = _from_consumer(message)
        if found is None:
            self._is_last = True  # no message is left
        else:
            self.head, left = found
            self._is_last = left == 0

    async def _delete(self) -> None:
        name = f"{self._range.stream}.{self._consumer}"
        await self._client.publish(f"$JS.API.CONSUMER.DELETE.{name}")

    async def close(self) -> None:
        await self._subscription.unsubscribe()
        await self._delete()


class CopyScan:
    """Reads the copies of a stream.

    Args:
        connection: The connection.
        info: What the leader says of the stream.
    """

    def __init__(self, connection: NatsConnection, info: dict[str, Any]) -> None:
        self._connection = connection
        copies = int(info["config"]["num_replicas"])
        self._majority = copies // 2 + 1
        cluster = info.get("cluster") or {}
        replicas = cluster.get("replicas") or []
        self._servers = {each["name"] for each in replicas if not each.get("offline")}
        if copies > 1:
            self._servers.add(cluster.get("leader", ""))

    async def read(self, wanted: ScanRange) -> AsyncGenerator[StoredMessage, None]:
        """Yield the messages that a majority of the copies has.

        Raises:
            StorageError: A server stopped, or no majority agrees; what was yielded is right.
        """
        position = wanted.position
        while True:
            try:
                async with AsyncExitStack() as stack:
                    readers = await self._open(stack, wanted, position)
                    while (message := await _agreed(readers)) is not None:
                        yield message
                        position = message.position + 1
                    return
            except _Differ as different:
                await self._leave_out(wanted, different.position)

    async def _open(
        self, stack: AsyncExitStack, wanted: ScanRange, position: int
    ) -> list[_CopyReader]:
        """Open a majority of the copies, each at its first message."""
        readers: list[_CopyReader] = []
        for _ in range(self._majority):
            servers = self._servers - {each.server for each in readers}
            if self._majority > 1 and not servers:
                raise StorageError(
                    f"less than a majority of the copies of {wanted.stream} can be read: start "
                    "the other NATS servers"
                )
            readers.append(await self._open_one(stack, wanted, position, servers))
        return readers

    async def _open_one(
        self, stack: AsyncExitStack, wanted: ScanRange, position: int, servers: Collection[str]
    ) -> _CopyReader:
        at = ScanRange(wanted.stream, position, wanted.bodies, wanted.subjects)
        reader = _CopyReader(self._connection, at)
        await reader.open(servers)
        stack.push_async_callback(reader.close)
        await reader.advance()
        return reader

    async def _leave_out(self, wanted: ScanRange, position: int) -> None:
        """Leave out the copies whose record at a position is not that of a majority."""
        found: list[tuple[str, StoredMessage]] = []
        for server in sorted(self._servers):
            with suppress(StorageError):  # it may have stopped
                async with AsyncExitStack() as stack:
                    reader = await self._open_one(stack, wanted, position, {server})
                    if reader.head is not None and reader.head.position == position:
                        found.append((server, reader.head))
        right = [
            message
            for _, message in found
            if sum(message == other for _, other in found) >= self._majority
        ]
        if not right:
            raise StorageError(
                f"the copies of the stream {wanted.stream} differ from record {position} on, and "
                f"of {_named(server for server, _ in found)} no majority agrees: start the other "
                "NATS servers, or remove those with wrong copies"
            )
        wrong = {server for server, message in found if message != right[0]}
        log.error(
            "the copy of the stream %s on the NATS server %s is wrong from record %d on: remove "
            "its copy with `nats stream cluster peer-remove`, and upgrade NATS",
            wanted.stream,
            _named(wrong),
            position,
        )
        self._servers -= wrong


async def _agreed(readers: list[_CopyReader]) -> StoredMessage | None:
    """Return the next message of some copies; None at the end of the shortest."""
    heads = [reader.head for reader in readers if reader.head is not None]
    if len(heads) < len(readers):
        return None
    first = min(heads, key=lambda head: head.position)
    for reader in readers:
        if reader.head is not None and reader.head.position == first.position:
            if reader.head != first:
                raise _Differ(first.position)
            await reader.advance()
    return first


def _from_consumer(message: Msg) -> tuple[StoredMessage, int] | None:
    """Return a message that a consumer delivered, and how many it has left; None for a status."""
    parts = message.reply.split(".")
    if len(parts) < 9:
        return None
    # With the domain and the account in front, the subject has two parts more, and one at its end.
    at = 5 if len(parts) == 9 else 7
    headers = message.headers or {}
    size = int(headers.get("Nats-Msg-Size", len(message.data)))
    stored = StoredMessage(int(parts[at]), headers, message.data, size)
    return stored, int(parts[at + 3])


def _named(servers: Iterable[str]) -> str:
    return ", ".join(sorted(servers))
