"""The hub's HTTP client, for URLs that clients named.

The client checks the address that it connects to, after every lookup: a name may resolve to a
private address, and aiohttp does not resolve IP literals.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from functools import partial
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from yarl import URL

from rsnotify.runtime.dialing import AddressResolver, Connector, public_sockets

USER_AGENT = "rsnotify-hub"

#: How many connections there are at the same time: a callback that hangs occupies one.
CONNECTIONS = 500
CONNECTIONS_PER_HOST = 50

#: How many unread responses one connection may have.
MAX_RESPONSES = 20


guarded_socket = public_sockets(
    lambda reason: PermissionError(
        f"its address is not public ({reason}), which this hub permits only with "
        "--allow-private-addresses"
    )
)


class _BoundedResponses(ResponseHandler):
    """Reads responses, and closes a connection with more than a request can have.

    A response with a status of 1xx stays in memory until it is read, and aiohttp accepts any
    number of them.
    """

    def feed_data(self, data: Any, size: int = 0) -> None:
        if len(self._buffer) < MAX_RESPONSES:
            super().feed_data(data, size)
        elif self.transport is not None:
            self.transport.abort()


def open_client(
    *,
    allow_private_addresses: bool,
    seconds: float | None,
    connections: int = CONNECTIONS,
    per_host: int = CONNECTIONS_PER_HOST,
) -> aiohttp.ClientSession:
    """Return a new client. No timeout is None, and no limit on connections is 0."""
    connector = Connector(
        resolver=AddressResolver(),
        socket_factory=None if allow_private_addresses else guarded_socket,
        limit=connections,
        limit_per_host=per_host,
    )
    factory = partial(_BoundedResponses, loop=asyncio.get_running_loop())
    connector._factory = factory  # type: ignore[assignment]
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=seconds),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,  # a small response cannot become a large one
        headers={"User-Agent": USER_AGENT, "Accept-Encoding": "identity"},
    )


def exact_url(url: str) -> URL:
    """Return a URL that is requested as it was written, without normalization."""
    return URL(url, encoded=True)


def reason_of(error: Exception) -> str:
    """Return why a request failed, without its URL, which may contain a secret."""
    cause: BaseException | None = error
    while cause is not None:  # aiohttp wraps the error of the socket
        if isinstance(cause, TimeoutError):
            return "it takes too long"
        if isinstance(cause, OSError) and not isinstance(cause, aiohttp.ClientError):
            if not cause.errno or isinstance(cause, socket.gaierror | ssl.SSLError):
                return cause.strerror or str(cause)
            return os.strerror(cause.errno)  # asyncio puts the address in place of the reason
        cause = cause.__cause__
    if isinstance(error, aiohttp.InvalidURL):
        return "its URL cannot be requested"
    return type(error).__name__
