"""Follows a stream, and passes on each message exactly once and in order.

The servers republish each stored message on core NATS, with its sequence number. Sequence numbers
are contiguous, so a message that is not the next one reveals a gap, and the follower first reads
the missing messages from the stream. Messages may also be stored without an announcement, if the
connection breaks or a leader fails. Therefore the follower periodically compares its position with
the last number in the stream. All this happens under one lock.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable
from contextlib import aclosing, suppress
from typing import Any

from nats.aio.msg import Msg

from rsnotify.errors import StorageError, counted
from rsnotify.runtime.tasks import cancel, wait_for_event
from rsnotify_jetstream.nats_connection import REQUEST_TIMEOUT_SECONDS, ApiError
from rsnotify_jetstream.stream import NO_STREAM, JetStreamStream, StoredMessage, sent_message

logger = logging.getLogger("rsnotify.hub.store")

#: Seconds between comparisons with the last position of the stream.
COMPARE_SECONDS = 2.0
#: Seconds without a successful comparison after which this node reports a problem.
TROUBLE_SECONDS = 10.0
#: Seconds to wait for the announcement of an acknowledged message before reading the message.
_ANNOUNCEMENT_SECONDS = 0.25
#: Maximum number of missing messages to read one at a time.
_SMALL_GAP_MESSAGES = 8
#: Maximum number of scans of copies that may lag. After that, only the leader is read.
_MAX_SCANS = 20
_RETRY_SECONDS = 0.1


class StreamFollower:
    """Passes on every message of a stream.

    `receive` may only raise StorageError. It means that this hub cannot read the log, and stops the
    follower permanently. The messages that `start` passes on have payloads only if `loads_bodies`
    is set.

    Attributes:
        position: The position up to which all messages have been passed on.
        failure: Why the follower has stopped; None while it runs.
        info: The latest information on the stream from its leader.
    """

    def __init__(
        self,
        stream: JetStreamStream,
        receive: Callable[[StoredMessage], None],
        *,
        loads_bodies: bool = False,
    ) -> None:
        self._connection = stream.connection
        self._stream = stream
        self._receive = receive
        self._loads_bodies = loads_bodies
        self._lock = asyncio.Lock()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._compare_now = asyncio.Event()
        self._comparing: asyncio.Task[None] | None = None
        self.position = 0
        self.failure: StorageError | None = None
        self.info: dict[str, Any] = {}
        self._compared = 0.0
        self._created: str | None = None
        self._missing: str | None = None
        self._has_failed = False

    async def start(self, loaded: Callable[[], None]) -> None:
        """Pass on all messages of the stream, call `loaded`, and then follow the stream."""
        client = self._connection.client
        async with self._lock:
            # Subscribe before loading, so that no message is missed. The lock delays announcements
            # until everything is loaded.
            self._live = await client.subscribe(self._stream.live, cb=self._announced)
            await self._load()
            self.check()
            self._compared = asyncio.get_running_loop().time()
            loaded()
        self._connection.reconnected.append(self._compare_now.set)
        self._comparing = asyncio.create_task(self._compare())

    async def _load(self) -> None:
        end = asyncio.get_running_loop().time() + REQUEST_TIMEOUT_SECONDS
        while True:
            try:
                await self._read_until(await self._last(), bodies=self._loads_bodies)
                return
            except StorageError:
                if self.failure or asyncio.get_running_loop().time() > end:
                    raise

    async def _last(self) -> int:
        """Return the last position of the stream.

        Raises:
            StorageError: The position is unknown, or this is another stream of the same name.
        """
        try:
            self.info = info = await self._stream.info()
        except ApiError as error:
            if error.code != NO_STREAM:
                raise
            # The follower continues, because a starting server may not have the stream yet.
            self._missing = (
                f"the stream {self._stream.name} no longer exists in NATS: its servers lost their "
                "data, or the stream was deleted; restart all nodes of this hub to recreate it, "
                "and import the last export of the subscriptions"
            )
            raise StorageError(self._missing) from None
        self._missing = None
        self._created = self._created or info["created"]
        if info["created"] != self._created:
            self._fail(
                StorageError(
                    f"the stream {self._stream.name} was deleted or restored while this hub was "
                    "running; restart the hub"
                )
            )
        self.check()
        return int(info["state"]["last_seq"])

    async def reach(self, position: int) -> None:
        """Wait until all messages up to a position have been passed on.

        Raises:
            StorageError: This took too long, or the follower has stopped.
        """
        self.check()
        if position <= self.position:
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (position, id(future), future))
        with suppress(TimeoutError):
            async with asyncio.timeout(_ANNOUNCEMENT_SECONDS):
                return await asyncio.shield(future)
        self._compare_now.set()
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_SECONDS):
                await future
        except TimeoutError:
            raise StorageError(
                f"cannot read the log in NATS at {self._connection.settings.place}; check that "
                "most of its servers run"
            ) from None

    async def catch_up(self) -> None:
        """Wait until all messages that are in the stream now have been passed on."""
        await self.reach(await self._last())

    async def _announced(self, message: Msg) -> None:
        announced = sent_message(message)
        async with self._lock:
            if announced.position <= self.position or self.failure:
                return
            if announced.position != self.position + 1:
                try:
                    await self._read_until(announced.position - 1, bodies=True)
                except StorageError as error:
                    logger.warning("cannot read missing records of the log, retrying: %s", error)
                    self._compare_now.set()
                    return
            self._pass_on(announced)

    async def _read_until(self, target: int, *, bodies: bool) -> None:
        """Pass on the messages up to a position that exists in the stream.

        The caller must hold the lock. Deleted messages are skipped.
        """
        for _ in range(_MAX_SCANS):
            before = self.position
            if target - before <= _SMALL_GAP_MESSAGES or self.failure:
                break
            async with aclosing(self._stream.scan(before + 1, bodies=bodies)) as messages:
                async for message in messages:
                    self._pass_on(message)
            if self.position == before:
                if await self._stream.next(before + 1, through=target) is None:
                    break
                await asyncio.sleep(_RETRY_SECONDS)  # the server's copy lags
        # Copies may lag. Only the leader has all messages.
        while self.position < target and not self.failure:
            found = await self._stream.next(self.position + 1, through=target)
            if found is not None:
                self._pass_on(found)
            else:
                self._advance(target)  # all remaining messages were deleted

    def _pass_on(self, message: StoredMessage) -> None:
        if message.position <= self.position or self.failure:
            return
        try:
            self._receive(message)
        except StorageError as error:
            self._fail(error)
        else:
            self._advance(message.position)

    def _fail(self, error: StorageError) -> None:
        if self.failure is None:
            logger.error("this hub has stopped following the log: %s", error)
            self.failure = error
            self._wake(None)

    def _advance(self, position: int) -> None:
        self.position = position
        self._wake(position)

    def _wake(self, position: int | None) -> None:
        while self._waiting and (position is None or self._waiting[0][0] <= position):
            future = heapq.heappop(self._waiting)[2]
            if future.done():
                continue
            if self.failure is None:
                future.set_result(None)
            else:
                future.set_exception(self.failure)

    def check(self) -> None:
        """Raise `failure` if the follower has stopped."""
        if self.failure is not None:
            raise self.failure

    @property
    def lag(self) -> int:
        """The number of records in the stream after `position`, at the last comparison."""
        last = int(self.info["state"]["last_seq"]) if self.info else 0
        return max(0, last - self.position)

    def _is_led(self) -> bool:
        """Return whether the latest information on the stream came from its leader.

        Without a majority, a server answers with its own state. A single server has no leader.
        """
        cluster = self.info.get("cluster")
        return cluster is None or bool(cluster.get("leader"))

    def trouble(self) -> str | None:
        """Return why this node is not following the log at the moment, or None if it is."""
        if self.failure is not None:
            return f"this node has stopped following the log in NATS: {self.failure}"
        if self._missing is not None:
            return self._missing
        seconds = asyncio.get_running_loop().time() - self._compared
        if seconds < TROUBLE_SECONDS:
            return None
        # If no message is missing, the comparison must be waiting for an answer.
        is_silent = self._has_failed or (self._is_led() and not self.lag)
        if is_silent or not self._is_led():
            what = "has not answered" if is_silent else "has had no leader"
            return f"the log in NATS {what} for {seconds:.0f} seconds; check its servers"
        return (
            f"this node has not caught up with the log in NATS for {seconds:.0f} seconds, and is "
            f"at least {counted(self.lag, 'record')} behind"
        )

    async def _compare(self) -> None:
        """Periodically read messages that were not announced, until `close` is called."""
        while not self.failure:
            await wait_for_event(self._compare_now, COMPARE_SECONDS)
            self._compare_now.clear()
            try:
                last = await self._last()
                if last > self.position and not self._waiting:
                    await asyncio.sleep(_RETRY_SECONDS)  # the announcement may be on its way
                async with self._lock:
                    await self._read_until(last, bodies=True)
                if self._is_led():
                    self._compared = asyncio.get_running_loop().time()
                self._has_failed = False
            except StorageError as error:
                if not self._has_failed and not self.failure:
                    logger.warning("cannot follow the log in NATS, retrying: %s", error)
                self._has_failed = True

    async def close(self) -> None:
        if self._comparing is not None:
            await cancel([self._comparing])
        self.failure = self.failure or StorageError("the store is closed")
        self._wake(None)
