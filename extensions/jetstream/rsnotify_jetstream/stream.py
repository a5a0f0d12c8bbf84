"""Streams in JetStream, as that of the log: their settings, and reading from them.

Reads a stream from several of its copies at once, and passes on what they agree on.

Theory of operation. Each server reads its own copy of a stream, and a copy may be wrong: with NATS
2.9.10 that of a leader which was suspended for some seconds. So a majority of the copies is read
side by side. Where two of them have another record at one position, it is read from all servers,
and the copies that differ from the majority are left out. A record that only some copies have is
passed on: the others have deleted it already, or lack it. So a wrong record is not noticed where
all other copies that are read have deleted theirs.

What follows the end of the shortest copy is not read here. A stream with one copy is read as it is.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncGenerator, Collection, Iterable
from contextlib import AsyncExitStack, aclosing, suppress
from typing import Any

import msgspec
from msgspec import Struct
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription

from rsnotify.errors import ConfigurationError, StorageError
from rsnotify.format.datetimes import Instant, parse_datetime
from rsnotify_jetstream.connection import PATIENCE, ApiError, NatsConnection
from rsnotify_jetstream.log_records import topic_token

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


#: How long the server remembers `Nats-Msg-Id`, in seconds.
_DUPLICATES_SECONDS = 120
#: Seconds that a cluster may take until it can place a stream.
_START_SECONDS = 10.0
#: Seconds between requests to a leader that lacks what the stream has.
_RETRY_SECONDS = 0.1

NO_STREAM = 10059
_NO_MESSAGE, _NOT_CLUSTERED, _NO_PEERS = 10037, 10074, 10005
_NO_RESOURCES = 10023
_DELETE_FAILED = 10057


class JetStreamStream:
    """A stream: its settings, and reading from it.

    Args:
        connection: The connection.
        name: The name of the stream.
        subjects: The subjects of its messages, with a wildcard at the end.
        live: The subjects at which the servers republish each stored message, likewise.
    """

    def __init__(self, connection: NatsConnection, name: str, subjects: str, live: str) -> None:
        self._connection = connection
        self._subjects = subjects
        self.name = name
        self.live = live

    async def prepare(self) -> None:
        """Create the stream, or update its settings.

        Raises:
            ConfigurationError: The servers cannot have such a stream.
            StorageError: They do not answer.
        """
        try:
            info = await self.info()
        except ApiError as error:
            if error.code != NO_STREAM:
                raise self._unusable(error) from None
            await self._write("CREATE", self._settings(self._replicas(None)))
            return
        found = info["config"]
        wanted = found | self._settings(self._replicas(found["num_replicas"]))
        if wanted != found:
            await self._write("UPDATE", wanted)

    def _replicas(self, found: int | None) -> int:
        wanted = self._connection.settings.replicas or found
        if wanted is not None:
            return wanted
        return 3 if self._connection.client._server_info.get("cluster") else 1

    def _settings(self, replicas: int) -> dict[str, Any]:
        return {
            "name": self.name,
            "subjects": [self._subjects],
            "storage": "file",
            "num_replicas": replicas,
            "retention": "limits",
            "discard": "new",
            "duplicate_window": _DUPLICATES_SECONDS * _NANOSECONDS,
            "allow_direct": True,
            "allow_rollup_hdrs": True,
            "deny_delete": False,
            "deny_purge": False,
            "republish": {"src": self._republished, "dest": self.live},
        }

    @property
    def _republished(self) -> str:
        return self._subjects

    async def _write(self, action: str, settings: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + _START_SECONDS
        while True:
            try:
                await self._connection.api(
                    f"STREAM.{action}.{self.name}", settings, what=f"the stream {self.name}"
                )
                return
            except ApiError as error:
                # Servers that have just started do not know each other yet.
                if error.code not in (_NO_PEERS, _NO_RESOURCES) or loop.time() > end:
                    raise self._unusable(error) from None
            await asyncio.sleep(0.2)

    def _unusable(self, error: ApiError) -> ConfigurationError:
        place = self._connection.settings.place
        advice = "see `nats stream info` and the log of the server"
        if error.code in (_NOT_CLUSTERED, _NO_PEERS, _NO_RESOURCES):
            advice = (
                "start as many servers with JetStream as it has replicas, or set fewer, as in "
                "?replicas=1 at the end of the URL"
            )
        elif error.status == 503:
            advice = "enable JetStream in the configuration of the servers: jetstream {}"
        return ConfigurationError(
            f"NATS at {place} cannot have the stream {self.name}: {error.description}; {advice}"
        )

    async def info(self) -> dict[str, Any]:
        """Return what the leader of the stream says of it."""
        return await self._connection.api(
            f"STREAM.INFO.{self.name}", what=f"information on the stream {self.name}"
        )

    async def next(self, position: int, *, through: int) -> StoredMessage | None:
        """Return the first message at a position or later.

        Args:
            position: The position.
            through: A position that the stream has reached.

        Returns:
            The message; None if those up to `through` were deleted, and there is none later.
        """
        return await self._find({"seq": position, "next_by_subj": self._subjects}, through)

    async def _find(self, which: dict[str, Any], through: int) -> StoredMessage | None:
        """Return a message as the leader of the stream knows it; None if it was deleted.

        A leader that has just been elected may lack what a majority has stored. So what it does not
        find was deleted only if it has reached a later position, and has led all the time.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + PATIENCE
        while loop.time() < end:
            before = await self.info()
            if (found := await self._get(which)) is not None:
                return found
            after = await self.info()
            if int(before["state"]["last_seq"]) >= through and _leader(before) == _leader(after):
                return None
            await asyncio.sleep(_RETRY_SECONDS)
        raise StorageError(
            f"the stream {self.name} in NATS lacks what it has stored; see `nats stream info`"
        )

    async def _get(self, which: dict[str, Any]) -> StoredMessage | None:
        """Return a message as the leader of the stream knows it."""
        try:
            answer = await self._connection.api(
                f"STREAM.MSG.GET.{self.name}", which, what="a record of the log"
            )
        except ApiError as error:
            if error.code == _NO_MESSAGE:
                return None
            raise
        message = answer["message"]
        body = base64.b64decode(message.get("data", ""))
        headers = parse_headers(base64.b64decode(message.get("hdrs", "")))
        return StoredMessage(message["seq"], headers, body, len(body))

    async def scan(
        self, position: int, *, bodies: bool, subjects: str | None = None
    ) -> AsyncGenerator[StoredMessage, None]:
        """Yield the messages from a position on, as a majority of the copies has them (`CopyScan`).

        Some copies may lack the last ones; they are left out.

        Args:
            position: The first position.
            bodies: Whether to read the payloads, too.
            subjects: Only the messages of these subjects.

        Raises:
            StorageError: A server stopped in between, or no majority agrees; what was yielded is
                without a gap.
        """
        copies = CopyScan(self._connection, await self.info())
        wanted = ScanRange(self.name, position, bodies, subjects)
        async with aclosing(copies.read(wanted)) as messages:
            async for message in messages:
                yield message


