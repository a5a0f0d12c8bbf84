"""Decompress in pieces of bounded size: an honest list compresses 73 times, a bomb 1,000 times,
and neither may become memory.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterator

_PIECE = 65_536
#: Compressed bytes that may come before the first content. After that honest streams never have
#: more bytes than their content, whereas one of empty members or blocks would never end.
_WITHOUT_CONTENT = 1_000_000
_GZIP_MAGIC = b"\x1f\x8b"
_ANY_HEADER = 32 + zlib.MAX_WBITS  # gzip or zlib, told apart by zlib itself


class Inflater:
    """Decompresses one stream of gzip or zlib, all members of it.

    Call `feed` with every chunk, then `close`. Both raise `zlib.error` when it is damaged.
    """

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_ANY_HEADER)
        self._taken = 0
        self._given = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the content of this chunk, piece by piece."""
        # What is left of a chunk is copied for every piece, so chunks must not be large.
        for start in range(0, len(chunk), _PIECE):
            yield from self._feed(chunk[start : start + _PIECE])

    def _feed(self, chunk: bytes) -> Iterator[bytes]:
        self._taken += len(chunk)
        while chunk:
            if self._stream.eof:
                self._stream = zlib.decompressobj(_ANY_HEADER)
            piece = self._stream.decompress(chunk, _PIECE)
            if piece:
                self._given += len(piece)
                yield piece
            chunk = self._stream.unconsumed_tail or self._stream.unused_data
        if self._taken > 2 * self._given + _WITHOUT_CONTENT:
            raise zlib.error("it has hardly any content")

    def close(self) -> None:
        """Say that the input ended."""
        if self._taken and not self._stream.eof:
            raise zlib.error("the compressed stream ended too early")


async def inflated(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Decompress a body.

    Raises:
        zlib.error: It is damaged or ends too early.
    """
    inflater = Inflater()
    async for chunk in chunks:
        for piece in inflater.feed(chunk):
            yield piece
    inflater.close()


async def inflated_if_gzip(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Decompress a body if it begins as gzip does (a `.xml.gz` file); else yield it as it is."""
    head = b""
    inflater: Inflater | None = None
    decided = False
    async for chunk in chunks:
        if not decided:
            chunk = head = head + chunk
            if len(head) < len(_GZIP_MAGIC):
                continue
            decided = True
            inflater = Inflater() if head.startswith(_GZIP_MAGIC) else None
        if inflater is None:
            yield chunk
        else:
            for piece in inflater.feed(chunk):
                yield piece
    if inflater is not None:
        inflater.close()
    elif not decided and head:
        yield head
