"""Content between the Source and the handler.

Small content stays in memory until a worker thread writes it: creating a file can take as long as
a flush of the disk, and must not block the event loop.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from rsnotify.format.datetimes import Instant
from rsnotify.format.hashes import Digester
from rsnotify.format.model import Resource

#: Windows has text files.
_BINARY: int = getattr(os, "O_BINARY", 0)
#: The most bytes of one content that are kept in memory.
_IN_MEMORY = 131_072


class Content(Struct, frozen=True):
    """Verified content.

    Args:
        path: A file of its own, which has the content after `write`.
        hashes: Its digests, as a `hash` attribute: SHA-256 and those that were announced.
        data: The content, unless it is in the file already.
        validator: The header field of a conditional request for it, if there is one.
        type: The media type that the server stated, unless a hash proved what it is.
        fetched_at: When its own server sent it, by the clock of that server, in microseconds
            since 1970; 0 if that is unknown, None if it did not come from its own server.
        modified: The latest time at which it can have been modified, if the response shows that.
        doubt: Why it may not be what was announced; empty if nothing contradicts that.
    """

    path: Path
    hashes: str
    length: int
    data: bytes | None = None
    validator: str | None = None
    type: str | None = None
    fetched_at: int | None = None
    modified: Instant | None = None
    doubt: str = ""

    def write(self) -> None:
        """Write the content to the file, unless it is there already."""
        if self.data is not None:
            # Objects for files would take longer than the calls.
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _BINARY, 0o666)
            try:
                written = os.write(descriptor, self.data)
                while written < len(self.data):
                    written += os.write(descriptor, self.data[written:])
            finally:
                os.close(descriptor)

    def read(self) -> bytes:
        return self.path.read_bytes() if self.data is None else self.data

    def discard(self) -> None:
        """Remove the file, if it is still there."""
        with suppress(FileNotFoundError):
            os.unlink(self.path)


class Unchanged(Struct, frozen=True):
    """The answer that content has not changed (304); its fields mean what they do in `Content`."""

    fetched_at: int
    modified: Instant | None = None
    doubt: str = ""


class ContentCollector:
    """Collects content chunk by chunk in a file of its own; an async context manager."""

    def __init__(self, path: Path, announced: str | None) -> None:
        self._path = path
        self._digester = Digester(announced)
        self._data = bytearray()
        self._in_file = False

    @property
    def length(self) -> int:
        return self._digester.length

    async def add(self, chunk: bytes) -> None:
        self._digester.update(chunk)
        self._data += chunk
        if len(self._data) > _IN_MEMORY:
            await asyncio.to_thread(self._spill)

    async def content(self, resource: Resource | None, *, recoded: bool) -> Content:
        """Return the collected content, or raise `ContentMismatch` if it is not what was announced.

        Args:
            resource: The entry with its `hash` and `length`; None to verify nothing.
            recoded: Whether the server sent the content encoded.
        """
        if resource is not None:
            self._digester.verify(resource, recoded=recoded)
        if self._in_file:
            await asyncio.to_thread(self._spill)
        data = None if self._in_file else bytes(self._data)
        return Content(self._path, self._digester.hashes, self.length, data)

    def _spill(self) -> None:
        with self._path.open("ab") as file:
            file.write(self._data)
        self._data.clear()
        self._in_file = True

    async def __aenter__(self) -> ContentCollector:
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        if self._in_file and kind is not None:
            await asyncio.to_thread(self._path.unlink, missing_ok=True)
