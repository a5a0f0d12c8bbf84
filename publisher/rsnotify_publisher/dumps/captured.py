"""The content of changes, kept from soon after each until its Change Dump is written.

A Change Dump has one bitstream for each change (core §13.2), but a resource can only be
asked for what it holds now. So what it held is kept aside here, in a file for each change,
named after the datetime of the change.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from rsnotify.datetimes import Instant, to_microseconds
from rsnotify.errors import StorageError
from rsnotify.model import Resource
from rsnotify.vocabulary import ChangeType
from rsnotify_publisher.dumps.supply import Bitstream, agrees, chunks, opened
from rsnotify_publisher.hashes import Digests

_log = logging.getLogger("rsnotify.publisher")


class Captured:
    """Contents of changes, in a folder of its own.

    Only changes with a hash have theirs kept, since nothing else tells whether a resource
    still holds what a change made of it.

    Args:
        folder: Where they are kept.
        content: What a resource holds now, told its URI, as `Publisher` is given it.
    """

    def __init__(self, folder: Path, content: Callable[[str], bytes | Path | None]) -> None:
        self._folder = folder
        self._content = content

    def keep(self, changes: Iterable[Resource]) -> None:
        """Keep what resources hold, if it still is what the changes made of them.

        The sooner it is called, the fewer have changed again. What is kept already is left as
        it is. Nothing is flushed to the disk: what a crash damages, its hash gives away.

        What cannot be read or written is passed over, since a Change Dump then has what the
        resource holds later.
        """
        failed: list[Exception] = []
        for change in changes:
            try:
                self._keep(change)
            except (StorageError, OSError) as error:
                failed.append(error)
        if failed:
            _log.error(
                "the content of %d changes could not be kept for the Change Dump; the first: %s",
                *(len(failed), failed[0]),
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
        """Return the file of what a change made of a resource, if that was kept."""
        if change.hash is None:
            return None
        path = self._path(change)
        with opened(path) as bitstream:
            is_whole = bitstream is not None and agrees(bitstream, change.hash)
        return path if is_whole else None

    def forget(self, through: Instant) -> None:
        """Remove what was kept of the changes through an instant."""
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
    """Make a copy, unless it is not what the hashes say."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    digests = Digests(hashes)
    try:
        with open(temporary, "wb") as file:
            for chunk in chunks(bitstream):
                digests.update(chunk)
                file.write(chunk)
        if digests.agree:
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
