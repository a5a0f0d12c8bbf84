"""Appends records to the stream, one after the other.

Theory of operation. The servers store each record without a condition: they only order them. A
record names the last record of its topic from which it was planned, and every index skips it if
another one came in between (`LogIndex.apply`). So a record that is sent again after a lost
acknowledgement counts once, records of one append keep their order even if the leader of the stream
changes in between, and of two nodes that append at once one has to plan again. Conditions that the
servers check (`Nats-Expected-Last-Subject-Sequence`, `Nats-Msg-Id`) would do much of this, but each
copy of the stream checks them for itself, and copies may differ (`EntryReader`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rsnotify.errors import TooLarge
from rsnotify_hub.fragments.fragment import Fragment
from rsnotify_hub.store.interface import LogMoved
from rsnotify_hub.store.jetstream.connection import ApiError, NatsConnection
from rsnotify_hub.store.jetstream.follower import StreamFollower
from rsnotify_hub.store.jetstream.records import LogRecord, RecordKind, headers_of
from rsnotify_hub.store.jetstream.stream import LogStream

#: The bytes of the lines that enclose headers, and of the server's own headers.
_ENVELOPE = 64


class Appender:
    """Appends records.

    Args:
        connection: The connection.
        stream: The stream.
        follower: Follows the stream, and so updates the index.
    """

    def __init__(
        self, connection: NatsConnection, stream: LogStream, follower: StreamFollower
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._follower = follower
        self._accepted: dict[str, dict[tuple[int, bytes], int]] = {}

    def accepted(self, record: LogRecord) -> None:
        """Note that the index has accepted a record of a topic to which this node appends."""
        positions = self._accepted.setdefault(record.topic, {})
        positions[record.after, record.digest] = record.position

    def ended(self, topic: str) -> None:
        """Note that this node does not append to a topic any more."""
        self._accepted.pop(topic, None)

    async def append(self, record: LogRecord, fragment: Fragment) -> int:
        """Append a record to the log that the index knows, and return its position.

        It returns after the index has applied the record.

        Args:
            record: The record, without a position.
            fragment: Its fragment.

        Raises:
            LogMoved: Another node has appended to the log, or deleted it.
            TooLarge: The server does not accept a message of this size.
            StorageError: It is unknown whether the record was stored.
        """
        headers = headers_of(record, fragment.content_type)
        self._check_size(headers, fragment.body)
        return await self._append(record, fragment.body, headers)

    async def reset(self, record: LogRecord) -> None:
        """Append a record that deletes the log that the index knows.

        Raises:
            LogMoved: Another node has appended to the log, or deleted it.
            StorageError: It is unknown whether the record was stored.
        """
        await self._append(record, b"", headers_of(record))

    async def _append(self, record: LogRecord, body: bytes, headers: dict[str, str]) -> int:
        await self._store(self._stream.subject(record.topic), body, headers)
        # If the record was sent twice, the first one counts.
        found = self._accepted.get(record.topic, {}).get((record.after, record.digest))
        if found is None:
            raise LogMoved(f"another hub has changed the log of {record.topic}")
        return found

    async def check(self) -> None:
        """Store a record that says nothing in place of the one before, and wait for it."""
        headers = headers_of(LogRecord(0, RecordKind.CHECK)) | {"Nats-Rollup": "sub"}
        await self._store(self._stream.check_subject, b"", headers)

    async def _store(self, subject: str, body: bytes, headers: dict[str, str]) -> None:
        """Send a record until it is acknowledged, and wait until the index has applied it."""
        message = await self._connection.request(subject, body, headers=headers)
        answer: dict[str, Any] = msgspec.json.decode(message.data)
        if (error := answer.get("error")) is not None:
            raise ApiError("to store a record", error)
        await self._follower.reach(int(answer["seq"]))

    def _check_size(self, headers: Mapping[str, str], body: bytes) -> None:
        size = sum(len(name) + len(value) + 4 for name, value in headers.items())
        limit = self._connection.client.max_payload
        if size + len(body) + _ENVELOPE > limit:
            raise TooLarge(
                f"it has {len(body)} bytes, and NATS accepts {limit} with the headers; send "
                "smaller fragments, or set max_payload in the configuration of the NATS servers"
            )
