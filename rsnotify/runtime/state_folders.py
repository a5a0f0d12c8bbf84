"""State folders, which outlive a power failure: their roles, and faults of the disk."""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

from rsnotify.errors import ConfigurationError

_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})
#: Extended codes of SQLite have the primary one in their lowest byte.
_PRIMARY = 0xFF


def make_durably(folder: Path, *, mode: int = 0o777) -> None:
    """Make a folder and its parents, and flush their entries.

    An existing folder's entry is flushed too, as the process that made it may have died first.
    """
    above = list(folder.parents)
    made = [parent for parent in above if not parent.exists()]
    folder.mkdir(mode, parents=True, exist_ok=True)
    for parent in above[: len(made) + 1]:
        with suppress(PermissionError):  # some folders may only be passed through
            flush(parent)


#: Flushes the content of an open file, without its times where the system can leave them out.
flush_data = getattr(os, "fdatasync", os.fsync)


def flush(path: str | Path) -> None:
    if os.name == "nt" and os.path.isdir(path):
        return  # Windows cannot open a folder, and does not need to
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_disk_fault(error: BaseException) -> bool:
    """Return whether an error comes from a disk that is full, or that failed to read or write."""
    import sqlite3  # which the help of commands does not need

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


#: The state file of each role. That of a relay's Destination is copied before that of its Source.
ROLES = {
    "hub.sqlite": "a hub",
    "state.sqlite": "a Destination",
    "journal.sqlite3": "a Source",
}


def check_role(file: Path) -> None:
    """Refuse to create a state file in a folder that has the state of another role.

    If the file exists already, the folder belongs to its role.
    """
    if file.exists():
        return
    for name, role in ROLES.items():
        if name != file.name and (file.parent / name).exists():
            raise ConfigurationError(
                f"{file.parent} holds the state of {role} ({name}); choose another folder "
                f"for that of {ROLES[file.name]}"
            )


def later_version(file: Path) -> ConfigurationError:
    """Return the error for a state file that only a later version can read."""
    return ConfigurationError(
        f"{file} was written by a later version of rsnotify; use that version, or restore a backup "
        "that was made before the upgrade"
    )


def flush_milliseconds(folder: Path) -> float:
    """Return how long one flush of a small file in a folder takes; the file is removed."""
    with TemporaryFile(dir=folder, buffering=0) as file:
        file.write(b"\0" * 4096)
        began = time.perf_counter()
        os.fsync(file.fileno())
        return (time.perf_counter() - began) * 1_000
