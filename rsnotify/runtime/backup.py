"""The commands `rsnotify backup` and `rsnotify restore`, which copy a state, even while in use."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated

import typer

from rsnotify.errors import ConfigurationError, StorageError
from rsnotify.runtime.command_reports import Quiet, Work, progress_of
from rsnotify.runtime.reasons import reason_of
from rsnotify.runtime.state_folders import ROLES, flush, make_durably

ROLE = "operate"

_NEW = "It must be empty or not exist."
_State = Annotated[Path, typer.Argument(metavar="STATE", help="State folder.")]
_NewState = Annotated[Path, typer.Argument(metavar="STATE", help=f"State folder. {_NEW}")]
_Backup = Annotated[Path, typer.Argument(metavar="BACKUP", help="Backup folder.")]
_NewBackup = Annotated[Path, typer.Argument(metavar="BACKUP", help=f"Backup folder. {_NEW}")]


def backup(state: _State, backup: _NewBackup, quiet: Quiet = False) -> None:
    """Back up the state of a Source, hub, Destination, relay or gateway, even while it is running.

    The backup is durable when the command ends. Only its owner can read it, because it contains
    secrets.

    Examples:
        rsnotify backup rsnotify-hub hub-backup
        rsnotify backup data.rsnotify source-backup
    """
    _copy(state, backup, "backed up", "backing up", quiet=quiet)


def restore(backup: _Backup, state: _NewState, quiet: Quiet = False) -> None:
    """Restore a state from a backup.

    Start the program that uses the state afterwards. A Destination then compares all files.

    Examples:
        rsnotify restore hub-backup rsnotify-hub
        rsnotify restore source-backup data.rsnotify
    """
    _copy(backup, state, "restored", "restoring", quiet=quiet)


def _copy(source: Path, target: Path, done: str, doing: str, *, quiet: bool) -> None:
    amount = CopiedBytes()
    with progress_of(lambda: Work(doing, done=amount.done, total=amount.total), quiet=quiet):
        size = copy_state(source, target, amount)
    typer.echo(f"{done} {source} to {target}: {size / 1e6:.1f} MB")


#: Suffixes of a running process's files: locks, SQLite's temporary files, and content in transit.
_TEMPORARY_SUFFIXES = ("lock", "-wal", "-shm", "-journal", "applying")
_TEMPORARY_FOLDER = "incoming"
_PARTIAL = ".partial"
#: Makes the next run compare all files, because a mirror is newer than its restored state.
_RESTORED = "INSERT OR REPLACE INTO facts VALUES ('restored', CAST('true' AS BLOB))"


class CopiedBytes:
    """The progress of `copy_state`, which another thread reads."""

    def __init__(self) -> None:
        self.total: int | None = None
        #: The copied files. SQLite may still be writing the last one.
        self.copies: list[Path] = []

    @property
    def done(self) -> int:
        return sum(map(_size, self.copies[:]))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def copy_state(source: Path, target: Path, amount: CopiedBytes | None = None) -> int:
    """Copy a state durably, including states in subfolders, and return the number of bytes.

    In a relay, a change is in the Source's journal before the Destination's T covers it, so the
    journal is copied after T. Documents are copied after the journal, because the next start
    discards documents that are newer than the journal.

    Raises:
        ConfigurationError: `source` contains no state, or `target` is unusable.
        StorageError: A file cannot be read or written.
    """
    import sqlite3  # not needed for the help of commands

    amount = amount or CopiedBytes()
    databases = [path for name in ROLES for path in sorted(source.rglob(name))]
    if not databases:
        names = ", ".join(ROLES)
        raise ConfigurationError(f"{source} contains no state of rsnotify ({names})")
    if target.resolve().is_relative_to(source.resolve()):
        raise ConfigurationError(f"{target} is inside {source}; choose another folder")
    try:
        if target.exists() and any(target.iterdir()):
            raise ConfigurationError(
                f"{target} is not empty; choose a new folder. To replace a state, stop the program "
                "that uses it and move the folder away first"
            )
        make_durably(target, mode=0o700)
        copies = [target / path.relative_to(source) for path in databases]
        amount.total = sum(map(_size, [*databases, *_files(source)]))
        for path, copy in zip(databases, copies, strict=True):
            partial = copy.with_name(copy.name + _PARTIAL)
            amount.copies.append(partial)
            _copy_database(path, partial)
        for path in _files(source):
            copy = target / path.relative_to(source)
            amount.copies.append(copy)
            _copy_file(path, copy)
        # Renamed last, because a copy without these databases does not count as a state.
        for copy in copies:
            copy.with_name(copy.name + _PARTIAL).rename(copy)
        folders = [path for path in target.rglob("*") if path.is_dir()]
        for folder in [*folders, target]:
            flush(folder)
        return sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    except (OSError, sqlite3.Error) as error:
        raise StorageError(f"{source} cannot be copied to {target}: {reason_of(error)}") from error


def _copy_database(path: Path, copy: Path) -> None:
    import sqlite3

    copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    copy.touch(mode=path.stat().st_mode & 0o777)
    with (
        closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as database,
        closing(sqlite3.connect(copy, isolation_level=None)) as copied,
    ):
        database.backup(copied)
        if path.name == "state.sqlite":
            copied.execute(_RESTORED)
    flush(copy)


def _files(source: Path) -> Iterator[Path]:
    """Yield the files of a state other than its databases."""
    for folder, folders, names in os.walk(source):
        if _TEMPORARY_FOLDER in folders and "state.sqlite" in names:
            folders.remove(_TEMPORARY_FOLDER)
        for name in names:
            path = Path(folder, name)
            if name not in ROLES and not name.endswith(_TEMPORARY_SUFFIXES) and path.is_file():
                yield path


def _copy_file(path: Path, copy: Path) -> None:
    copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileNotFoundError):  # a document that was just deleted
        shutil.copy2(path, copy)
        flush(copy)
