"""JetStream key-value buckets: the last value of each key, replaced by compare-and-set.

The *revision* of a value is its sequence number in the bucket's stream. Each message has its key in
a header, because readers do not receive the subject.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from secrets import token_hex
from typing import Any

import msgspec
from msgspec import Struct
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription

from rsnotify.errors import StorageError
from rsnotify_jetstream.nats_connection import ApiError, NatsConnection
from rsnotify_jetstream.stream import JetStreamStream, StoredMessage, sent_message
from rsnotify_jetstream.stream_follower import StreamFollower

_KEY = "Rs-Key"
_ID = "Nats-Msg-Id"
_OPERATION = "KV-Operation"
_EXPECTED = "Nats-Expected-Last-Subject-Sequence"
_WRONG_LAST = (10071, 10164)
#: Error code: the server is already storing the same message.
_IN_FLIGHT = 10158


class StaleAnswer(StorageError):
    """A server answered with an outdated state, although nobody else has written.

    The server may have been suspended while it was the leader, or restored from a backup.
    """


class BucketRecord(Struct, frozen=True):
    """A key with its value and revision.

    If the key was deleted, `value` is None and `revision` is the revision of the deletion.
    """

    key: str
    value: bytes | None
    revision: int
    headers: dict[str, str]


def _record_of(message: StoredMessage) -> BucketRecord | None:
    key = message.headers.get(_KEY)
    if key is None:
        return None  # no hub wrote this message
    value = None if _OPERATION in message.headers else message.body
    return BucketRecord(key, value, message.position, message.headers)


class Bucket(JetStreamStream):
    """A key-value bucket.

    Unacknowledged writes are retried, and stored only once. Every method raises `StorageError` if
    NATS does not answer, or refuses the request. `name` does not include the prefix.
    """

    def __init__(self, connection: NatsConnection, name: str) -> None:
        bucket = f"{connection.settings.prefix}-{name}"
        self._base = f"$KV.{bucket}."
        self._live_base = f"{connection.settings.prefix}.kv-{name}."
        super().__init__(connection, f"KV_{bucket}", f"{self._base}>", f"{self._live_base}>")
        self._client = connection.client
        self._follower: StreamFollower | None = None

    def _settings(self, replicas: int) -> dict[str, Any]:
        return super()._settings(replicas) | {"max_msgs_per_subject": 1, "deny_delete": True}

    async def put(self, key: str, value: bytes) -> int:
        """Store a value unconditionally, and return its revision."""
        revision = await self._store(key, value, {})
        assert revision is not None
        return revision

    async def replace(
        self,
        key: str,
        value: bytes,
        revision: int,
        unanswered: set[str] | None = None,
        /,
        **headers: str,
    ) -> int | None:
        """Store a value if the key has the given revision, which is 0 for an absent key.

        `unanswered` are the identifiers of the caller's earlier attempts that raised an error, and
        may nevertheless have stored a value. Such a value is also replaced. If they are given, the
        caller must have stored the value with the given revision.

        Returns:
            The new revision, or None if the key has another revision and nothing was stored.

        Raises:
            StaleAnswer: `unanswered` is given, and a server answered without the caller's last
                write.
        """
        conditions = {_EXPECTED: str(revision), **_named(headers)}
        return await self._store(key, value, conditions, unanswered)

    async def delete(self, key: str, revision: int, **headers: str) -> bool:
        """Delete a key if it has the given revision. Return whether it was deleted."""
        conditions = {_EXPECTED: str(revision), _OPERATION: "DEL", **_named(headers)}
        deleted = await self._store(key, b"", conditions)
        if deleted is None:
            return False
        await self.connection.api(
            f"STREAM.PURGE.{self.name}",
            {"filter": self._base + key, "seq": deleted + 1},
            what="the deletion of a key",
        )
        return True

    async def _store(
        self, key: str, value: bytes, headers: dict[str, str], unanswered: set[str] | None = None
    ) -> int | None:
        identifier = token_hex(16)
        headers = {_KEY: key, _ID: identifier, **headers}
        earlier = set() if unanswered is None else unanswered
        while True:
            earlier.add(identifier)
            message = await self.connection.request(self._base + key, value, headers=headers)
            answer: dict[str, Any] = msgspec.json.decode(message.data)
            if (error := answer.get("error")) is None:
                earlier.clear()
                return int(answer["seq"])
            refused = ApiError(f"to store {key}", error)
            if refused.code in _WRONG_LAST:
                # An earlier, unanswered attempt may have succeeded.
                found = await self.get(key)
                by = None if found is None else found.headers.get(_ID)
                if found is None or by not in earlier:
                    expected = int(headers.get(_EXPECTED, 0))
                    if unanswered is not None and (found is None or found.revision <= expected):
                        raise StaleAnswer("a NATS server answered without the latest value")
                    return None
                if by == identifier:
                    earlier.clear()
                    return found.revision
                headers[_EXPECTED] = str(found.revision)
                headers[_ID] = identifier = token_hex(16)
            elif refused.code != _IN_FLIGHT:
                raise refused

    async def latest(self, key: str) -> tuple[bytes | None, int]:
        """Return a key's value and revision, or None and 0 if it was never stored. See `get`."""
        found = await self.get(key)
        return (None, 0) if found is None else (found.value, found.revision)

    async def get(self, key: str) -> BucketRecord | None:
        """Return a key's record from the bucket's leader, or None if the key was never stored."""
        message = await self._get({"last_by_subj": self._base + key})
        return None if message is None else _record_of(message)

    async def read(self, group: str) -> AsyncGenerator[BucketRecord, None]:
        """Yield the records of the keys that begin with `group.`, in the order of their revisions.

        The records may come from a server that lacks the latest ones.
        """
        scan = self.scan(1, bodies=True, subjects=f"{self._base}{group}.>")
        async with aclosing(scan) as messages:
            async for message in messages:
                if (record := _record_of(message)) is not None:
                    yield record

    async def watch(self, group: str, receive: Callable[[BucketRecord], None]) -> NatsSubscription:
        """Call `receive` for each record stored below `group.` from now on.

        Records may be missed during a loss of the connection.
        """

        async def received(message: Msg) -> None:
            if (record := _record_of(sent_message(message))) is not None:
                receive(record)

        subscription = await self._client.subscribe(f"{self._live_base}{group}.>", cb=received)
        await self._client.flush()
        return subscription

    async def follow(self, receive: Callable[[str, bytes | None, int], None]) -> None:
        """Call `receive` with each stored key, value and revision, and later with each change.

        Return after all stored keys have been received. Later changes are received in order, and
        none is missed.
        """

        def received(message: StoredMessage) -> None:
            if (record := _record_of(message)) is not None:
                receive(record.key, record.value, record.revision)

        self._follower = StreamFollower(self, received, loads_bodies=True)
        await self._follower.start(lambda: None)

    async def close(self) -> None:
        if self._follower is not None:
            await self._follower.close()


def _named(headers: dict[str, str]) -> dict[str, str]:
    return {f"Rs-{name.capitalize()}": value for name, value in headers.items()}