class LogStream(JetStreamStream):
    """The stream with the log.

    Args:
        connection: The connection.
    """

    def __init__(self, connection: NatsConnection) -> None:
        self._prefix = prefix = connection.settings.prefix
        super().__init__(connection, f"{prefix}-log", f"{prefix}.log.*", f"{prefix}.live.>")
        self.check_subject = f"{prefix}.log.check"

    @property
    def _republished(self) -> str:
        return f"{self._prefix}.log.>"

    def subject(self, topic: str) -> str:
        return f"{self._prefix}.log.{topic_token(topic)}"

    async def time_of_check(self) -> Instant:
        """Return when the last check was stored, by the clock of the leader of the stream."""
        answer = await self._connection.api(
            f"STREAM.MSG.GET.{self.name}",
            {"last_by_subj": self.check_subject},
            what="the record of the check",
        )
        return parse_datetime(answer["message"]["time"])

    async def get(self, position: int) -> StoredMessage | None:
        """Return the message at a position; None if it was deleted.

        Any server with a copy answers; if it does not have the message yet, the leader.
        """
        answer = await self._connection.request(
            f"$JS.API.DIRECT.GET.{self.name}", msgspec.json.encode({"seq": position})
        )
        headers = answer.headers or {}
        if headers.get("Nats-Sequence") == str(position):
            return StoredMessage(position, headers, answer.data, len(answer.data))
        return await self.get_from_leader(position)

    async def get_from_leader(self, position: int) -> StoredMessage | None:
        """Return the message at a position as the leader has it; None if it was deleted."""
        return await self._find({"seq": position}, position)

    async def delete(self, position: int) -> None:
        """Delete a message."""
        try:
            await self._connection.api(
                f"STREAM.MSG.DELETE.{self.name}",
                {"seq": position, "no_erase": True},
                what="the deletion of a record",
            )
        except ApiError as error:
            if error.code not in (_NO_MESSAGE, _DELETE_FAILED):
                raise

    async def purge(self, topic: str, before: int) -> None:
        """Delete the messages of a topic before a position."""
        await self._connection.api(
            f"STREAM.PURGE.{self.name}",
            {"filter": self.subject(topic), "seq": before},
            what="the deletion of old records",
        )


def _leader(info: dict[str, Any]) -> str | None:
    return (info.get("cluster") or {}).get("leader")


def parse_headers(raw: bytes) -> dict[str, str]:
    """Read the headers of a message as they are stored."""
    headers = {}
    for line in raw.decode("ascii", "replace").split("\r\n")[1:]:
        name, separator, value = line.partition(":")
        if separator:
            headers[name.strip()] = value.strip()
    return headers
