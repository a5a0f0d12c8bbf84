"""A hub's streams in JetStream: their settings, and how to read them.

Any server with a copy of a stream may answer `scan` and `LogStream.get`. Its copy may lack the last
messages, but has all earlier ones, so readers request the rest from the leader (`next`).
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from msgspec import Struct
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription

from rsnotify.errors import ConfigurationError, StorageError
from rsnotify.format.datetimes import Instant, parse_datetime
from rsnotify_jetstream.log_records import topic_token
from rsnotify_jetstream.nats_connection import (
    REQUEST_TIMEOUT_SECONDS,
    ApiError,
    NatsConnection,
    parse_headers,
)

#: Number of records to request at a time, without and with payloads.
_BATCH_HEADERS, _BATCH_BODIES = 2_000, 64
#: Seconds without a record after which a reader gives up. The server deletes the consumer after
#: four times as long.
_READER_SECONDS = 5.0
_NANOSECONDS = 1_000_000_000


class StoredMessage(Struct, frozen=True):
    """A message in a stream. Its position is its sequence number.

    If only the headers were read, `body` is empty, but `size` is still the size of the payload.
    """

    position: int
    headers: dict[str, str]
    body: bytes
    size: int


def sent_message(message: Msg) -> StoredMessage:
    """Convert a message from a server. The position is 0 if it is not a stored message."""
    headers = message.headers or {}
    position = int(headers.get("Nats-Sequence", 0))
    return StoredMessage(position, headers, message.data, len(message.data))


#: Seconds that the server remembers a `Nats-Msg-Id`.
_DUPLICATES_SECONDS = 120
#: Seconds to wait until a starting cluster can place a stream.
_START_SECONDS = 10.0
#: Seconds between requests to a leader that lacks stored messages.
_RETRY_SECONDS = 0.1

NO_STREAM = 10059
_NO_MESSAGE, _NOT_CLUSTERED, _NO_PEERS = 10037, 10074, 10005
_NO_RESOURCES = 10023
_DELETE_FAILED = 10057


class JetStreamStream:
    """A stream in JetStream.

    `subjects` are the subjects of its messages. The servers republish each stored message under
    `live`. Both end with a wildcard.
    """

    def __init__(self, connection: NatsConnection, name: str, subjects: str, live: str) -> None:
        self.connection = connection
        self._subjects = subjects
        self.name = name
        self.live = live

    async def prepare(self) -> None:
        """Create the stream, or update its settings.

        Raises:
            ConfigurationError: The servers cannot provide such a stream.
            StorageError: The servers do not answer.
        """
        try:
            info = await self.info()
        except ApiError as error:
            if error.code != NO_STREAM:
                raise self._unusable(error) from None
            await self._write("CREATE", self._settings(self._replicas(None)))
            return
        found = info["config"]
        if found.get("subjects") != [self._subjects] or not found.get("republish"):
            raise ConfigurationError(
                f"NATS at {self.connection.settings.place} has a stream {self.name} of another "
                "program: add ?prefix=NAME to the URL, or use another account"
            )
        wanted = found | self._settings(self._replicas(found["num_replicas"]))
        if wanted != found:
            await self._write("UPDATE", wanted)

    def _replicas(self, found: int | None) -> int:
        wanted = self.connection.settings.replicas or found
        if wanted is not None:
            return wanted
        return 3 if self.connection.client._server_info.get("cluster") else 1

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
            "republish": {"src": self._subjects, "dest": self.live},
        }

    async def _write(self, action: str, settings: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + _START_SECONDS
        while True:
            try:
                await self.connection.api(
                    f"STREAM.{action}.{self.name}", settings, what=f"the stream {self.name}"
                )
                return
            except ApiError as error:
                # Newly started servers do not know each other yet.
                if error.code not in (_NO_PEERS, _NO_RESOURCES) or loop.time() > end:
                    raise self._unusable(error) from None
            await asyncio.sleep(0.2)

    def _unusable(self, error: ApiError) -> ConfigurationError:
        place = self.connection.settings.place
        advice = "see `nats stream info` and the log of the server"
        if error.code in (_NOT_CLUSTERED, _NO_PEERS, _NO_RESOURCES):
            advice = (
                "start as many servers with JetStream as it has replicas, or set fewer replicas, "
                "for example ?replicas=1 at the end of the URL"
            )
        elif error.status == 503:
            advice = "enable JetStream in the configuration of the servers: jetstream {}"
        return ConfigurationError(
            f"NATS at {place} cannot provide the stream {self.name}: {error.description}; {advice}"
        )

    async def info(self) -> dict[str, Any]:
        """Return the leader's information on the stream."""
        return await self.connection.api(
            f"STREAM.INFO.{self.name}", what=f"information on the stream {self.name}"
        )

    async def next(self, position: int, *, through: int) -> StoredMessage | None:
        """Return the first message at a position or later.

        Return None if all messages from there to `through` were deleted, and there is no later one.
        The stream must have reached `through`.
        """
        return await self._find({"seq": position, "next_by_subj": self._subjects}, through)

    async def _find(self, which: dict[str, Any], through: int) -> StoredMessage | None:
        """Return a message from the stream's leader, or None if the message was deleted.

        A newly elected leader may lack messages that a majority has stored. Therefore a message is
        only known to be deleted if the leader had already reached the position `through`, and the
        leader has not changed.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + REQUEST_TIMEOUT_SECONDS
        while loop.time() < end:
            before = await self.info()
            if (found := await self._get(which)) is not None:
                return found
            after = await self.info()
            if int(before["state"]["last_seq"]) >= through and _leader(before) == _leader(after):
                return None
            await asyncio.sleep(_RETRY_SECONDS)
        raise StorageError(
            f"the stream {self.name} in NATS lacks stored messages; see `nats stream info`"
        )

    async def _answer(self, which: dict[str, Any]) -> dict[str, Any] | None:
        """Return the leader's answer for a message, or None if it has no such message."""
        try:
            answer = await self.connection.api(
                f"STREAM.MSG.GET.{self.name}", which, what="a record of the log"
            )
        except ApiError as error:
            if error.code == _NO_MESSAGE:
                return None
            raise
        message: dict[str, Any] = answer["message"]
        return message

    async def _get(self, which: dict[str, Any]) -> StoredMessage | None:
        message = await self._answer(which)
        if message is None:
            return None
        body = base64.b64decode(message.get("data", ""))
        _, _, lines = base64.b64decode(message.get("hdrs", "")).partition(b"\r\n")
        headers = parse_headers(lines)
        return StoredMessage(message["seq"], headers, body, len(body))

    async def scan(
        self, position: int, *, bodies: bool, subjects: str | None = None
    ) -> AsyncGenerator[StoredMessage, None]:
        """Yield the messages in one server's copy of the stream, beginning at a position.

        The copy may lack the last messages, for example if the server has just started. Payloads
        are read only if `bodies` is set.

        Raises:
            StorageError: The server stopped responding. The messages yielded so far have no gap.
        """
        reader = await self._create_reader(position, bodies, subjects)
        batch = _BATCH_BODIES if bodies else _BATCH_HEADERS
        client = self.connection.client
        inbox = client.new_inbox()
        messages = await client.subscribe(inbox, pending_bytes_limit=0, pending_msgs_limit=0)
        try:
            expected, left = 0, 1
            while left:
                if not expected:
                    pull = f"$JS.API.CONSUMER.MSG.NEXT.{self.name}.{reader}"
                    await client.publish(pull, b'{"batch":%d,"no_wait":true}' % batch, reply=inbox)
                    expected = batch
                found = _from_reader(await _next(messages))
                if found is None:
                    return
                message, left = found
                expected -= 1
                yield message
        finally:
            await messages.unsubscribe()
            await client.publish(f"$JS.API.CONSUMER.DELETE.{self.name}.{reader}")

    async def _create_reader(self, position: int, bodies: bool, subjects: str | None) -> str:
        """Create a consumer on one of the servers, and return its name."""
        settings = {
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": position,
            "ack_policy": "none",
            "replay_policy": "instant",
            "headers_only": not bodies,
            "inactive_threshold": int(4 * _READER_SECONDS * _NANOSECONDS),
            "mem_storage": True,
            "num_replicas": 1,
        }
        if subjects is not None:
            settings["filter_subject"] = subjects
        answer = await self.connection.api(
            f"CONSUMER.CREATE.{self.name}",
            {"stream_name": self.name, "config": settings},
            what="a reader of the log",
        )
        return str(answer["name"])


