"""HTTP connections, of one subscriber or of all in a process, and how many there may be."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any
from weakref import WeakValueDictionary

import aiohttp
from yarl import URL

from rsnotify.runtime.addresses import refusal
from rsnotify.sync.retry import LONGEST_RETRY_AFTER

#: Connections to one host at a time: enough to hide latency, and no load to speak of.
PER_HOST = 32
#: Requests at a time.
MOST = 100
#: Large documents that are read at a time, as each is in memory until it has been read.
_LARGE_DOCUMENTS = 3
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=30)


class NotPublic(OSError):
    """An address was not dialled because it is not public."""

    def __init__(self) -> None:
        # The same text for each address of a host: aiohttp then hands this very error on.
        super().__init__(
            errno.EACCES,
            "it is at a loopback, private or otherwise not public address, which is dialled only "
            "for the host and port of the Source's URL, unless --allow-private-addresses is given",
        )


def guarded_socket(info: Any) -> socket.socket:
    """Make a socket for an address as `getaddrinfo` gives it.

    Raises:
        NotPublic: The address is not dialled for a stranger.
    """
    family, kind, protocol, _, address = info
    if refusal(address[0]) is not None:
        raise NotPublic
    return socket.socket(family, kind, protocol)


class Connections:
    """A pool of connections; an async context manager, entered again once it is left.

    There are two kinds, so that whoever may only be dialled at a public address is not reached
    by a connection that was made for somebody else.

    Args:
        most: Requests at a time, over all hosts; who asks for more waits for a turn.
        per_host: Requests to one host at a time.
        tls: Whose certificates are trusted; those of the system where it is left out.

    Attributes:
        large: Is held while a large document is read (`receiving.receive`).
    """

    def __init__(
        self, *, most: int = MOST, per_host: int = PER_HOST, tls: ssl.SSLContext | None = None
    ) -> None:
        self._most = most
        self._options: dict[str, Any] = {
            "limit": 0,  # `most` and `per_host` are the limits
            "ssl": tls or True,
        }
        self._per_host = per_host
        self._rooms: WeakValueDictionary[URL, asyncio.Semaphore] = WeakValueDictionary()
        self._resting: dict[URL, float] = {}

    async def __aenter__(self) -> Connections:
        self._room = asyncio.Semaphore(self._most)
        self.large = asyncio.Semaphore(_LARGE_DOCUMENTS)
        self._anywhere = self._session()
        self._guarded = self._session(socket_factory=guarded_socket)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._anywhere.close()
        await self._guarded.close()

    def _session(self, **options: Any) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(**self._options, **options),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=_TIMEOUT,
            # Inflated by ourselves, in pieces of bounded size.
            auto_decompress=False,
            headers={"User-Agent": f"rsnotify/{version('rsnotify')}"},
        )

    @asynccontextmanager
    async def request(
        self, method: str, url: URL, *, anywhere: bool, **options: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Make a request, when it is its turn; redirects are not followed.

        Args:
            method: The method.
            url: What is asked for.
            anywhere: Whether its host may be at any address.
            options: As those of `aiohttp.ClientSession.request`.

        Raises:
            aiohttp.ClientError: There is no answer.
            TimeoutError: There is none in time.
        """
        session = self._anywhere if anywhere else self._guarded
        async with (
            # First, so that those who wait for a slow host take no room from the others.
            self._room_of(url.origin()),
            self._room,
            session.request(method, url, allow_redirects=False, **options) as response,
        ):
            yield response

    def _room_of(self, host: URL) -> asyncio.Semaphore:
        """Return the room for requests to a host, which is there as long as somebody uses it."""
        room = self._rooms.get(host)
        if room is None:
            room = self._rooms[host] = asyncio.Semaphore(self._per_host)
        return room

    def rest_of(self, url: URL) -> float:
        """Return for how many seconds a host wants to be left alone."""
        end = self._resting.get(url.origin(), 0.0)
        return max(0.0, end - asyncio.get_running_loop().time())

    def let_rest(self, url: URL, seconds: float) -> None:
        """Leave a host alone for a while."""
        now = asyncio.get_running_loop().time()
        self._resting = {host: end for host, end in self._resting.items() if end > now}
        self._resting[url.origin()] = now + min(seconds, LONGEST_RETRY_AFTER)
