"""From settings to sets: a folder as a Source, or several folders as the sets of one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import typer
from filelock import FileLock, Timeout
from msgspec.structs import replace
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from rsnotify.errors import ConfigurationError
from rsnotify.plural import counted
from rsnotify_publisher.config import SourceConfiguration
from rsnotify_publisher.description import SourceDescription
from rsnotify_publisher.folder.file_names import FileNames
from rsnotify_publisher.folder.scanner import FolderScanner
from rsnotify_publisher.folder.server import PublishedFolder
from rsnotify_publisher.options import Options
from rsnotify_publisher.publisher import Publisher
from rsnotify_publisher.source_context import normalize_base_url

#: Where the state of several sets is kept, if the settings do not say.
_STATE = Path("rsnotify-source")


def one_folder(
    root: Path, base_url: str, settings: SourceConfiguration
) -> tuple[Publisher, list[PublishedFolder]]:
    """Make a Source of one folder.

    Args:
        root: The folder.
        base_url: Its URL.
        settings: All else.

    Raises:
        ConfigurationError: The folder, the base URL or another setting is unusable.
    """
    names = FileNames(root, normalize_base_url(base_url))
    beside = names.root.with_name(names.root.name + ".rsnotify")
    state = Path(settings.data) if settings.data else beside / "source"
    folder = _folder(names, state, settings, settings.options_of(), settings.described_by)
    check_folders([folder])
    return folder.publisher, [folder]


def several_folders(
    base_url: str, settings: SourceConfiguration
) -> tuple[SourceDescription, list[PublishedFolder]]:
    """Make a Source of several folders, each of which is a set of resources.

    Raises:
        ConfigurationError: A folder, a URL or another setting is unusable, or two sets overlap.
    """
    if not settings.sets:
        raise ConfigurationError("the configuration of the Source has no [[set]]; add one")
    folders = []
    for one in settings.sets:
        place = one.base_url or f"{normalize_base_url(base_url)}{one.name}/"
        names = FileNames(Path(one.folder), normalize_base_url(place))
        state = Path(settings.data or _STATE) / one.name
        options = settings.options_of(one)
        folders.append(_folder(names, state, settings, options, one.described_by))
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
        content=lambda uri: _file(names, uri),
        described_by=described_by,
        options=replace(options, change_memory=True),
    )
    return PublishedFolder(names, publisher)


def _file(names: FileNames, uri: str) -> Path | None:
    path = names.path(uri)
    return path if path is not None and names.is_published(path) else None


@contextmanager
def claim(folders: Sequence[PublishedFolder]) -> Iterator[None]:
    """Keep every other `rsnotify source` from publishing these folders with the same state.

    Each would compare the folder with the journal and record what it finds, so that every change
    would be published twice.

    Raises:
        ConfigurationError: Another one does.
    """
    with ExitStack() as claims:
        for folder in folders:
            state = folder.publisher.source.folder
            try:
                claims.enter_context(FileLock(state / "source.lock", blocking=False))
            except Timeout:
                raise ConfigurationError(
                    f"{folder.names.root} is being published by another rsnotify source, whose "
                    f"state is in {state}; stop that one first"
                ) from None
        yield


def check_folders(folders: Sequence[PublishedFolder]) -> None:
    """Refuse folders that cannot be published, and states that cannot be kept.

    Raises:
        ConfigurationError: The message says which.
    """
    for folder in folders:
        folder.names.check()
    published = _by_root(folders)
    for folder in folders:
        for other in _around(folder.names.root, published):
            if other is not folder and other.names.may_be_published(folder.names.root):
                raise _both(other, folder)
    for folder in folders:
        state = folder.publisher.source.folder
        if _around(state, published):
            raise ConfigurationError(
                f"the state in {state} would be published; choose another --data"
            )
        folder.publisher.source.check_folders()


def _by_root(folders: Sequence[PublishedFolder]) -> dict[Path, PublishedFolder]:
    found: dict[Path, PublishedFolder] = {}
    for folder in folders:
        other = found.setdefault(folder.names.root, folder)
        if other is not folder:
            raise _both(other, folder)
    return found


def _around(path: Path, folders: Mapping[Path, PublishedFolder]) -> list[PublishedFolder]:
    """Return the folders in which a path is; of many it is found as soon as of few."""
    return [folders[one] for one in (path, *path.parents) if one in folders]


def _both(one: PublishedFolder, other: PublishedFolder) -> ConfigurationError:
    return ConfigurationError(
        f"the sets at {one.names.base_url} and {other.names.base_url} would both publish "
        f"{other.names.root}; give each a folder that is not within another's"
    )


def load(folder: PublishedFolder, on_file: Callable[[], None], *, is_alone: bool) -> None:
    """Take what a folder holds at the first start as the baseline.

    Args:
        folder: The folder.
        on_file: Called for each file; may raise to break off.
        is_alone: Whether it is the only one, so that a terminal has room to show how far it is.
    """
    names, publisher = folder.names, folder.publisher
    if not publisher.is_empty():
        return
    with publisher.source.open_journal() as journal, _progress(is_alone) as progress:
        scanner = FolderScanner(names, journal)
        total = None if progress.disable else sum(1 for _ in scanner.files(names.root))
        task = progress.add_task("scanning", total=total)

        def advance() -> None:
            on_file()
            progress.advance(task)

        count = publisher.load(scanner.baseline(advance))
    if progress.disable:
        typer.echo(f"rsnotify source scanned {names.root} ({counted(count, 'file')})", err=True)


def _progress(is_alone: bool) -> Progress:
    return Progress(
        TextColumn("scanning"),
        BarColumn(),
        MofNCompleteColumn(),
        console=Console(stderr=True),
        disable=not (is_alone and sys.stderr.isatty()),
    )