async def _next(messages: NatsSubscription) -> Msg:
    try:
        return await messages.next_msg(_READER_SECONDS)
    except Exception:  # the library raises many types of exceptions
        raise StorageError("NATS stopped responding while the log was read") from None


def _from_reader(message: Msg) -> tuple[StoredMessage, int] | None:
    """Return a consumer's message and the number of remaining ones, or None for a status."""
    parts = message.reply.split(".")
    if len(parts) < 9:
        return None
    # A subject with domain and account has two more parts before these, and one at the end.
    at = 5 if len(parts) == 9 else 7
    headers = message.headers or {}
    size = int(headers.get("Nats-Msg-Size", len(message.data)))
    stored = StoredMessage(int(parts[at]), headers, message.data, size)
    return stored, int(parts[at + 3])


class LogStream(JetStreamStream):
    """The stream that contains the log."""

    def __init__(self, connection: NatsConnection) -> None:
        self._prefix = prefix = connection.settings.prefix
        super().__init__(connection, f"{prefix}-log", f"{prefix}.log.*", f"{prefix}.live.>")
        self.check_subject = f"{prefix}.log.check"

    def _settings(self, replicas: int) -> dict[str, Any]:
        republished = {"src": f"{self._prefix}.log.>", "dest": self.live}
        return super()._settings(replicas) | {"allow_atomic": True, "republish": republished}

    def subject(self, topic: str) -> str:
        return f"{self._prefix}.log.{topic_token(topic)}"

    async def time_of(self, position: int) -> Instant | None:
        """Return when the leader stored a message, or None if the message was deleted."""
        answer = await self._answer({"seq": position})
        return None if answer is None else parse_datetime(answer["time"])

    async def get(self, position: int) -> StoredMessage | None:
        """Return the message at a position, or None if it was deleted.

        Any server with a copy of the stream may answer. If it lacks the message, ask the leader.
        """
        which = {"seq": position}
        answer = await self.connection.request(
            f"$JS.API.DIRECT.GET.{self.name}", msgspec.json.encode(which)
        )
        found = sent_message(answer)
        return found if found.position == position else await self._find(which, position)

    async def delete(self, position: int) -> None:
        try:
            await self.connection.api(
                f"STREAM.MSG.DELETE.{self.name}",
                {"seq": position, "no_erase": True},
                what="the deletion of a record",
            )
        except ApiError as error:
            if error.code not in (_NO_MESSAGE, _DELETE_FAILED):
                raise

    async def purge(self, topic: str, before: int) -> None:
        await self.connection.api(
            f"STREAM.PURGE.{self.name}",
            {"filter": self.subject(topic), "seq": before},
            what="the deletion of old records",
        )


def _leader(info: dict[str, Any]) -> str | None:
    return (info.get("cluster") or {}).get("leader")
