"""Publishes folders: each is scanned, started and watched, a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

from rsnotify.errors import RsnotifyError
from rsnotify.plural import counted
from rsnotify.runtime.lanes import Lane
from rsnotify.runtime.tasks import first_cause, running
from rsnotify_publisher.folder.server import PublishedFolder
from rsnotify_publisher.folder.sets import load
from rsnotify_publisher.folder.system_watch import SystemWatch
from rsnotify_publisher.folder.watcher import FolderWatcher
from rsnotify_publisher.startable import close_all

# Threads that scan folders before the start, and threads that read changed files.
_OPENERS = 4
_SCANNERS = 4

_Announce = Callable[[str], None]


class PublishingStopped(RsnotifyError):
    """The first scan of a folder is not needed any more."""


class FolderPublishing:
    """Publishes all folders of a Source, which are served at the URL `listening`."""

    def __init__(self, folders: Sequence[PublishedFolder], listening: str) -> None:
        self._folders = folders
        self._listening = listening
        self._compared = {folder.prefix: asyncio.Event() for folder in folders}
        self._is_stopping = False
        #: Set when all folders are published.
        self.published = asyncio.Event()

    async def run(self, stop: asyncio.Event, announce: _Announce) -> None:
        """Publish until stopped, and end in order; RsnotifyError if a folder cannot be published.

        Each folder is announced by a line once it is published, in their order.
        """
        async with running(self._publish(announce), stop.wait()) as tasks:
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._is_stopping = True
        publishing, _ = tasks
        if not publishing.cancelled() and (error := publishing.exception()) is not None:
            raise first_cause(error) if isinstance(error, Exception) else error

    async def _publish(self, announce: _Announce) -> None:
        openers = ThreadPoolExecutor(_OPENERS, "rsnotify-opener")
        scanners = ThreadPoolExecutor(_SCANNERS, "rsnotify-scanner")
        watchers = {
            folder.names.root: FolderWatcher(folder.names, folder.publisher, Lane(scanners))
            for folder in self._folders
        }
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(SystemWatch(watchers).run())
                await asyncio.sleep(0)  # now they are watched, so that no change is missed
                for folder in self._folders:
                    watcher = watchers[folder.names.root]
                    tasks.create_task(self._keep(folder, watcher, openers))
                tasks.create_task(self._announce_all(announce))
        finally:
            for pool in (openers, scanners):
                await asyncio.to_thread(pool.shutdown, cancel_futures=True)
            await asyncio.to_thread(close_all, [each.publisher for each in self._folders])

    async def _keep(
        self, folder: PublishedFolder, watcher: FolderWatcher, openers: Executor
    ) -> None:
        """Publish one folder until cancelled."""
        await asyncio.get_running_loop().run_in_executor(openers, self._open, folder)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(watcher.run(self._compared[folder.prefix].set))
            if await folder.publisher.await_published():
                folder.ready.set()

    def _open(self, folder: PublishedFolder) -> None:
        load(folder, self._check, is_alone=len(self._folders) == 1)
        self._check()
        folder.publisher.start()

    def _check(self) -> None:
        if self._is_stopping:
            raise PublishingStopped

    async def _announce_all(self, announce: _Announce) -> None:
        for folder in self._folders:
            await folder.ready.wait()
            await self._compared[folder.prefix].wait()
            count = await asyncio.to_thread(folder.publisher.source.count)
            announce(
                f"rsnotify source serving {folder.names.base_url} ({counted(count, 'resource')}), "
                f"listening on {self._listening}"
            )
        self.published.set()
