"""The contents of resources, which the Source's callback `content` returns.

A Change Dump has one bitstream for each change (core §13.2), but the Source can only return the
current content. `CapturedContent` therefore keeps the content from the time the change is recorded
until the dump is written, in one file per change, named after the change's datetime.
"""

from __future__ import annotations

import io
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from rsnotify.errors import StorageError, counted
from rsnotify.format.datetimes import Instant, to_microseconds
from rsnotify.format.hashes import Digester, are_included
from rsnotify.format.model import INLINE_LIMIT, ChangeType, Resource

logger = logging.getLogger("rsnotify.publisher")
#: Number of bytes copied at a time.
CHUNK_SIZE = 262_144

#: Returns the current content at a URI: bytes, the path of a file, or None if it is gone.
ContentCallback = Callable[[str], bytes | Path | None]


class Bitstream(Struct, frozen=True):
    """A seekable file with content. It may grow beyond `size` while it is being copied."""

    file: BinaryIO
    size: int

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes from the beginning, up to `size`."""
        self.file.seek(0)
        left = self.size
        while left and (chunk := self.file.read(min(CHUNK_SIZE, left))):
            left -= len(chunk)
            yield chunk


@contextmanager
def opened(found: bytes | Path | None) -> Iterator[Bitstream | None]:
    """Open content as a bitstream. Yield None if there is no content."""
    if isinstance(found, bytes):
        yield Bitstream(io.BytesIO(found), len(found))
    elif found is None or (file := _open(found)) is None:
        yield None
    else:
        with file:
            yield Bitstream(file, os.fstat(file.fileno()).st_size)


def _open(path: Path) -> BinaryIO | None:
    try:
        return open(path, "rb")
    except (FileNotFoundError, NotADirectoryError):  # deleted in the meantime
        return None


class CapturedContent:
    """A folder with the contents of changes. Any number of threads and processes may write to it.

    Content is kept only for changes with a hash. Without one, there is no proof that the resource's
    current content is still the content after the change.
    """

    def __init__(self, folder: Path, content: ContentCallback) -> None:
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


class SourceContents(Struct, frozen=True):
    """Calls the Source's callback, and checks what it returns."""

    content: ContentCallback

    def get(self, uri: str) -> bytes | Path | None:
        """Return the current content of a resource, or None if the resource or its file is gone.

        Raises:
            StorageError: The callback failed, or returned a value of another type.
        """
        try:
            found = self.content(uri)
        except Exception as error:  # the Source's own code may raise anything
            raise StorageError(f"the content of {uri} is not available: {error!r}") from error
        if not isinstance(found, bytes | Path | None):
            raise StorageError(
                f"the content of {uri} is not available: `content` returned a "
                f"{type(found).__name__}, not bytes, a Path or None"
            )
        if isinstance(found, Path) and not found.is_file():
            return None
        return found

    def inline(self, uris: Sequence[str]) -> Mapping[str, bytes]:
        """Return the contents that are small enough to be sent inside a fragment."""
        found = {}
        for uri in uris:
            try:
                content = self.get(uri)
                if isinstance(content, Path):
                    with open(content, "rb") as file:
                        content = file.read(INLINE_LIMIT + 1)
            except (StorageError, OSError):  # Destinations GET the resource instead
                logger.exception("sending %s without inline content", uri)
                continue
            if content is not None and len(content) <= INLINE_LIMIT:
                found[uri] = content
        return found
