"""`Expect: 100-continue` (RFC 9110 §10.1.1): whoever asks before it sends a body gets the answer
that the head deserves, and is told to go on only where the body will be read.
"""

from __future__ import annotations

from aiohttp import HttpVersion11, web

_CONTINUE = "100-continue"


async def ask_later(request: web.Request) -> None:
    """Tell nobody to go on yet (an `expect_handler` of aiohttp's): `go_on` does."""


async def go_on(request: web.Request) -> None:
    """Tell a client to send its body, if it waits for that.

    Raises:
        HTTPExpectationFailed: It expects something else.
    """
    if request.version < HttpVersion11:
        return  # what it expects is to be ignored, and it knows no answer before the answer
    expected = request.headers.get("Expect", "").lower()
    if expected not in ("", _CONTINUE):
        raise web.HTTPExpectationFailed(text="the hub knows no such expectation\n")
    if expected:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # the answer itself has not begun
