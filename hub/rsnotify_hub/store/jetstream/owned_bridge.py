"""The bridge to a broker, and its cursors, on the node that owns the shard of the bridge."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress

from rsnotify.errors import StorageError
from rsnotify.runtime.tasks import cancel
from rsnotify_hub.store.interface import BridgeOwner, NotOwner
from rsnotify_hub.store.jetstream.bucket import Bucket
from rsnotify_hub.store.jetstream.fenced_record import RETRY_DELAY, FencedRecord
from rsnotify_hub.store.jetstream.subscription_records import BridgeRecord, decode, encode

log = logging.getLogger("rsnotify.hub.store")


def bridge_key(broker: str) -> str:
    """Return the key of the cursors of a broker."""
    return f"bridge.{hashlib.sha256(broker.encode()).hexdigest()}"


class BrokerRecord:
    """The cursors of one broker."""

    def __init__(
        self,
        bucket: Bucket,
        broker: str,
        epoch: int,
        may_write: Callable[[], bool],
        lost: Callable[[], None],
    ) -> None:
        self.cursors: dict[str, int] = {}
        self._broker = broker
        self._epoch = epoch
        self.stored = FencedRecord(bucket, bridge_key(broker), self._encode, may_write, lost)

    def _encode(self) -> bytes:
        return encode(BridgeRecord(epoch=self._epoch, broker=self._broker, cursors=self.cursors))

    async def load(self) -> None:
        """Take the cursors over from the owner before."""
        value = await self.stored.read()
        if value is not None:
            self.cursors = decode(value, BridgeRecord).cursors
        await self.stored.claim()


class OwnedBridge:
    """The bridge while this node owns its shard.

    Args:
        bucket: The bucket of cursors.
        epoch: The epoch at which this node took the shard.
        may_write: Returns whether this node may write right now.
        lost: Called when another node has written.
    """

    def __init__(
        self,
        bucket: Bucket,
        epoch: int,
        may_write: Callable[[], bool],
        lost: Callable[[], None],
    ) -> None:
        self._bucket = bucket
        self._epoch = epoch
        self._may_write = may_write
        self._lost = lost
        self._brokers: dict[str, BrokerRecord] = {}
        self._loading = asyncio.Lock()
        self._is_closed = False

    async def _broker(self, broker: str) -> BrokerRecord:
        async with self._loading:
            found = self._brokers.get(broker)
            if found is None:
                found = BrokerRecord(self._bucket, broker, self._epoch, self._may_write, self._lost)
                self._check()
                await found.load()
                self._brokers[broker] = found
        self._check()
        return found

    def _check(self) -> None:
        if self._is_closed or not self._may_write():
            raise NotOwner("this node does not run the bridge to the broker")

    async def read(self, broker: str) -> dict[str, int]:
        return dict((await self._broker(broker)).cursors)

    async def store(self, broker: str, positions: Mapping[str, int]) -> None:
        found = await self._broker(broker)
        found.cursors |= positions
        await found.stored.write()

    async def delete(self, broker: str, topic: str) -> None:
        found = await self._broker(broker)
        if found.cursors.pop(topic, None) is not None:
            await found.stored.write()

    def move(self, broker: str, topic: str, position: int) -> None:
        found = self._brokers.get(broker)
        if found is not None and not self._is_closed:
            found.cursors[topic] = position
            found.stored.changed()

    async def flush(self) -> None:
        for found in self._brokers.values():
            await found.stored.flush()

    def close(self) -> None:
        """Write nothing any more."""
        self._is_closed = True
        for found in self._brokers.values():
            found.stored.close()


class BridgeSwitch:
    """Starts and stops a bridge, one after the other, as this node becomes its owner and back."""

    def __init__(self, bridge: BridgeOwner) -> None:
        self._bridge = bridge
        self._is_wanted = False
        self._changed = asyncio.Event()
        self._is_running = False
        self._stopped = asyncio.Event()
        self._stopped.set()
        self._task = asyncio.create_task(self._run())

    def set(self, wanted: bool) -> None:
        self._is_wanted = wanted
        self._changed.set()

    async def stop(self) -> None:
        """Stop the bridge, and return when it has stopped."""
        self.set(False)
        await self._stopped.wait()

    async def _run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._is_wanted == self._is_running:
                continue
            try:
                if self._is_wanted:
                    self._stopped.clear()
                    self._is_running = True
                    await self._bridge.start()
                else:
                    await self._bridge.close()
                    self._is_running = False
                    self._stopped.set()
            except StorageError as error:
                log.warning("the bridge to the MQTT broker cannot start yet: %s", error)
                self._is_running = False
                self._stopped.set()
                await asyncio.sleep(RETRY_DELAY)
                self._changed.set()

    async def close(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(RETRY_DELAY):
                await self.stop()
        await cancel([self._task])
