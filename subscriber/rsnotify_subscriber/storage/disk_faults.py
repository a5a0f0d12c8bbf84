"""Telling a disk that is full or fails for a while from other faults."""

from __future__ import annotations

import errno
import sqlite3

_NUMBERS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})
_CODES = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})
#: Extended codes of SQLite have the primary one in their lowest byte.
_PRIMARY = 0xFF


def is_disk_fault(error: BaseException) -> bool:
    """Return whether an error comes from a disk that is full, or that failed to read or write."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _NUMBERS:
            return True
        if isinstance(cause, sqlite3.Error):
            code = getattr(cause, "sqlite_errorcode", None)
            if code is not None and code & _PRIMARY in _CODES:
                return True
        cause = cause.__cause__ or cause.__context__
    return False
