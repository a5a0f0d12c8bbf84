"""Appends records to the stream: one after the other, each only if nothing came in between.

Theory of operation. Each record is sent with the position of the last record of its topic, and the
server stores it only if that is still the last one. So a record that is sent again after a lost
acknowledgement is not stored twice, records of one append keep their order even if the leader of
the stream changes in between, and of two nodes that append at once one has to plan again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from rsnotify.errors import StorageError, TooLarge
from rsnotify_hub.store.interface import LogMoved
from rsnotify_hub.store.jetstream.connection import ApiError, NatsConnection
from rsnotify_hub.store.jetstream.follower import Follower
from rsnotify_hub.store.jetstream.index import LogIndex
from rsnotify_hub.store.jetstream.records import Kind, Record, headers_of
from rsnotify_hub.store.jetstream.stream import LogStream

#: The bytes of the lines that enclose headers, and of the server's own headers.
_ENVELOPE = 64
_WRONG_LAST = 10071
#: The same message is just being stored.
_IN_FLIGHT = 10158


class Appender:
    """Appends records.

    Args:
        connection: The connection.
        stream: The stream.
        index: The index of all logs.
        follower: Follows the stream, and so updates the index.
    """

    def __init__(
        self, connection: NatsConnection, stream: LogStream, index: LogIndex, follower: Follower
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._index = index
        self._follower = follower

    async def append(
        self, record: Record, *, body: bytes = b"", content_type: str = "", rollup: bool = False
    ) -> int:
        """Append a record to the log that the index knows, and return its position.

        It returns after the index has applied the record.

        Args:
            record: The record, without a position.
            body: The fragment.
            content_type: Its Content-Type.
            rollup: Whether it replaces all records of the topic before it.

        Raises:
            LogMoved: Another node has appended to the log, or reset it.
            TooLarge: The server does not accept a message of this size.
            StorageError: It is unknown whether the record was stored.
        """
        last = self._index.last(record.topic)
        headers = headers_of(record, content_type) | _conditions(record, last, body)
        if rollup:
            headers["Nats-Rollup"] = "sub"
        self._check_size(headers, body)
        position = await self._send(self._stream.subject(record.topic), body, headers)
        if position is None:
            position = await self._find(record, last)
        await self._follower.reach(position)
        return position

    async def reset(self, record: Record) -> None:
        """Append a record that deletes the log of a topic, whatever was appended to it."""
        identifier = _identifier(record, self._index.last(record.topic), b"")
        headers = headers_of(record) | {"Nats-Rollup": "sub", "Nats-Msg-Id": identifier}
        await self._follower.reach(await self._store(self._stream.subject(record.topic), headers))

    async def check(self) -> None:
        """Store a record that says nothing, in place of the one before it, and wait for it."""
        headers = headers_of(Record(0, Kind.CHECK)) | {"Nats-Rollup": "sub"}
        await self._follower.reach(await self._store(self._stream.check_subject, headers))

    async def _store(self, subject: str, headers: dict[str, str]) -> int:
        position = await self._send(subject, b"", headers)
        if position is None:
            raise StorageError(f"NATS refused a record without a condition on {subject}")
        return position

    async def _send(self, subject: str, body: bytes, headers: dict[str, str]) -> int | None:
        """Send a record until it is acknowledged.

        Returns:
            Its position; None if the last record of its topic is not the expected one.
        """
        while True:
            message = await self._connection.request(subject, body, headers=headers)
            answer: dict[str, Any] = msgspec.json.decode(message.data)
            if (error := answer.get("error")) is None:
                return int(answer["seq"])
            refused = ApiError("to store a fragment", error)
            if refused.code == _WRONG_LAST:
                return None
            if refused.code != _IN_FLIGHT:
                raise refused

    async def _find(self, record: Record, last: int) -> int:
        """Return the position of a record if it was stored, though the server then refused it.

        Raises:
            LogMoved: Another record came before it.
        """
        await self._follower.catch_up()
        found = self._index.find(record.topic, record.digest)
        if found is not None and found > last and self._index.last(record.topic) == found:
            return found
        if self._index.last(record.topic) == last:
            raise StorageError(
                f"the stream {self._stream.name} has a message for {record.topic} that no hub "
                "wrote, or has lost one; see `nats stream subjects`, and delete the log of the "
                "topic"
            )
        raise LogMoved(f"another hub has appended to the log of {record.topic}")

    def _check_size(self, headers: Mapping[str, str], body: bytes) -> None:
        size = sum(len(name) + len(value) + 4 for name, value in headers.items())
        limit = self._connection.client.max_payload
        if size + len(body) + _ENVELOPE > limit:
            raise TooLarge(
                f"it has {len(body)} bytes, and NATS accepts {limit} with the headers; send "
                "smaller fragments, or set max_payload in the configuration of the NATS servers"
            )


def _conditions(record: Record, last: int, body: bytes) -> dict[str, str]:
    return {
        "Nats-Msg-Id": _identifier(record, last, body),
        "Nats-Expected-Last-Subject-Sequence": str(last),
    }


def _identifier(record: Record, last: int, body: bytes) -> str:
    # With the last position, since a content may come back after another one.
    parts = "\n".join((record.topic, record.kind.name, str(last), ""))
    return hashlib.sha256(parts.encode() + body).hexdigest()
