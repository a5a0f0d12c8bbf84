"""Exchanges requests and responses with a WSGI server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import Any

from rsnotify.runtime.web.messages import WebRequest, WebResponse, text_response

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
WSGIApplication = Callable[[Environ, StartResponse], Iterable[bytes]]


def wsgi_request(environ: Environ) -> WebRequest:
    path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    headers = {
        name.removeprefix("HTTP_").replace("_", "-").lower(): value
        for name, value in environ.items()
        if name.startswith("HTTP_")
    }
    return WebRequest(
        environ["REQUEST_METHOD"],
        path.encode("latin-1").decode(errors="replace"),  # PEP 3333: bytes as Latin-1
        environ.get("QUERY_STRING", ""),
        headers,
    )


def read_wsgi_body(environ: Environ, most: int) -> bytes:
    """Return the body, or the first `most + 1` bytes of a longer one.

    Raises:
        ConnectionError: It is incomplete, or its length is unknown.
    """
    length = environ.get("CONTENT_LENGTH", "")
    if not (length.isdecimal() if length else environ.get("wsgi.input_terminated")):
        raise ConnectionError("the request has no valid Content-Length")
    body = bytearray()
    wanted = min(int(length) if length else most + 1, most + 1)
    while piece := environ["wsgi.input"].read(wanted - len(body)):
        body += piece
    if length and len(body) < wanted:
        raise ConnectionError(f"the body ended after {len(body)} of {length} bytes")
    return bytes(body)


class ResponseBody:
    """The body of a response, which the server reads and then closes.

    Reading it raises `TruncatedBody` if it is shorter than announced; the server then closes the
    connection.
    """

    def __init__(self, response: WebResponse, method: str) -> None:
        self._pieces = iter(()) if method == "HEAD" else response.stream()
        self.close = response.close

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces


def begin_response(
    response: WebResponse, environ: Environ, start_response: StartResponse
) -> ResponseBody:
    """Pass status and headers to the server, and return the body."""
    start_response(f"{response.status} {HTTPStatus(response.status).phrase}", response.fields())
    return ResponseBody(response, environ["REQUEST_METHOD"])


def wsgi_not_found(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
    """Answer every request with 404: an application without any path."""
    return begin_response(text_response(404), environ, start_response)
