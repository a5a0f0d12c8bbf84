"""Reads a file: its length, hash and type, and a validator that shows later changes."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

from msgspec import Struct

from rsnotify.errors import RsnotifyError
from rsnotify.format.datetimes import from_microseconds
from rsnotify.format.model import Resource
from rsnotify_publisher.files import TICK
from rsnotify_publisher.folder.file_names import media_type


class FileSnapshot(Struct, frozen=True):
    """A file as it was read.

    Args:
        resource: The file as a resource, without a change.
        validator: Stays equal until the file changes; None if a change could leave it equal.
    """

    resource: Resource
    validator: str | None


class FileStillChanging(RsnotifyError):
    """The file changed while it was read; it has to be read again."""


def validator_of(status: os.stat_result) -> str:
    """Return the validator of a file, from `os.stat`."""
    return f"{status.st_size}:{status.st_mtime_ns}"


def take_snapshot(path: Path, uri: str) -> FileSnapshot:
    """Read a file to its end.

    Raises:
        OSError: It cannot be read, or is gone.
        Unsettled: It is being written.
    """
    with open(path, "rb") as file:
        before = os.fstat(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        after = os.fstat(file.fileno())
    if validator_of(before) != validator_of(after):
        raise FileStillChanging
    resource = Resource(
        uri,
        lastmod=from_microseconds(after.st_mtime_ns // 1000),
        hash=f"sha-256:{digest}",
        length=after.st_size,
        type=media_type(path),
    )
    settled = time.time() - after.st_mtime > TICK
    return FileSnapshot(resource, validator_of(after) if settled else None)
