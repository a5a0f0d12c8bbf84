"""Decompressing in pieces of bounded size.

An honest list compresses 73 times, and a decompression bomb 1,000 times; neither may be held in
memory as a whole.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterator

_PIECE = 65_536
#: The compressed bytes that may come before the first content. After that, honest streams never
#: have more bytes than their content, whereas one of empty members or blocks would never end.
_WITHOUT_CONTENT = 1_000_000
_GZIP_MAGIC = b"\x1f\x8b"
_ANY_HEADER = 32 + zlib.MAX_WBITS  # gzip or zlib, which zlib distinguishes itself


class Inflater:
    """Decompresses all members of one gzip or zlib stream.

    Call `feed` with every chunk, then `close`. Both raise `zlib.error` if the stream is damaged.
    """

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_ANY_HEADER)
        self._bytes_in = 0
        self._bytes_out = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the content of this chunk, piece by piece."""
        # The rest of a chunk is copied for every piece, so chunks must not be large.
        for start in range(0, len(chunk), _PIECE):
            yield from self._feed(chunk[start : start + _PIECE])

    def _feed(self, chunk: bytes) -> Iterator[bytes]:
        self._bytes_in += len(chunk)
        while chunk:
            if self._stream.eof:
                self._stream = zlib.decompressobj(_ANY_HEADER)
            piece = self._stream.decompress(chunk, _PIECE)
            if piece:
                self._bytes_out += len(piece)
                yield piece
            chunk = self._stream.unconsumed_tail or self._stream.unused_data
        if self._bytes_in > 2 * self._bytes_out + _WITHOUT_CONTENT:
            raise zlib.error("it has hardly any content")

    def close(self) -> None:
        """Check that the stream is complete."""
        if self._bytes_in and not self._stream.eof:
            raise zlib.error("the compressed stream ended too early")


async def inflated(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Decompress a body; raise `zlib.error` if it is damaged or ends too early."""
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
