"""Publishes a folder as a Source, or several folders as its sets.

Each folder is scanned first; then its Publisher starts, and the folder is watched.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import typer
from filelock import FileLock, Timeout
from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError, RsnotifyError, counted
from rsnotify.runtime.command_reports import Work, can_draw, progress_of
from rsnotify.runtime.tasks import Lane, first_cause, running
from rsnotify_publisher.config import SourceConfiguration
from rsnotify_publisher.description import SourceDescription
from rsnotify_publisher.folder.file_names import FileNames
from rsnotify_publisher.folder.scanner import FolderScanner
from rsnotify_publisher.folder.watcher import FolderWatcher, SystemWatch
from rsnotify_publisher.options import Options
from rsnotify_publisher.publisher import Publisher, close_all
from rsnotify_publisher.source_context import normalize_base_url
from rsnotify_publisher.web import path_of

#: The default folder for the state of several sets.
_DEFAULT_STATE = Path("rsnotify-source")
#: Number of threads that scan folders before their Publishers start.
_OPENER_THREADS = 4
#: Number of threads that read changed files.
_SCANNER_THREADS = 4

_Announce = Callable[[str], None]


class PublishedFolder(Struct, frozen=True):
    """A folder as a set of resources.

    `ready` is set when every document has been written, and `compared` when the folder has been
    compared with the journal.
    """

    names: FileNames
    publisher: Publisher
    ready: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    compared: asyncio.Event = msgspec.field(default_factory=asyncio.Event)

    @property
    def prefix(self) -> str:
        return path_of(self.publisher)


def one_folder(
    root: Path, base_url: str, settings: SourceConfiguration
) -> tuple[Publisher, list[PublishedFolder]]:
    """Return a Source that publishes one folder. Raises ConfigurationError if it cannot."""
    names = FileNames(root, normalize_base_url(base_url))
    beside = names.root.with_name(names.root.name + ".rsnotify")
    state = Path(settings.data) if settings.data else beside / "source"
    folder = _folder(names, state, settings, settings.options_of(), settings.described_by)
    check_folders([folder])
    return folder.publisher, [folder]


def several_folders(
    base_url: str, settings: SourceConfiguration
) -> tuple[SourceDescription, list[PublishedFolder]]:
    """Return a Source that publishes several folders as its sets, as the settings describe.

    Raises:
        ConfigurationError: A folder or setting is unusable.
    """
    if not settings.sets:
        raise ConfigurationError("the Source's configuration has no [[set]]; add one")
    folders = []
    for each in settings.sets:
        url = each.base_url or f"{normalize_base_url(base_url)}{each.name}/"
        names = FileNames(Path(each.folder), normalize_base_url(url))
        state = Path(settings.data or _DEFAULT_STATE) / each.name
        options = settings.options_of(each)
        folders.append(_folder(names, state, settings, options, each.described_by))
    publishers = [folder.publisher for folder in folders]
    source = SourceDescription(base_url, publishers, described_by=settings.described_by)
    check_folders(folders)
    return source, folders


def _folder(
    names: FileNames,
    state: Path,
    settings: SourceConfiguration,
    options: Options,
    described_by: str | None,
) -> PublishedFolder:
    publisher = Publisher(
        state.resolve(),
        names.base_url,
        hubs=settings.known_hubs(),
        content=lambda uri: _published_file(names, uri),
        described_by=described_by,
        options=replace(options, change_memory=True),
    )
    return PublishedFolder(names, publisher)


def _published_file(names: FileNames, uri: str) -> Path | None:
    path = names.path(uri)
    return path if path is not None and names.is_published(path) else None


@contextmanager
def claim(folders: Sequence[PublishedFolder]) -> Iterator[None]:
    """Lock the state of these folders against any other `rsnotify source`.

    Without the lock, both would compare the same folder with the journal and record the
    differences, so that every change would be published twice.
    """
    with ExitStack() as claims:
        for folder in folders:
            state = folder.publisher.source.folder
            try:
                claims.enter_context(FileLock(state / "source.lock", blocking=False))
            except Timeout:
                raise ConfigurationError(
                    f"{folder.names.root} is being published by another rsnotify source, whose "
                    f"state is in {state}; stop it first"
                ) from None
        yield


def check_folders(folders: Sequence[PublishedFolder]) -> None:
    """Raise ConfigurationError if a folder cannot be published or its state cannot be stored."""
    for folder in folders:
        folder.names.check()
    published = _by_root(folders)
    for folder in folders:
        for other in _containing(folder.names.root, published):
            if other is not folder and other.names.may_be_published(folder.names.root):
                raise _overlap(other, folder)
    for folder in folders:
        state = folder.publisher.source.folder
        if _containing(state, published):
            raise ConfigurationError(
                f"the state in {state} would be published; choose another folder with --data"
            )
        folder.publisher.source.check_folders()


def _by_root(folders: Sequence[PublishedFolder]) -> dict[Path, PublishedFolder]:
    found: dict[Path, PublishedFolder] = {}
    for folder in folders:
        other = found.setdefault(folder.names.root, folder)
        if other is not folder:
            raise _overlap(other, folder)
    return found


def _containing(path: Path, folders: Mapping[Path, PublishedFolder]) -> list[PublishedFolder]:
    """Return the folders that contain a path. This is fast even for many folders."""
    return [folders[parent] for parent in (path, *path.parents) if parent in folders]


def _overlap(first: PublishedFolder, second: PublishedFolder) -> ConfigurationError:
    return ConfigurationError(
        f"the sets at {first.names.base_url} and {second.names.base_url} would both publish "
        f"{second.names.root}; give each set a folder that is not inside another's"
    )


def load(folder: PublishedFolder, on_file: Callable[[], None], *, is_alone: bool) -> None:
    """Load the files of a folder as the baseline if this is the first start.

    `on_file` is called for each file and may raise an exception to stop. If `is_alone`, the
    progress is shown in a terminal.
    """
    names, publisher = folder.names, folder.publisher
    if not publisher.is_empty():
        return
    is_drawn = is_alone and can_draw(sys.stderr)
    scanned, total = 0, None
    with publisher.source.open_journal() as journal:
        scanner = FolderScanner(names, journal)
        if is_drawn:
            total = sum(1 for _ in scanner.files(names.root))

        def advance() -> None:
            nonlocal scanned
            on_file()
            scanned += 1

        def work() -> Work:
            return Work("scanning", "files", scanned, total)

        with progress_of(work, quiet=not is_alone):
            count = publisher.load(scanner.baseline(advance))
    if not is_drawn:
        typer.echo(f"rsnotify source scanned {names.root} ({counted(count, 'file')})", err=True)


class PublishingStopped(RsnotifyError):
    """The first scan of a folder was stopped because the command is shutting down."""


class FolderPublishing:
    """Publishes all folders of a Source. Its server listens at `local_url`."""

    def __init__(self, folders: Sequence[PublishedFolder], local_url: str) -> None:
        self._folders = folders
        self._local_url = local_url
        self._is_stopping = False
        #: Set when all folders are published.
        self.published = asyncio.Event()

    async def run(self, stop: asyncio.Event, announce: _Announce) -> None:
        """Publish until `stop` is set, then shut down cleanly.

        `announce` is called with a line about each folder as soon as it is published, in the order
        of the folders.

        Raises:
            RsnotifyError: A folder cannot be published.
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
        openers = ThreadPoolExecutor(_OPENER_THREADS, "rsnotify-opener")
        scanners = ThreadPoolExecutor(_SCANNER_THREADS, "rsnotify-scanner")
        watchers = {
            folder.names.root: FolderWatcher(folder.names, folder.publisher, Lane(scanners))
            for folder in self._folders
        }
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(SystemWatch(watchers).run())
                await asyncio.sleep(0)  # the watch starts before the scans, so no change is missed
                for folder in self._folders:
                    watcher = watchers[folder.names.root]
                    tasks.create_task(self._publish_one(folder, watcher, openers))
                tasks.create_task(self._announce_all(announce))
        finally:
            for pool in (openers, scanners):
                await asyncio.to_thread(pool.shutdown, cancel_futures=True)
            await asyncio.to_thread(close_all, [each.publisher for each in self._folders])

    async def _publish_one(
        self, folder: PublishedFolder, watcher: FolderWatcher, openers: Executor
    ) -> None:
        """Publish one folder until cancelled."""
        await asyncio.get_running_loop().run_in_executor(openers, self._open, folder)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(watcher.run(folder.compared.set))
            if await folder.publisher.await_published():
                folder.ready.set()

    def _open(self, folder: PublishedFolder) -> None:
        load(folder, self._check_running, is_alone=len(self._folders) == 1)
        self._check_running()
        folder.publisher.start()

    def _check_running(self) -> None:
        if self._is_stopping:
            raise PublishingStopped

    async def _announce_all(self, announce: _Announce) -> None:
        for folder in self._folders:
            await folder.ready.wait()
            await folder.compared.wait()
            count = await asyncio.to_thread(folder.publisher.source.count)
            announce(
                f"rsnotify source serving {folder.names.base_url} ({counted(count, 'resource')}), "
                f"listening on {self._local_url}"
            )
        self.published.set()
