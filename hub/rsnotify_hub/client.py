"""The hub's HTTP client, for addresses that strangers named.

The check is made on the address that is dialled, after every lookup: a name may lead to a
private address, and aiohttp asks no resolver about addresses that are written out.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from yarl import URL

from rsnotify.runtime.addresses import refusal
from rsnotify_hub.lookups import Lookups

USER_AGENT = "rsnotify-hub"

#: How many connections there are at once: a callback that hangs holds one for a while.
CONNECTIONS = 500
CONNECTIONS_PER_HOST = 50

#: How many answers may wait to be looked at on one connection.
ANSWERS = 20


def guarded_socket(info: aiohttp.AddrInfoType) -> socket.socket:
    """Make the socket for an address.

    Raises:
        PermissionError: It is not dialled for a stranger.
    """
    family, kind, protocol, _, address = info
    reason = refusal(str(address[0]))
    if reason is not None:
        raise PermissionError(f"its address is not dialled: {reason}")
    return socket.socket(family, kind, protocol)


class _Answers(ResponseHandler):
    """Reads answers, and hangs up where more come than a request can have.

    Each answer with a status of 1xx waits in memory until it is looked at, and aiohttp takes
    as many as are sent.
    """

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Take an answer, in the order in which they come."""
        if len(self._buffer) < ANSWERS:
            super().feed_data(data, size)
        elif self.transport is not None:
            self.transport.abort()


class _Connector(aiohttp.TCPConnector):
    """Dials, and reads answers with bounds.

    Args:
        socket_factory: Makes the socket for an address, or refuses to.
        connections: How many connections there may be at once.
        per_host: How many of them may go to one host.
    """

    def __init__(
        self,
        socket_factory: Callable[[aiohttp.AddrInfoType], socket.socket] | None,
        *,
        connections: int,
        per_host: int,
    ) -> None:
        super().__init__(
            resolver=Lookups(),
            socket_factory=socket_factory,
            limit=connections,
            limit_per_host=per_host,
        )
        self._factory = partial(_Answers, loop=self._loop)  # type: ignore[assignment]


def open_client(
    *,
    allow_private_addresses: bool,
    seconds: float | None,
    connections: int = CONNECTIONS,
    per_host: int = CONNECTIONS_PER_HOST,
) -> aiohttp.ClientSession:
    """Open the client.

    Args:
        allow_private_addresses: Whether to dial any address.
        seconds: How long one request may take; None where the caller sees to that.
        connections: How many there may be at once; 0 where the caller sees to that.
        per_host: How many of them may go to one host; 0 likewise.
    """
    return aiohttp.ClientSession(
        connector=_Connector(
            None if allow_private_addresses else guarded_socket,
            connections=connections,
            per_host=per_host,
        ),
        timeout=aiohttp.ClientTimeout(total=seconds),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,  # a small answer cannot become a large one
        headers={"User-Agent": USER_AGENT, "Accept-Encoding": "identity"},
    )


def exactly(url: str) -> URL:
    """Return a URL that is requested as it was written, without normalising it."""
    return URL(url, encoded=True)


def reason_of(error: Exception) -> str:
    """Say why a request failed, without its URL, which may hold a secret."""
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
