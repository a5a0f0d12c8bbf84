"""Leader election: one process of a Source leads, and another takes over when it ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import Future

from filelock import FileLock, Timeout

from rsnotify.errors import RsnotifyError
from rsnotify.runtime.tasks import wait_for_event
from rsnotify_publisher.background.leader import Leader
from rsnotify_publisher.background.pool import PublisherPool
from rsnotify_publisher.journal import RecordedChanges, Recorder
from rsnotify_publisher.source_context import SourceContext
from rsnotify_publisher.source_documents import DESCRIPTION, RESOURCE_LIST

_log = logging.getLogger("rsnotify.publisher")
_TAKE_OVER_WITHIN = 0.2
_RETRY_AFTER = 1.0


class LeaderElection:
    """Leads whenever no other process of the Source does.

    The operating system releases the lock of a leader that dies, however it dies.

    Attributes:
        published: Done once every document is written.
    """

    def __init__(self, source: SourceContext, pool: PublisherPool) -> None:
        self._source = source
        self._pool = pool
        self._lock = FileLock(source.lock, thread_local=False)
        self._leader: Leader | None = None
        self._stop = asyncio.Event()
        self._running: Future[None]
        self.published: Future[None] = Future()

    def start(self, recorder: Recorder) -> None:
        """Lead from now on, or wait until that is possible."""
        self._running = self._pool.spawn(self._run(recorder))

    def recorded(self, recorded: Sequence[RecordedChanges]) -> None:
        """Pass durable changes to the feeds of the hubs, from any thread."""
        leader = self._leader
        if leader is not None and recorded and self._source.hubs:
            leader.push.changes.recorded(recorded)

    def stop(self) -> None:
        """Begin to end in order, so that several Publishers can do so at the same time."""
        self._pool.call(self._stop.set)

    def close(self) -> None:
        self.stop()
        self._running.result()

    async def _run(self, recorder: Recorder) -> None:
        is_last = has_led = False
        while not is_last and not has_led:
            # Once more after `stop`: the former leader may have ended before our last change.
            is_last = self._stop.is_set()
            has_led = await self._try_to_lead(recorder)

    async def _try_to_lead(self, recorder: Recorder) -> bool:
        """Lead until stopped; return False if another process leads, or something failed."""
        try:
            with self._lock.acquire(blocking=False):
                await self._lead(recorder)
            return True
        except Timeout:
            self._check_documents()
            await wait_for_event(self._stop, _TAKE_OVER_WITHIN)
        except Exception as error:  # a running Source must go on publishing, or try to
            expected = isinstance(error, RsnotifyError | OSError)
            then = "the next start continues" if self._stop.is_set() else "trying again"
            _log.error("publishing failed; %s: %s", then, error, exc_info=not expected)
            await wait_for_event(self._stop, _RETRY_AFTER)
        return False

    async def _lead(self, recorder: Recorder) -> None:
        with self._source.open_journal() as journal:
            leader = Leader(self._source, journal, recorder, self._pool, self._set_published)
            self._leader = leader
            try:
                await leader.lead(self._stop)
            finally:
                self._leader = None

    def _set_published(self) -> None:
        if not self.published.done():
            self.published.set_result(None)

    def _check_documents(self) -> None:
        """Count what another process has written as published by this one as well."""
        folder = self._source.documents_folder
        if all((folder / name).exists() for name in (RESOURCE_LIST, DESCRIPTION)):
            self._set_published()
