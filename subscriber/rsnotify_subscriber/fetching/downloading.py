"""Receive a document, within bounds and without holding up what else the process does.

How much a document may have is a matter of `rsnotify.format.reader.Limits`. Here is how long it may
take, how many large ones are read at once by all subscribers that share their connections, and
that the event loop turns to other tasks between small pieces.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable

import aiohttp

from rsnotify.errors import ContentMismatch, MalformedDocument, Unavailable
from rsnotify_subscriber.fetching.inflating import inflated_if_gzip
from rsnotify_subscriber.fetching.responses import body

#: Seconds after which a document has to have ended.
MOST_SECONDS = 1_800.0
#: Bytes of XML from which on a document is a large one.
LARGE_BYTES = 8_000_000
#: Bytes that are parsed at a time; the worst of them take some milliseconds.
_STEP = 32_768


async def stream_document(
    uri: str,
    response: aiohttp.ClientResponse,
    large: asyncio.Semaphore,
    take: Callable[[bytes], object],
) -> None:
    """Pass a document to a function, decompressed and piece by piece.

    Args:
        uri: Where it is.
        response: The answer; its body is the document.
        large: What is held while a large document is read on.
        take: Is called with each piece. If it raises, no more is downloaded.

    Raises:
        MalformedDocument: Its compression is damaged.
        Unavailable: It did not come in time, or in an encoding that was not asked for.
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
                    take(chunk[start : start + _STEP])
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
