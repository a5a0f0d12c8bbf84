"""Contents to copy into a package or a file. Each is opened just before it is copied."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from rsnotify.format.model import ChangeType, Resource

#: Number of bytes copied at a time.
CHUNK_SIZE = 262_144


#: Returns the content for an entry: the bytes, the path of a file, or None if it is gone.
EntryContent = Callable[[Resource], bytes | Path | None]


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


#: An entry with its bitstream, if there is one.
EntryBitstream = tuple[Resource, Bitstream | None]


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


def with_bitstreams(
    entries: Iterable[Resource], content: EntryContent, check: Callable[[], None]
) -> Generator[EntryBitstream]:
    """Yield entries with their bitstreams. Each stays open until the next one is requested.

    `check` is called before each entry, and raises an exception to stop.
    """
    for resource in entries:
        check()
        is_deletion = resource.change is ChangeType.DELETED
        with opened(None if is_deletion else content(resource)) as bitstream:
            yield resource, bitstream
