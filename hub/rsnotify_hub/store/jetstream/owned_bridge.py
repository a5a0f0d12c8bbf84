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
from rsnotify_hub.store.jetstream.fenced_map import FencedMap, OwnerRights
from rsnotify_hub.store.jetstream.fenced_parts import FencedContent, FencedFormat
from rsnotify_hub.store.jetstream.fenced_record import RETRY_DELAY
from rsnotify_hub.store.jetstream.subscription_records import BridgeRecord, decode, encode

log = logging.getLogger("rsnotify.hub.store")


def bridge_key(broker: str) -> str:
    """Return the key of the cursors of a broker."""
    return f"bridge.{hashlib.sha256(broker.encode()).hexdigest()}"


def bridge_format(broker: str) -> FencedFormat[str, int]:
    def encode_cursors(content: FencedContent[str, int]) -> bytes:
        return encode(
            BridgeRecord(
                epoch=content.epoch, parts=content.parts, broker=broker, cursors=content.cursors
            )
        )

    def decode_cursors(value: bytes) -> FencedContent[str, int]:
        found = decode(value, BridgeRecord)
        return FencedContent(found.epoch, found.parts, found.cursors)

    return FencedFormat(encode_cursors, decode_cursors)


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
        self._may_write = may_write
        self._rights = OwnerRights(epoch, may_write, lost)
        self._brokers: dict[str, FencedMap[str, int]] = {}
        self._loading = asyncio.Lock()
        self._is_closed = False

    async def _broker(self, broker: str) -> FencedMap[str, int]:
        async with self._loading:
            found = self._brokers.get(broker)
            if found is None:
                format = bridge_format(broker)
                found = FencedMap(self._bucket, bridge_key(broker), format, self._rights)
                self._check()
                await found.load()
                self._brokers[broker] = found
        self._check()
        return found

    def _check(self) -> None:
        if self._is_closed or not self._may_write():
            raise NotOwner("this node does not run the bridge to the broker")

    async def read(self, broker: str) -> dict[str, int]:
        return (await self._broker(broker)).all()

    async def store(self, broker: str, positions: Mapping[str, int]) -> None:
        found = await self._broker(broker)
        for key, position in positions.items():
            found.set(key, position)
        await found.write()

    async def delete(self, broker: str, topic: str) -> None:
        found = await self._broker(broker)
        found.remove(topic)
        await found.write()

    def move(self, broker: str, topic: str, position: int) -> None:
        found = self._brokers.get(broker)
        if found is not None and not self._is_closed:
            found.set(topic, position)

    async def flush(self) -> None:
        for found in self._brokers.values():
            await found.flush()

    def close(self) -> None:
        """Write nothing any more."""
        self._is_closed = True
        for found in self._brokers.values():
            found.close()


class BridgeSwitch:
    """Starts and stops a bridge, one after the other, as this node becomes its owner and back.

    It is started again each time that this node becomes the owner, since another one may have moved
    the cursors meanwhile.
    """

    def __init__(self, bridge: BridgeOwner) -> None:
        self._bridge = bridge
        self._wanted: OwnedBridge | None = None
        self._running: OwnedBridge | None = None
        self._changed = asyncio.Event()
        self._stopped = asyncio.Event()
        self._stopped.set()
        self._task = asyncio.create_task(self._run())

    def set(self, wanted: OwnedBridge | None) -> None:
        """Run the bridge with these cursors; None stops it."""
        self._wanted = wanted
        self._changed.set()

    async def stop(self) -> None:
        """Stop the bridge, and return when it has stopped."""
        self.set(None)
        await self._stopped.wait()

    async def _run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                if self._wanted is not self._running:
                    await self._change(self._wanted)
            except StorageError as error:
                self._set_stopped()
                if self._wanted is not None:
                    log.warning("the bridge to the MQTT broker cannot start yet: %s", error)
                    await asyncio.sleep(RETRY_DELAY)
                    self._changed.set()

    async def _change(self, wanted: OwnedBridge | None) -> None:
        if self._running is not None:
            await self._bridge.close()
            self._set_stopped()
        if wanted is not None:
            self._running = wanted
            self._stopped.clear()
            await self._bridge.start()

    def _set_stopped(self) -> None:
        self._running = None
        self._stopped.set()

    async def close(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(RETRY_DELAY):
                await self.stop()
        await cancel([self._task])
