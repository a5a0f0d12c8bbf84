"""HTTP connections of one subscriber, or of all in a process, within limits."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakValueDictionary

import aiohttp
from yarl import URL

from rsnotify import __version__
from rsnotify.errors import RsnotifyError, Unavailable
from rsnotify.runtime.addresses import refusal
from rsnotify.runtime.dialing import Connector, any_socket
from rsnotify.runtime.http.connection import HttpOrigin
from rsnotify.sync.retry import LONGEST_RETRY_AFTER
from rsnotify_subscriber.fetching.small_requests import SmallRequests, SmallResponse

#: The most connections to one host: enough to hide latency, at hardly any load.
PER_HOST = 32
#: The most requests at a time.
MOST_REQUESTS = 100
#: The most large documents that are read at a time, as each is in memory until its end.
_LARGE_DOCUMENTS = 3
#: The seconds after which a server that sends nothing counts as gone.
_SILENCE = 30.0


class NotPublic(RsnotifyError, OSError):
    """An address was not dialled because it is not public."""

    def __init__(self) -> None:
        # The same text for each address of a host: only then aiohttp raises this very error.
        super().__init__(
            errno.EACCES,
            "it is at a loopback, private or otherwise not public address; unless "
            "--allow-private-addresses, or allow_private_addresses in a program, is given, only "
            "the host name in the Source's URL may have one, with documents at the port of that "
            "URL, and hubs at any port",
        )


def guarded_socket(info: Any) -> socket.socket:
    """Return a socket for an address as `getaddrinfo` returns it, or raise `NotPublic`."""
    family, kind, protocol, _, address = info
    if refusal(address[0]) is not None:
        raise NotPublic
    return socket.socket(family, kind, protocol)


class Connections:
    """A pool of connections; an async context manager that can be entered again after its end.

    There are two of each kind, of aiohttp's and for small content, so that a host which may only be
    dialled at public addresses is never reached by a connection that was made for a trusted one.

    Args:
        most: The most requests at a time, over all hosts; further ones wait.
        per_host: The most requests to one host at a time.
        tls: The trusted certificates; by default those of the system.
        silence: The seconds after which a server that sends nothing counts as gone.
        user_agent: What is sent as `User-Agent`.

    Attributes:
        large: Is acquired while a large document is read (`downloading.stream_document`).
    """

    def __init__(
        self,
        *,
        most: int = MOST_REQUESTS,
        per_host: int = PER_HOST,
        tls: ssl.SSLContext | None = None,
        silence: float = _SILENCE,
        user_agent: str = f"rsnotify/{__version__}",
    ) -> None:
        self._most = most
        self._tls = tls
        self._per_host = per_host
        self._silence = silence
        self._user_agent = user_agent
        self._host_limits: WeakValueDictionary[URL, asyncio.Semaphore] = WeakValueDictionary()
        self._retry_at: dict[URL, float] = {}

    async def __aenter__(self) -> Connections:
        self._limit = asyncio.Semaphore(self._most)
        self.large = asyncio.Semaphore(_LARGE_DOCUMENTS)
        self._anywhere = self._session()
        self._guarded = self._session(socket_factory=guarded_socket)
        self._small_anywhere = self._small(any_socket)
        self._small_guarded = self._small(guarded_socket)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._small_anywhere.close()
        self._small_guarded.close()
        await self._anywhere.close()
        await self._guarded.close()

    def _session(self, **options: Any) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            # `most` and `per_host` are the limits.
            connector=Connector(
                # Where aiodns is installed, aiohttp would not resolve names as the system does.
                resolver=aiohttp.ThreadedResolver(),
                limit=0,
                ssl=self._tls or True,
                **options,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=self._silence),
            # `inflating` does it in pieces of bounded size.
            auto_decompress=False,
            headers={"User-Agent": self._user_agent},
        )

    def _small(self, create_socket: Callable[[Any], socket.socket]) -> SmallRequests:
        fields = {"User-Agent": self._user_agent, "Accept": "*/*", "Accept-Encoding": "identity"}
        return SmallRequests(fields, self._per_host, self._silence, self._tls, create_socket)

    @asynccontextmanager
    async def request(
        self, method: str, uri: str, url: URL, *, anywhere: bool, **options: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Make a request when the limits allow it; redirects are not followed.

        Only with `anywhere`, the host may be at any address. The options are those of
        `aiohttp.ClientSession.request`. `uri` is what errors name.

        Raises:
            Unavailable: The host has asked for no requests, perhaps while this one waited.
            aiohttp.ClientError: There is no response.
            TimeoutError: There is none in time.
        """
        session = self._anywhere if anywhere else self._guarded
        # First, so that requests which wait for a slow host do not count for the others.
        async with self._host_limit(url.origin()), self._limit:
            self.check_retry_after(uri, url)
            async with session.request(method, url, allow_redirects=False, **options) as response:
                yield response

    async def get_small(
        self, url: URL, target: str, fields: Mapping[str, str], *, anywhere: bool
    ) -> SmallResponse | None:
        """GET small content as `SmallRequests.get` does, when the limits allow it.

        Args:
            url: The origin.
            target: The path and query, as they are sent.
            fields: Further header fields.
            anywhere: As for `request`.
        """
        requests = self._small_anywhere if anywhere else self._small_guarded
        origin = HttpOrigin(url.scheme == "https", url.raw_host or "", url.port or 0)
        opening = f"GET {target} HTTP/1.1\r\nHost: {url.host_port_subcomponent}\r\n"
        async with self._host_limit(url), self._limit:
            if self.retry_after(url) > 0:  # as another response said meanwhile
                return None
            return await requests.get(origin, opening, fields)

    def _host_limit(self, host: URL) -> asyncio.Semaphore:
        """Return the limit of a host, which exists as long as a request uses it."""
        limit = self._host_limits.get(host)
        if limit is None:
            limit = self._host_limits[host] = asyncio.Semaphore(self._per_host)
        return limit

    def retry_after(self, url: URL) -> float:
        """Return for how many seconds a host must get no requests, as it asked."""
        end = self._retry_at.get(url.origin(), 0.0)
        return max(0.0, end - asyncio.get_running_loop().time())

    def check_retry_after(self, uri: str, url: URL) -> None:
        """Raise `Unavailable` if the host has asked for no requests; others get them meanwhile."""
        seconds = self.retry_after(url)
        if seconds > 0:
            raise Unavailable(uri, f"{url.host} asked for no requests for a while", seconds)

    def set_retry_after(self, url: URL, seconds: float) -> None:
        """Store that a host asked for no requests for some seconds."""
        now = asyncio.get_running_loop().time()
        self._retry_at = {host: end for host, end in self._retry_at.items() if end > now}
        self._retry_at[url.origin()] = now + min(seconds, LONGEST_RETRY_AFTER)


class RequestRate:
    """Spaces requests evenly: at most so many in a second; None for any number."""

    def __init__(self, most: float | None) -> None:
        self._between = 0.0 if most is None else 1 / most
        self._next = 0.0

    async def wait(self) -> None:
        if not self._between:
            return
        now = asyncio.get_running_loop().time()
        at = max(now, self._next)
        self._next = at + self._between
        await asyncio.sleep(at - now)
