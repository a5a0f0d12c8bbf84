"""Requests and responses as values, which do not depend on the server that exchanges them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from urllib.parse import parse_qsl

from msgspec import Struct

from rsnotify.errors import RsnotifyError


class WebRequest(Struct, frozen=True):
    """A request without its body.

    Args:
        path: The whole path, decoded.
        query: The query as it was sent, without the question mark.
        headers: By names in lower case; a mapping may ignore case instead.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]

    def parameters(self) -> dict[str, str]:
        """Return the first value of each parameter of the query."""
        return dict(reversed(parse_qsl(self.query, keep_blank_values=True)))


class TruncatedBody(RsnotifyError):
    """A body ended before its announced length, so the connection has to be closed."""


class WebResponse(Struct):
    """A response.

    Args:
        headers: All but Content-Length.
        body: The whole body, unless there are `pieces`.
        pieces: The body, read while it is sent, in a thread.
        length: The length of all pieces, if it is known.
        close: Called at the end, also if the client has gone away.
    """

    status: int
    headers: dict[str, str]
    body: bytes = b""
    pieces: Iterator[bytes] | None = None
    length: int | None = None
    close: Callable[[], None] = lambda: None

    def fields(self) -> list[tuple[str, str]]:
        """Return all header fields."""
        length = len(self.body) if self.pieces is None else self.length
        fields = list(self.headers.items())
        if length is not None and self.status not in (204, 304):
            fields.append(("Content-Length", str(length)))
        return fields

    def stream(self) -> Iterator[bytes]:
        """Yield the body.

        Raises:
            TruncatedBody: There is less of it than was announced.
        """
        if self.pieces is None:
            yield self.body
            return
        sent = 0
        for piece in self.pieces:
            sent += len(piece)
            yield piece
        if sent < (self.length or 0):
            raise TruncatedBody(f"the body ended after {sent} of {self.length} bytes")


def text_response(
    status: int, text: str | None = None, headers: Mapping[str, str] | None = None
) -> WebResponse:
    """Return a response of plain text; by default, the name of its status."""
    if text is None:
        text = f"{status}: {HTTPStatus(status).phrase}"
    plain = {"Content-Type": "text/plain; charset=utf-8", **(headers or {})}
    return WebResponse(status, plain, text.encode())
