"""What a Publisher does in the background: it leads, or waits until it may."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

from filelock import FileLock, Timeout

from rsnotify.errors import RsnotifyError
from rsnotify_publisher.background.leader import Leader
from rsnotify_publisher.background.pool import PublisherPool
from rsnotify_publisher.source_context import SourceContext
from rsnotify_publisher.source_documents import DESCRIPTION, RESOURCE_LIST

_log = logging.getLogger("rsnotify.publisher")
_TAKE_OVER_WITHIN = 0.2
_TRY_AGAIN_AFTER = 1.0


class LeaderElection:
    """Leads when no other process of the Source does.

    The system frees the lock of a leader that dies, however it dies.

    Args:
        source: The Source.
        make_leader: Makes a leader, for each time that this process comes to lead.
        shared: Where it runs.

    Attributes:
        published: Done once every document is there.
    """

    def __init__(
        self, source: SourceContext, make_leader: Callable[[], Leader], shared: PublisherPool
    ) -> None:
        self._source = source
        self._lock = FileLock(source.lock, thread_local=False)
        self._make_leader = make_leader
        self._shared = shared
        self._leader: Leader | None = None
        self._stop = asyncio.Event()
        self._running: Future[None]
        self.published: Future[None] = Future()

    def start(self) -> None:
        """Begin to lead, or to wait for it."""
        self._running = self._shared.spawn(self._main())

    def wake(self) -> None:
        """Say, from any thread, that the journal has something new."""
        leader = self._leader
        if leader is not None:
            self._shared.call(leader.wake)

    def stop(self) -> None:
        """Begin to end in order; several then do so at the same time."""
        self._shared.call(self._stop.set)

    def close(self) -> None:
        """End in order."""
        self.stop()
        self._running.result()

    def note_published(self) -> None:
        """Say, in the event loop, that every document is there."""
        if not self.published.done():
            self.published.set_result(None)

    async def _main(self) -> None:
        ends = led = False
        while not ends and not led:
            # Once more after it was stopped: who led may have ended before our last change.
            ends = self._stop.is_set()
            led = await self._try()

    async def _try(self) -> bool:
        """Lead until stopped; return False if another process leads, or something failed."""
        try:
            with self._lock.acquire(blocking=False):
                await self._lead()
            return True
        except Timeout:
            self._look_for_documents()
            await self._pause(_TAKE_OVER_WITHIN)
        except Exception as error:  # a Source that runs must go on publishing, or try to
            expected = isinstance(error, RsnotifyError | OSError)
            then = "the next start continues" if self._stop.is_set() else "trying again"
            _log.error("publishing failed; %s: %s", then, error, exc_info=not expected)
            await self._pause(_TRY_AGAIN_AFTER)
        return False

    async def _lead(self) -> None:
        self._leader = self._make_leader()
        try:
            await self._leader.lead(self._stop)
        finally:
            self._leader = None

    def _look_for_documents(self) -> None:
        """Another process leads; what it has written is published for us as well."""
        folder = self._source.documents_folder
        if all((folder / name).exists() for name in (RESOURCE_LIST, DESCRIPTION)):
            self.note_published()

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()
