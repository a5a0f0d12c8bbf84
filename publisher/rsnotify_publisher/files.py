"""Files that readers see whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def atomic(path: Path) -> Iterator[BinaryIO]:
    """Write a file under a temporary name, flush it to the disk, and rename it.

    If an exception passes through, the file is left as it was.

    Raises:
        OSError: The disk is full, or the folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def write_atomically(path: Path, chunks: Iterable[bytes]) -> None:
    """Write a whole file as `atomic` does."""
    with atomic(path) as file:
        file.writelines(chunks)


def also_as(path: Path, other: Path) -> None:
    """Give a finished file a second name, in one step too.

    Raises:
        OSError: As in `atomic`.
    """
    temporary = other.with_name(f".{other.name}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        os.link(path, temporary)
    except OSError:  # not every file system has hard links
        write_atomically(other, [path.read_bytes()])
        return
    os.replace(temporary, other)
    # A rename of one name of a file onto another name of the same file does nothing.
    temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
