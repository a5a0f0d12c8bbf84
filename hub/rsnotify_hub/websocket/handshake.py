"""The opening handshake: aiohttp reads the request, and `websockets` determines the answer."""

from __future__ import annotations

from aiohttp import web
from websockets.datastructures import Headers
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

#: The subprotocol of connections with many topics (docs/protocol.md).
TOPICS = Subprotocol("rsnotify.topics")

#: The headers that aiohttp adds to a refusal itself.
_ADDED_BY_AIOHTTP = frozenset(("connection", "content-length", "content-type", "date"))


def accept_upgrade(request: web.Request) -> tuple[bytes, bool]:
    """Return the answer to an upgrade request (RFC 6455 §4.2), and if it is for many topics."""
    protocol = ServerProtocol(
        select_subprotocol=lambda _, offered: TOPICS if TOPICS in offered else None
    )
    headers = Headers([(name, value) for name, value in request.headers.items()])
    answer = protocol.accept(Request(path=request.raw_path, headers=headers))
    if answer.status_code != 101:
        raise _refused(answer.status_code, answer.body or b"", answer.headers)
    return answer.serialize(), protocol.subprotocol == TOPICS


def _refused(status: int, body: bytes | bytearray, headers: Headers) -> web.HTTPException:
    class Refused(web.HTTPException):
        status_code = status

    kept = {
        name: value for name, value in headers.raw_items() if name.lower() not in _ADDED_BY_AIOHTTP
    }
    return Refused(text=body.decode(), headers=kept)
