"""A value that one owner at a time writes whole, some time after it has changed.

Each write replaces the revision that the owner knows. A new owner writes first, so that whatever
the one before it sends later is refused: it is *fenced*.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from rsnotify.errors import StorageError
from rsnotify_hub.store.interface import NotOwner
from rsnotify_hub.store.jetstream.bucket import Bucket

log = logging.getLogger("rsnotify.hub.store")

#: How long a change waits for others to be written with it, in seconds.
DELAY = 0.5
#: The wait before a write that failed is repeated, in seconds.
RETRY_DELAY = 1.0


class FencedRecord:
    """A value in a bucket.

    Args:
        bucket: The bucket.
        key: The key of the value.
        encode: Returns the value as it is now.
        may_write: Returns whether this node is the owner right now.
        lost: Called when another owner has written.
    """

    def __init__(
        self,
        bucket: Bucket,
        key: str,
        encode: Callable[[], bytes],
        may_write: Callable[[], bool],
        lost: Callable[[], None],
    ) -> None:
        self._bucket = bucket
        self._key = key
        self._encode = encode
        self._may_write = may_write
        self._lost = lost
        self._revision = 0
        self._changes = 0
        self._written = 0
        self._lock = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._is_closed = False

    async def read(self) -> bytes | None:
        """Return the value that another owner has written last; `claim` then replaces that."""
        found = await self._bucket.get(self._key)
        self._revision = found.revision if found is not None else 0
        return found.value if found is not None else None

    async def claim(self) -> None:
        """Write as the new owner.

        Raises:
            StorageError: It failed, or another owner has written since `read`.
        """
        revision = await self._bucket.replace(self._key, self._encode(), self._revision)
        if revision is None:
            raise StorageError(f"another node has just written the cursors {self._key}")
        self._revision = revision

    def changed(self) -> None:
        """Note that the value has changed; it is written soon."""
        self._changes += 1
        self._write_in(DELAY)

    def _write_in(self, seconds: float) -> None:
        if self._timer is None and self._writing is None and not self._is_closed:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(seconds, self._write_soon)

    def _write_soon(self) -> None:
        self._timer = None
        self._writing = asyncio.create_task(self._write_pending())
        self._writing.add_done_callback(self._written_pending)

    def _written_pending(self, task: asyncio.Task[None]) -> None:
        self._writing = None
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or self._is_closed:
            return
        if error is None:
            if self._changes > self._written:
                self._write_in(DELAY)
        elif isinstance(error, NotOwner):
            self.close()
        else:
            log.warning(
                "cursors could not be saved yet; after a crash some fragments are delivered "
                "twice: %s",
                error,
            )
            self._write_in(RETRY_DELAY)

    async def _write_pending(self) -> None:
        if self._changes > self._written:
            await self.write()

    async def write(self) -> None:
        """Write the value now.

        Raises:
            NotOwner: Another node has, or this one is not the owner.
            StorageError: It failed.
        """
        async with self._lock:
            if self._is_closed or not self._may_write():
                raise NotOwner("another node has these cursors")
            changes = self._changes
            revision = await self._bucket.replace(self._key, self._encode(), self._revision)
            if revision is None:
                self.close()
                self._lost()
                raise NotOwner("another node has written these cursors")
            self._revision = revision
            self._written = changes

    async def flush(self) -> None:
        """Write what has changed, if this is still possible."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._changes > self._written:
            await self.write()

    def close(self) -> None:
        """Write nothing any more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is not None and self._writing is not asyncio.current_task():
            self._writing.cancel()
