"""Folders being published: each is looked through, started and watched, a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

from rsnotify.errors import RsnotifyError
from rsnotify.plural import counted
from rsnotify.runtime.lanes import Lane
from rsnotify_publisher.folder.listening import Listening
from rsnotify_publisher.folder.serve import Folder
from rsnotify_publisher.folder.sets import load
from rsnotify_publisher.folder.watch import Watcher
from rsnotify_publisher.groups import first_cause
from rsnotify_publisher.publisher import Publisher, close_all

# Threads that begin with folders, and those that look at files for good.
_OPENERS = 4
_SCANNERS = 4


_Say = Callable[[str], None]


class Stopping(RsnotifyError):
    """What is looked through for the first time is not needed any more."""


class Publishing:
    """Publishes folders.

    Args:
        folders: All that are sets of the Source.
        listening: The URL at which this process serves them.
    """

    def __init__(self, folders: Sequence[Folder], listening: str) -> None:
        self._folders = folders
        self._listening = listening
        self._compared = {folder.prefix: asyncio.Event() for folder in folders}
        self._is_stopping = False
        #: Set when all folders are published.
        self.published = asyncio.Event()

    async def run(self, stop: asyncio.Event, say: _Say) -> None:
        """Publish until told to stop, and end in order.

        Args:
            stop: Is set then.
            say: Called with a line for each folder that is published, in their order.

        Raises:
            RsnotifyError: One cannot be published.
        """
        publishing = asyncio.create_task(self._publish(say))
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({publishing, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._is_stopping = True
            for task in (publishing, stopped):
                task.cancel()
            await asyncio.gather(publishing, stopped, return_exceptions=True)
        if not publishing.cancelled() and (error := publishing.exception()) is not None:
            raise first_cause(error) if isinstance(error, Exception) else error

    async def _publish(self, say: _Say) -> None:
        openers = ThreadPoolExecutor(_OPENERS, "rsnotify-opener")
        scanners = ThreadPoolExecutor(_SCANNERS, "rsnotify-scanner")
        try:
            await self._watch(openers, scanners, say)
        finally:
            for pool in (openers, scanners):
                await asyncio.to_thread(pool.shutdown, cancel_futures=True)
            await asyncio.to_thread(close_all, [each.publisher for each in self._folders])

    async def _watch(self, openers: Executor, scanners: ThreadPoolExecutor, say: _Say) -> None:
        watchers = {
            folder.names.root: Watcher(folder.names, folder.publisher, Lane(scanners))
            for folder in self._folders
        }
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(Listening(watchers).run())
            await asyncio.sleep(0)  # from now on they are watched, so that no change is missed
            for folder in self._folders:
                watcher = watchers[folder.names.root]
                tasks.create_task(self._keep(folder, watcher, openers))
            tasks.create_task(self._announce(say))

    async def _keep(self, folder: Folder, watcher: Watcher, openers: Executor) -> None:
        """Publish one folder from now on."""
        await asyncio.get_running_loop().run_in_executor(openers, self._open, folder)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(watcher.run(self._compared[folder.prefix].set))
            if await folder.publisher.await_published():
                folder.ready.set()

    def _open(self, folder: Folder) -> None:
        load(folder, self._check, is_alone=len(self._folders) == 1)
        self._check()
        folder.publisher.start()

    def _check(self) -> None:
        if self._is_stopping:
            raise Stopping

    async def _announce(self, say: _Say) -> None:
        for folder in self._folders:
            await folder.ready.wait()
            await self._compared[folder.prefix].wait()
            count = await asyncio.to_thread(_count, folder.publisher)
            say(
                f"rsnotify source serving {folder.names.base_url} ({counted(count, 'resource')}), "
                f"listening on {self._listening}"
            )
        self.published.set()


def _count(publisher: Publisher) -> int:
    with publisher.source.open_journal() as journal:
        return journal.count()
