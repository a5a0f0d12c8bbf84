"""Downloading a document within bounds, and without blocking the event loop.

The size of a document is bounded by `rsnotify.format.reader.Limits`. Here its time is, and the
number of large documents that all subscribers with the same connections read at once.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable

import aiohttp

from rsnotify.errors import ContentMismatch, MalformedDocument, Unavailable
from rsnotify_subscriber.fetching.inflating import inflated_if_gzip
from rsnotify_subscriber.fetching.responses import body

#: The most seconds that a document may take.
MOST_SECONDS = 1_800.0
#: A document with more bytes of XML counts as large.
LARGE_BYTES = 8_000_000
#: The bytes that are parsed at a time; the worst of them take some milliseconds.
_STEP = 32_768


async def stream_document(
    uri: str,
    response: aiohttp.ClientResponse,
    large: asyncio.Semaphore,
    feed: Callable[[bytes], object],
) -> None:
    """Pass a document to `feed`, decompressed and piece by piece; if that raises, download no more.

    Reading on in a large document needs the semaphore `large`.

    Raises:
        MalformedDocument: Its compression is damaged.
        Unavailable: It did not come in time, or in an encoding that was not requested.
    """
    size = 0
    is_large = False
    try:
        async with asyncio.timeout(MOST_SECONDS) as bound:
            async for chunk in inflated_if_gzip(body(uri, response)):
                size += len(chunk)
                if size > LARGE_BYTES and not is_large:
                    is_large = await large.acquire()
                for start in range(0, len(chunk), _STEP):
                    feed(chunk[start : start + _STEP])
                    await asyncio.sleep(0)
    except (zlib.error, ContentMismatch) as error:
        raise MalformedDocument(f"its compression is damaged: {error}", source=uri) from None
    except TimeoutError:
        if not bound.expired():
            raise
        raise Unavailable(uri, f"it has not ended after {MOST_SECONDS:.0f} seconds") from None
    finally:
        if is_large:
            large.release()
