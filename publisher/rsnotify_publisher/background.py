"""The background thread of a Publisher: an event loop that leads, or waits until it may."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from filelock import FileLock, Timeout

from rsnotify.errors import RsnotifyError
from rsnotify_publisher.documents import RESOURCE_LIST
from rsnotify_publisher.leader import Leader
from rsnotify_publisher.source import Source

_log = logging.getLogger("rsnotify.publisher")
_TAKE_OVER_WITHIN = 0.2
_TRY_AGAIN_AFTER = 1.0


class Background:
    """Leads when no other process of the Source does.

    The system frees the lock of a leader that dies, however it dies.

    Args:
        source: The Source.
        make_leader: Makes a leader, for each time that this process comes to lead.
    """

    def __init__(self, source: Source, make_leader: Callable[[], Leader]) -> None:
        self._source = source
        self._lock = FileLock(source.lock, thread_local=False)
        self._make_leader = make_leader
        self._leader: Leader | None = None
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="rsnotify-publisher", daemon=True)
        #: Set once every document is there.
        self.published = threading.Event()

    def start(self) -> None:
        """Begin to lead, or to wait for it."""
        self._thread.start()

    def wake(self) -> None:
        """Say, from any thread, that the journal has something new."""
        leader = self._leader
        if leader is not None:
            with suppress(RuntimeError):  # the loop was closed this moment
                self._loop.call_soon_threadsafe(leader.wake)

    def close(self) -> None:
        """End in order."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        while not self._stop.is_set():
            try:
                with self._lock.acquire(blocking=False):
                    await self._lead()
            except Timeout:
                self._note_published()
                await self._pause(_TAKE_OVER_WITHIN)
            except Exception as error:  # a Source that runs must go on publishing, or try to
                expected = isinstance(error, RsnotifyError | OSError)
                _log.error(
                    "publishing stopped and is tried again: %s", error, exc_info=not expected
                )
                await self._pause(_TRY_AGAIN_AFTER)

    async def _lead(self) -> None:
        self._leader = self._make_leader()
        try:
            await self._leader.lead(self._stop)
        finally:
            self._leader = None

    def _note_published(self) -> None:
        """Another process leads; what it has written is published for us as well."""
        if (self._source.documents_folder / RESOURCE_LIST).exists():
            self.published.set()

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()
