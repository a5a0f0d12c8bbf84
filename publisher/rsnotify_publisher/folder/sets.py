"""From settings to sets: a folder as a Source, or several folders as the sets of one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import typer
from msgspec.structs import replace
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from rsnotify.errors import ConfigurationError
from rsnotify_publisher.configuration import Configuration
from rsnotify_publisher.description import SourceDescription
from rsnotify_publisher.folder.names import Names
from rsnotify_publisher.folder.scan import Scanner
from rsnotify_publisher.folder.serve import Folder
from rsnotify_publisher.options import Options
from rsnotify_publisher.publisher import Publisher
from rsnotify_publisher.source import normalize_base_url

#: Where the state of several sets is kept, if the settings do not say.
_STATE = Path("rsnotify-source")


def one_folder(
    root: Path, base_url: str, settings: Configuration
) -> tuple[Publisher, list[Folder]]:
    """Make a Source of one folder.

    Args:
        root: The folder.
        base_url: Its URL.
        settings: All else.

    Raises:
        ConfigurationError: The folder, the base URL or another setting is unusable.
    """
    names = Names(root, normalize_base_url(base_url))
    beside = names.root.with_name(names.root.name + ".rsnotify")
    state = Path(settings.data) if settings.data else beside / "source"
    folder = _folder(names, state, settings, settings.options_of(), settings.described_by)
    check_folders([folder])
    return folder.publisher, [folder]


def several_folders(
    base_url: str, settings: Configuration
) -> tuple[SourceDescription, list[Folder]]:
    """Make a Source of several folders, each of which is a set of resources.

    Raises:
        ConfigurationError: A folder, a URL or another setting is unusable, or two sets overlap.
    """
    if not settings.sets:
        raise ConfigurationError("the configuration of the Source has no [[set]]; add one")
    folders = []
    for one in settings.sets:
        place = one.base_url or f"{normalize_base_url(base_url)}{one.name}/"
        names = Names(Path(one.folder), normalize_base_url(place))
        state = Path(settings.data or _STATE) / one.name
        options = settings.options_of(one)
        folders.append(_folder(names, state, settings, options, one.described_by))
    publishers = [folder.publisher for folder in folders]
    source = SourceDescription(base_url, publishers, described_by=settings.described_by)
    check_folders(folders)
    return source, folders


def _folder(
    names: Names,
    state: Path,
    settings: Configuration,
    options: Options,
    described_by: str | None,
) -> Folder:
    publisher = Publisher(
        state.resolve(),
        names.base_url,
        hubs=settings.known_hubs(),
        content=lambda uri: _file(names, uri),
        described_by=described_by,
        options=replace(options, change_memory=True),
    )
    return Folder(names, publisher)


def _file(names: Names, uri: str) -> Path | None:
    path = names.path(uri)
    return path if path is not None and names.is_published(path) else None


def check_folders(folders: Sequence[Folder]) -> None:
    """Refuse folders that cannot be published, and states that cannot be kept.

    Raises:
        ConfigurationError: The message says which.
    """
    for folder in folders:
        folder.names.check()
    for one, other in permutations(folders, 2):
        if _publishes(one.names, other.names.root):
            raise ConfigurationError(
                f"the sets at {one.names.base_url} and {other.names.base_url} would both publish "
                f"{other.names.root}; give each a folder that is not within another's"
            )
    for folder in folders:
        state = folder.publisher.source.folder
        if any(state.is_relative_to(other.names.root) for other in folders):
            raise ConfigurationError(
                f"the state in {state} would be published; choose another --data"
            )
        folder.publisher.source.check_folders()


def _publishes(names: Names, folder: Path) -> bool:
    if folder == names.root:
        return True
    return folder.is_relative_to(names.root) and names.may_be_published(folder)


def load(folder: Folder) -> None:
    """Take what a folder holds at the first start as the baseline."""
    names, publisher = folder.names, folder.publisher
    if not publisher.is_empty():
        return
    with publisher.source.open_journal() as journal:
        scanner = Scanner(names, journal)
        total = sum(1 for _ in scanner.files(names.root))
        progress = Progress(
            TextColumn("scanning"),
            BarColumn(),
            MofNCompleteColumn(),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
        )
        with progress:
            task = progress.add_task("scanning", total=total)
            count = publisher.load(scanner.baseline(lambda: progress.advance(task)))
    if not sys.stderr.isatty():
        typer.echo(f"rsnotify source scanned {names.root} ({count} files)", err=True)
