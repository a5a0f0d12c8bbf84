"""The bridge to brokers on the node that owns it, and the cursors of the brokers."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from contextlib import suppress

from rsnotify.errors import StorageError
from rsnotify.runtime.tasks import cancel
from rsnotify_hub.store.interface import BridgeOwner, NotOwner
from rsnotify_jetstream.bucket import Bucket
from rsnotify_jetstream.cluster_records import BridgeRecord
from rsnotify_jetstream.fenced_map import NO_EPOCH, RETRY_SECONDS, FencedMap, OwnerRights

logger = logging.getLogger("rsnotify.hub.store")


def bridge_key(broker: str) -> str:
    return f"bridge.{hashlib.sha256(broker.encode()).hexdigest()}"


class OwnedBridge:
    """The cursors of brokers while this node owns the bridge's shard."""

    def __init__(self, bucket: Bucket, rights: OwnerRights) -> None:
        self._bucket = bucket
        self._rights = rights
        self._brokers: dict[str, FencedMap[str, int]] = {}
        self._loading = asyncio.Lock()
        self._is_closed = False

    async def _broker(self, broker: str) -> FencedMap[str, int]:
        async with self._loading:
            found = self._brokers.get(broker)
            if found is None:
                empty = BridgeRecord(epoch=NO_EPOCH, broker=broker)
                found = FencedMap(self._bucket, bridge_key(broker), empty, self._rights)
                self._check()
                await found.load()
                self._brokers[broker] = found
        self._check()
        return found

    def _check(self) -> None:
        if self._is_closed or not self._rights.may_write():
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
        """Stop writing permanently."""
        self._is_closed = True
        for found in self._brokers.values():
            found.close()


class BridgeSwitch:
    """Starts the bridge when this node becomes its owner, and stops it when it no longer is.

    Each time it starts, the bridge reads the cursors, which another node may have moved.
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
        """Run the bridge with the given cursors, or stop it if they are None."""
        self._wanted = wanted
        self._changed.set()

    async def stop(self) -> None:
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
                    logger.warning("cannot start the bridge to the broker, retrying: %s", error)
                    await asyncio.sleep(RETRY_SECONDS)
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
            async with asyncio.timeout(RETRY_SECONDS):
                await self.stop()
        await cancel([self._task])
