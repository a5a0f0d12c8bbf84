"""The content of changes, kept until a Change Dump contains it.

A Change Dump has one bitstream for each change (core §13.2), but the Source can only return the
current content. The content is therefore kept from the time the change is recorded until the dump
is written, in one file per change, named after the change's datetime.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from rsnotify.errors import StorageError, counted
from rsnotify.format.datetimes import Instant, to_microseconds
from rsnotify.format.hashes import Digester, are_included
from rsnotify.format.model import ChangeType, Resource
from rsnotify_publisher.bitstreams import Bitstream, opened

logger = logging.getLogger("rsnotify.publisher")


class CapturedContent:
    """A folder with the contents of changes. Any number of threads and processes may write to it.

    Content is kept only for changes with a hash. Without one, there is no proof that the resource's
    current content is still the content after the change.
    """

    def __init__(self, folder: Path, content: Callable[[str], bytes | Path | None]) -> None:
        self._folder = folder
        self._content = content

    def put(self, change: Resource, content: bytes) -> None:
        """Keep content that was recorded with its change."""
        with opened(content) as bitstream:
            assert bitstream is not None
            _copy_if_matching(bitstream, change.hash or "", self._path(change))

    def keep(self, changes: Iterable[Resource]) -> None:
        """Keep the current content of the changed resources, if it still matches the change's hash.

        The sooner this is called after a change, the fewer resources have changed again. Existing
        files are not overwritten. Files are not flushed to the disk, because the hash reveals if a
        crash has damaged a file.

        Errors are logged. In the Change Dump, the entry of such a change has no bitstream.
        """
        failed: list[Exception] = []
        for change in changes:
            if change.change is ChangeType.DELETED or change.hash is None:
                continue
            path = self._path(change)
            try:
                if not path.exists():
                    with opened(self._content(change.uri)) as bitstream:
                        if bitstream is not None:
                            _copy_if_matching(bitstream, change.hash, path)
            except (StorageError, OSError) as error:
                failed.append(error)
        if failed:
            logger.error(
                "the content of %s could not be kept for the Change Dump; the first error: %s",
                counted(len(failed), "change"),
                failed[0],
            )

    def content(self, change: Resource) -> Path | None:
        """Return the file with the kept content of a change, or None. The caller must verify it."""
        path = self._path(change)
        return path if path.exists() else None

    def forget(self, through: Instant) -> None:
        """Delete the content of the changes through an instant."""
        last = _name(through)
        for path in self._folder.glob("*"):
            if path.name <= last:
                path.unlink(missing_ok=True)

    def _path(self, change: Resource) -> Path:
        assert change.datetime is not None, "a change that was recorded has a datetime"
        return self._folder / _name(change.datetime)


def _name(instant: Instant) -> str:
    return f"{to_microseconds(instant):020}"


def _copy_if_matching(bitstream: Bitstream, hashes: str, path: Path) -> None:
    """Copy a bitstream to a file if it has the given hash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Several threads and processes may keep the same content at the same time.
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_native_id()}.tmp")
    digester = Digester(hashes)
    try:
        with open(temporary, "wb") as file:
            for chunk in bitstream.chunks():
                digester.update(chunk)
                file.write(chunk)
        if are_included(hashes, digester.hashes):
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
