"""A fast client for small content.

It handles only plain responses. For anything else, such as a redirect, a refused address or a
protocol error, `Sessions.get` must repeat the request, and is used for that server for a while.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msgspec import Struct
from multidict import CIMultiDict

from rsnotify.runtime.addresses import TIMEOUT, Dialer
from rsnotify.runtime.http_client import (
    MAX_RESPONSE_BYTES,
    ConnectionPool,
    ContentReader,
    ContentReply,
    HttpConnection,
    HttpOrigin,
    NoReply,
    StaleConnection,
)
from rsnotify_subscriber.fetching.responses import (
    BODY_GRACE,
    MIN_BYTES_PER_SECOND,
    SentRequest,
    is_encoded,
)

#: Maximum number of bytes of small content. The head of the response may have as many.
SMALL_BYTES = MAX_RESPONSE_BYTES // 2
#: The response header fields to keep, in lower case.
_KEPT_FIELDS = frozenset(
    {b"age", b"content-encoding", b"content-type", b"date", b"etag", b"last-modified"}
    | {b"memento-datetime", b"retry-after", b"transfer-encoding"}
)
#: Seconds for which an idle connection is kept. Many servers keep it for as long.
_KEEP_ALIVE = 15.0
#: Seconds for which this client is not used for a server after a response that was not plain.
_AVOID_TIME = 60.0
#: Seconds between checks for slow responses.
_WATCH_INTERVAL = 5.0


class SmallResponse(Struct, frozen=True):
    """A complete response, with the attributes of `Response`."""

    status: int
    headers: CIMultiDict[str]
    body: bytes
    request_info: SentRequest


class _Progress(Struct, eq=False):
    connection: HttpConnection
    begun: float
    at: float
    received: int = 0


class SmallRequests:
    """Requests for small content.

    Args:
        fields: The default header fields of requests.
        per_host: Maximum number of idle connections to one host.
        silence: Timeout in seconds for a server that sends nothing.
        tls: The trusted certificates, or None for the system's.
        create_socket: Creates a socket for an address, or raises OSError if the address is not
            allowed.
    """

    def __init__(
        self,
        fields: Mapping[str, str],
        per_host: int,
        silence: float,
        tls: ssl.SSLContext | None,
        create_socket: Callable[[Any], socket.socket],
    ) -> None:
        self._fields = fields
        self._lines = _lines(fields)
        self._silence = silence
        self._tls = tls
        self._create_socket = create_socket
        self._pool = ConnectionPool(per_origin=per_host, seconds=_KEEP_ALIVE, reader=ContentReader)
        self._loop = asyncio.get_running_loop()
        self._avoided: dict[HttpOrigin, float] = {}
        self._busy: set[_Progress] = set()
        self._watch: asyncio.TimerHandle | None = None

    async def get(
        self, origin: HttpOrigin, opening: str, fields: Mapping[str, str]
    ) -> SmallResponse | None:
        """GET a resource, given the request line with the Host field.

        Returns:
            The response, or None if `Sessions.get` must repeat the request.

        Raises:
            TimeoutError: The response did not arrive in time.
        """
        if self._avoided and self._avoided.get(origin, 0.0) > self._loop.time():
            return None
        lines = self._lines
        if fields:
            own = CIMultiDict(self._fields)
            own.update(fields)
            lines = _lines(own)
        head = f"{opening}{lines}\r\n".encode("latin-1")
        try:
            reply = await self._reply(origin, head)
        except (NoReply, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
        else:
            response = _response(reply, fields)
            is_plain = reply.status == 200 or reply.status >= 400
            if is_plain and not is_encoded(response):
                return response
        now = self._loop.time()
        self._avoided = {each: end for each, end in self._avoided.items() if end > now}
        self._avoided[origin] = now + _AVOID_TIME
        return None

    async def _reply(self, origin: HttpOrigin, head: bytes) -> ContentReply:
        connection = self._pool.acquire(origin)
        if connection is not None:
            try:
                return await self._request(connection, head)
            except StaleConnection:
                pass  # RFC 9110 §9.2.2: a GET may be repeated
        return await self._request(await self._dial(origin), head)

    async def _dial(self, origin: HttpOrigin) -> HttpConnection:
        connected = await Dialer(create=self._create_socket).dial(origin.host, origin.port)
        tls: dict[str, Any] = {}
        if origin.secure:
            self._tls = self._tls or ssl.create_default_context()
            # Certificates omit the dot of the DNS root.
            tls = {"ssl": self._tls, "server_hostname": origin.host.rstrip(".")}
        factory = partial(HttpConnection, origin, self._pool)
        try:
            async with asyncio.timeout(TIMEOUT):
                _, made = await self._loop.create_connection(factory, sock=connected, **tls)
        except BaseException:
            connected.close()
            raise
        return made

    async def _request(self, connection: HttpConnection, head: bytes) -> ContentReply:
        now = self._loop.time()
        progress = _Progress(connection, now, now)
        self._busy.add(progress)
        if self._watch is None:
            self._watch = self._loop.call_later(_WATCH_INTERVAL, self._end_slow)
        try:
            reply = await connection.request(head)
        finally:
            self._busy.discard(progress)
        assert isinstance(reply, ContentReply), "this is what ContentReader returns"
        return reply

    def _end_slow(self) -> None:
        """Fail the requests whose responses do not arrive, or arrive too slowly."""
        self._watch = None
        now = self._loop.time()
        for progress in list(self._busy):
            received = progress.connection.received
            if received != progress.received:
                progress.received, progress.at = received, now
            is_slow = now - progress.begun > BODY_GRACE + received / MIN_BYTES_PER_SECOND
            if is_slow or now - progress.at > self._silence:
                progress.connection.fail(TimeoutError())
        if self._busy:
            self._watch = self._loop.call_later(_WATCH_INTERVAL, self._end_slow)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._pool.close()


def _response(reply: ContentReply, fields: Mapping[str, str]) -> SmallResponse:
    headers = CIMultiDict(
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in reply.headers
        if name.lower() in _KEPT_FIELDS
    )
    return SmallResponse(reply.status, headers, reply.body, SentRequest(fields))


def _lines(fields: Mapping[str, str]) -> str:
    return "".join(f"{name}: {value}\r\n" for name, value in fields.items())
