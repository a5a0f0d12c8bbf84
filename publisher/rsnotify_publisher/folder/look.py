"""One look at one file: its length, hash and type, and how to tell that it has not changed."""

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
from rsnotify_publisher.folder.names import media_type


class Look(Struct, frozen=True):
    """What was seen.

    Args:
        resource: The file as a resource, without a change.
        validator: Equal at the next look if the file has not changed; None when a change
            could go unseen by it.
    """

    resource: Resource
    validator: str | None


class Unsettled(RsnotifyError):
    """The file changed while it was read; it has to be looked at again."""


def validator_of(status: os.stat_result) -> str:
    """Return what tells whether a file has changed, from `os.stat`."""
    return f"{status.st_size}:{status.st_mtime_ns}"


def look_at(path: Path, uri: str) -> Look:
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
        raise Unsettled
    resource = Resource(
        uri,
        lastmod=from_microseconds(after.st_mtime_ns // 1000),
        hash=f"sha-256:{digest}",
        length=after.st_size,
        type=media_type(path),
    )
    settled = time.time() - after.st_mtime > TICK
    return Look(resource, validator_of(after) if settled else None)
