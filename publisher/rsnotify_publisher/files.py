"""Writes files atomically: readers see either the old or the new content."""

from __future__ import annotations

import gzip
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from time import perf_counter
from typing import BinaryIO

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.counters import Durations
from rsnotify.runtime.reasons import reason_of
from rsnotify.runtime.state_folders import flush, make_durably

#: Slightly more than the coarsest resolution of modification times (FAT: 2 s), in seconds. A file
#: that changed more recently may change again and keep its modification time.
MTIME_RESOLUTION = 2.1
#: Number of bytes read at a time.
_PIECE_SIZE = 65_536
#: The number of files that this process has written, and the time spent on flushing them.
flushes = Durations()


@contextmanager
def atomic(path: Path) -> Iterator[BinaryIO]:
    """Write a file under a temporary name, flush it to the disk, and rename it.

    If an exception is raised, the existing file remains unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        with open(temporary, "wb") as file:
            yield file
            began = perf_counter()
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    flush(path.parent)  # makes the rename durable
    flushes.add(perf_counter() - began)


@contextmanager
def writing(path: Path) -> Iterator[Callable[[bytes], object]]:
    """Yield a function that writes a document in pieces, atomically.

    The document is compressed if its name ends in `.gz`.
    """
    with atomic(path) as file:
        if path.suffix == ".gz":
            # Without time and name, equal documents result in equal bytes.
            with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
                yield packed.write
        else:
            yield file.write


def reading(path: Path) -> Iterator[bytes]:
    """Yield a document in pieces, decompressed if its name ends in `.gz`."""
    with open(path, "rb") as file:
        stream = gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file
        while piece := stream.read(_PIECE_SIZE):
            yield piece


def write_atomically(path: Path, chunks: Iterable[bytes]) -> int:
    """Write a whole document atomically, and return the size of the file."""
    with writing(path) as write:
        for chunk in chunks:
            write(chunk)
    return path.stat().st_size


def also_as(path: Path, other: Path) -> None:
    """Give a finished file a second name, atomically."""
    temporary = _temporary(other)
    temporary.unlink(missing_ok=True)
    try:
        os.link(path, temporary)
    except OSError:  # not every file system has hard links
        write_atomically(other, [path.read_bytes()])
        return
    os.replace(temporary, other)
    # Renaming a file to another name of the same file does nothing and leaves both names.
    temporary.unlink(missing_ok=True)


def remove(folder: Path, names: Iterable[str]) -> None:
    """Delete files, ignoring those that do not exist."""
    for name in names:
        (folder / name).unlink(missing_ok=True)


@contextmanager
def all_or_none(folder: Path) -> Iterator[list[str]]:
    """Yield a list for file names, and delete the named files if an exception is raised."""
    names: list[str] = []
    try:
        yield names
    except BaseException:
        remove(folder, names)
        raise


def sweep(folder: Path) -> None:
    """Delete the temporary files of writers that were killed. No writer may be running."""
    for path in folder.rglob(".*.tmp"):
        path.unlink(missing_ok=True)


def check_writable(folder: Path) -> None:
    """Create a folder durably if it is missing, and check that it is writable.

    Raises:
        ConfigurationError: The folder cannot be created or written.
    """
    try:
        make_durably(folder)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        is_file = isinstance(error, FileExistsError)
        reason = "is not a folder" if is_file else f"cannot be written: {reason_of(error)}"
        raise ConfigurationError(f"{folder} {reason}; choose another folder, or fix it") from None


def _temporary(path: Path) -> Path:
    """Return a temporary file name that no other thread or process uses at the same time."""
    return path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}.tmp")
