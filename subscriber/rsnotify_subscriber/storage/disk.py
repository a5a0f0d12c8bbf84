"""Making folders that are still there after a power failure."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def make_durably(folder: Path) -> None:
    """Make a folder and those above it, and flush their entries.

    An existing folder's entry is flushed too, as the process that made it may have died first.

    Raises:
        OSError: It cannot be made, or not be flushed.
    """
    above = list(folder.parents)
    made = [one for one in above if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for one in above[: len(made) + 1]:
        with suppress(PermissionError):  # a folder may be one to pass through only
            flush(one)


def flush(path: Path) -> None:
    """Flush a file, or the entries of a folder."""
    if os.name == "nt" and path.is_dir():
        return  # Windows cannot open a folder, and does not need to
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
