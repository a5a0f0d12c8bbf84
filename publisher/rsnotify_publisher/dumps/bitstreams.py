"""Opens the bitstreams for packages one at a time, just before each is copied."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from rsnotify.format.model import Resource
from rsnotify.format.vocabulary import ChangeType

#: Bytes that are copied at a time.
CHUNK = 262_144

#: Returns the content for an entry: the bytes, the file that has them, or None if it is gone.
EntryContent = Callable[[Resource], bytes | Path | None]


class Bitstream(Struct, frozen=True):
    """Content about to be copied, in a seekable file that may grow beyond `size` meanwhile."""

    file: BinaryIO
    size: int

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes from the beginning, up to the size."""
        self.file.seek(0)
        left = self.size
        while left and (chunk := self.file.read(min(CHUNK, left))):
            left -= len(chunk)
            yield chunk


#: An entry, and its bitstream if there is one.
EntryBitstream = tuple[Resource, Bitstream | None]


@contextmanager
def opened(found: bytes | Path | None) -> Iterator[Bitstream | None]:
    """Open what an `EntryContent` returned; None if there is no content."""
    if isinstance(found, bytes):
        yield Bitstream(io.BytesIO(found), len(found))
        return
    file = None if found is None else _open(found)
    if file is None:
        yield None
        return
    with file:
        yield Bitstream(file, os.fstat(file.fileno()).st_size)


def _open(path: Path) -> BinaryIO | None:
    try:
        return open(path, "rb")
    except (FileNotFoundError, NotADirectoryError):  # deleted meanwhile
        return None


class BitstreamSupplier(Struct, frozen=True):
    """Opens the bitstreams of entries, one after the other; `check` raises an exception to stop."""

    content: EntryContent
    check: Callable[[], None]

    def of(self, entries: Iterable[Resource]) -> Generator[EntryBitstream]:
        """Yield entries with their bitstreams; each is open until the next one is requested."""
        for entry in entries:
            self.check()
            if entry.change is ChangeType.DELETED:
                yield entry, None
                continue
            with self.opened(entry) as bitstream:
                yield entry, bitstream

    def opened(self, entry: Resource) -> AbstractContextManager[Bitstream | None]:
        return opened(self.content(entry))
