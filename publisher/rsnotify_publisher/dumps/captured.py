"""The content that each change gave its resource, kept until the Change Dump is written.

A Change Dump has one bitstream for each change (core §13.2), but the Source can only return the
current content. So the content is kept here from the time at which the change is recorded, in a
file for each change, named after the datetime of the change.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from rsnotify.errors import StorageError
from rsnotify.format.datetimes import Instant, to_microseconds
from rsnotify.format.model import Resource
from rsnotify.format.vocabulary import ChangeType
from rsnotify.plural import counted
from rsnotify_publisher.dumps.bitstreams import Bitstream, opened
from rsnotify_publisher.hashes import Digests

_log = logging.getLogger("rsnotify.publisher")


class Captured:
    """A folder of contents, which any number of threads and processes may write.

    Content is kept only for changes with a hash: nothing else shows that the content of a resource
    is still that of the change.
    """

    def __init__(self, folder: Path, content: Callable[[str], bytes | Path | None]) -> None:
        self._folder = folder
        self._content = content

    def put(self, change: Resource, content: bytes) -> None:
        """Keep the content that came with a change."""
        with opened(content) as bitstream:
            assert bitstream is not None
            _copy(bitstream, change.hash or "", self._path(change))

    def keep(self, changes: Iterable[Resource]) -> None:
        """Keep the current content of resources, if its hash is still that of the change.

        The sooner this is called after a change, the fewer resources have changed again. Files
        that exist are left alone. Nothing is flushed to the disk, because the hash reveals a file
        that a crash has damaged.

        Errors are logged: the entry of such a change has no bitstream in the Change Dump.
        """
        failed: list[Exception] = []
        for change in changes:
            try:
                self._keep(change)
            except (StorageError, OSError) as error:
                failed.append(error)
        if failed:
            _log.error(
                "the content of %s could not be kept for the Change Dump; the first: %s",
                *(counted(len(failed), "change"), failed[0]),
            )

    def _keep(self, change: Resource) -> None:
        if change.change is ChangeType.DELETED or change.hash is None:
            return
        path = self._path(change)
        if not path.exists():
            with opened(self._content(change.uri)) as bitstream:
                if bitstream is not None:
                    _copy(bitstream, change.hash, path)

    def content(self, change: Resource) -> Path | None:
        """Return the file with the content of a change, if it was kept; the caller verifies it."""
        path = self._path(change)
        return path if path.exists() else None

    def forget(self, through: Instant) -> None:
        last = _name(through)
        for path in self._folder.glob("*"):
            if path.name <= last:
                path.unlink(missing_ok=True)

    def _path(self, change: Resource) -> Path:
        assert change.datetime is not None, "a change that was recorded has a datetime"
        return self._folder / _name(change.datetime)


def _name(instant: Instant) -> str:
    return f"{to_microseconds(instant):020}"


def _copy(bitstream: Bitstream, hashes: str, path: Path) -> None:
    """Copy a bitstream to a file, unless it has another hash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Several threads and processes may keep the same content.
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_native_id()}.tmp")
    digests = Digests(hashes)
    try:
        with open(temporary, "wb") as file:
            for chunk in bitstream.chunks():
                digests.update(chunk)
                file.write(chunk)
        if digests.agree:
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
