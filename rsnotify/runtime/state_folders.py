"""State folders: durable creation, the role of each folder, and detection of disk faults."""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

from rsnotify.errors import ConfigurationError

_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})
#: The byte of SQLite's extended result codes that contains the primary code.
_PRIMARY = 0xFF


def make_durably(folder: Path, *, mode: int = 0o777) -> None:
    """Create a folder and its parents, and flush their directory entries.

    The entry of an existing folder is also flushed, because its creator may have crashed before
    flushing it.
    """
    above = list(folder.parents)
    made = [parent for parent in above if not parent.exists()]
    folder.mkdir(mode, parents=True, exist_ok=True)
    for parent in above[: len(made) + 1]:
        with suppress(PermissionError):  # some folders can be traversed but not read
            flush(parent)


#: Flushes the content of an open file, without timestamps if the system can omit them.
flush_data = getattr(os, "fdatasync", os.fsync)


def flush(path: str | Path) -> None:
    if os.name == "nt" and os.path.isdir(path):
        return  # Windows cannot open folders, and need not flush them
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_disk_fault(error: BaseException) -> bool:
    """Return whether a full disk, or a failed read or write, caused an error."""
    import sqlite3  # not needed for the help of commands

    codes = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _ERRNOS:
            return True
        if isinstance(cause, sqlite3.Error):
            code = getattr(cause, "sqlite_errorcode", None)
            if code is not None and code & _PRIMARY in codes:
                return True
        cause = cause.__cause__ or cause.__context__
    return False


#: The state file of each role. A backup of a relay copies the Destination's before the Source's.
ROLES = {
    "hub.sqlite": "a hub",
    "state.sqlite": "a Destination",
    "journal.sqlite3": "a Source",
}


def check_role(file: Path) -> None:
    """Refuse to create a state file in a folder with the state of another role."""
    if file.exists():
        return
    for name, role in ROLES.items():
        if name != file.name and (file.parent / name).exists():
            raise ConfigurationError(
                f"{file.parent} contains the state of {role} ({name}); choose another folder for "
                f"{ROLES[file.name]}"
            )


def later_version(file: Path) -> ConfigurationError:
    """Return the error for a state file that only a later version can read."""
    return ConfigurationError(
        f"{file} was written by a later version of rsnotify; use that version, or restore a backup "
        "from before the upgrade"
    )


def flush_milliseconds(folder: Path) -> float:
    """Measure how many milliseconds it takes to flush a small temporary file in a folder."""
    with TemporaryFile(dir=folder, buffering=0) as file:
        file.write(b"\0" * 4096)
        began = time.perf_counter()
        os.fsync(file.fileno())
        return (time.perf_counter() - began) * 1_000
