"""HTTP for one subscriber: connections within limits, to allowed addresses only.

URIs in documents must not lead into a private network, so only public addresses are dialled. The
exception is the Source's host, if it had a private address when its name was first resolved. Then
it may have any address, for requests to the port of the Source's URL, and for hubs. The check
applies to the *dialled* address, because a name may change its address, and an IP literal is never
resolved. This module follows a limited number of redirects itself, and checks each.

Credentials are sent only to the origin of the Source's URL, and not after a redirect from another
origin.
"""

from __future__ import annotations

import asyncio
import errno
import re
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import lru_cache
from typing import Any
from weakref import WeakValueDictionary

import aiohttp
from yarl import URL

from rsnotify import __version__
from rsnotify.errors import RefusedAddress, RsnotifyError, Unavailable
from rsnotify.format.links import resolve
from rsnotify.runtime.addresses import any_socket, look_up, open_session, public_sockets, refusal
from rsnotify.runtime.http_client import HttpOrigin
from rsnotify.runtime.reasons import reason_of
from rsnotify.sync.retry import LONGEST_RETRY_AFTER
from rsnotify_subscriber.fetching.credentials import (
    NO_CREDENTIALS,
    Credentials,
    basic,
    from_netrc,
    split_login,
)
from rsnotify_subscriber.fetching.responses import (
    Response,
    ResponseOrigin,
    check_transfer,
    retry_after,
)
from rsnotify_subscriber.fetching.small_requests import SmallRequests, SmallResponse

#: Maximum number of connections to one host: enough to hide latency, but little load.
PER_HOST = 32
#: Maximum number of concurrent requests.
MAX_REQUESTS = 100
#: Maximum number of large documents to read at once, because each stays in memory while it is read.
_MAX_LARGE_DOCUMENTS = 3
#: Timeout in seconds for a server that sends nothing.
_SILENCE_TIMEOUT = 30.0
#: The status of a request without a response.
NO_RESPONSE = 0


class NotPublic(RsnotifyError, OSError):
    """Raised when an address is not dialled because it is not public."""

    def __init__(self) -> None:
        # aiohttp raises this error only if all addresses of a host have the same message.
        super().__init__(
            errno.EACCES,
            "its address is not public (but loopback, private or reserved); to allow such "
            "addresses, use --allow-private-addresses, or allow_private_addresses in a program; "
            "otherwise, only the host of the Source's URL may have one, for documents at the port "
            "of that URL, and hubs at any port",
        )


guarded_socket = public_sockets(lambda _: NotPublic())


class Connections:
    """A pool of connections. An async context manager, which can be entered again after its exit.

    There are separate connections for hosts that are allowed at any address, so that requests to
    other hosts never use these.

    Args:
        most: Maximum number of concurrent requests to all hosts. Further requests wait.
        per_host: Maximum number of concurrent requests to one host.
        tls: The trusted certificates. By default, the system's.
        silence: Timeout in seconds for a server that sends nothing.
        user_agent: The `User-Agent` to send.

    Attributes:
        large: A semaphore that is held while reading a large document (`stream_document`).
        responses: The number of responses by `2xx`, `3xx`, …, and requests without a response by
            `none`.
        received: The number of bytes of their content.
    """

    def __init__(
        self,
        *,
        most: int = MAX_REQUESTS,
        per_host: int = PER_HOST,
        tls: ssl.SSLContext | None = None,
        silence: float = _SILENCE_TIMEOUT,
        user_agent: str = f"rsnotify/{__version__}",
    ) -> None:
        self._most = most
        self._tls = tls
        self._per_host = per_host
        self._silence = silence
        self._user_agent = user_agent
        self._host_limits: WeakValueDictionary[URL, asyncio.Semaphore] = WeakValueDictionary()
        self._retry_at: dict[URL, float] = {}
        self.responses: Counter[str] = Counter()
        self.received = 0

    async def __aenter__(self) -> Connections:
        self._limit = asyncio.Semaphore(self._most)
        self.large = asyncio.Semaphore(_MAX_LARGE_DOCUMENTS)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=self._silence)
        agent = {"User-Agent": self._user_agent}
        fields = {**agent, "Accept": "*/*", "Accept-Encoding": "identity"}
        self._sessions: dict[bool, aiohttp.ClientSession] = {}
        self._small: dict[bool, SmallRequests] = {}
        for anywhere, make in ((True, any_socket), (False, guarded_socket)):
            self._sessions[anywhere] = open_session(make, agent, timeout=timeout, tls=self._tls)
            self._small[anywhere] = SmallRequests(
                fields, self._per_host, self._silence, self._tls, make
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        for small in self._small.values():
            small.close()
        for session in self._sessions.values():
            await session.close()

    @asynccontextmanager
    async def request(
        self, method: str, uri: str, url: URL, *, anywhere: bool, **options: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Make a request when the limits allow it, without following redirects.

        Args:
            method: The method.
            uri: The URI for error messages.
            url: The URL to request.
            anywhere: Whether the host may have any address.
            options: Arguments of `aiohttp.ClientSession.request`.

        Raises:
            Unavailable: The host has forbidden requests (Retry-After), perhaps during the wait.
            aiohttp.ClientError: There was no response.
            TimeoutError: The response did not arrive in time.
        """
        # First the host's limit, so that requests to a slow host do not count while they wait.
        async with self._host_limit(url.origin()), self._limit:
            self.check_retry_after(uri, url)
            session, status = self._sessions[anywhere], NO_RESPONSE
            try:
                async with session.request(
                    method, url, allow_redirects=False, **options
                ) as response:
                    status = response.status
                    try:
                        yield response
                    finally:
                        self.received += response.content.total_bytes
            finally:
                self._count(status)

    async def get_small(
        self, url: URL, target: str, fields: Mapping[str, str], *, anywhere: bool
    ) -> SmallResponse | None:
        """GET small content as in `SmallRequests.get`, when the limits allow it.

        `url` is the origin, and `target` the raw path and query.
        """
        origin = HttpOrigin(url.scheme == "https", url.raw_host or "", url.port or 0)
        opening = f"GET {target} HTTP/1.1\r\nHost: {url.host_port_subcomponent}\r\n"
        async with self._host_limit(url), self._limit:
            if self.retry_after(url) > 0:  # due to another response during the wait
                return None
            try:
                response = await self._small[anywhere].get(origin, opening, fields)
            except BaseException:
                self._count(NO_RESPONSE)
                raise
        if response is not None:
            self._count(response.status)
            self.received += len(response.body)
        return response

    def _count(self, status: int) -> None:
        self.responses[f"{status // 100}xx" if status else "none"] += 1

    def _host_limit(self, host: URL) -> asyncio.Semaphore:
        """Return the limit of a host. It exists while a request uses it."""
        limit = self._host_limits.get(host)
        if limit is None:
            limit = self._host_limits[host] = asyncio.Semaphore(self._per_host)
        return limit

    def retry_after(self, url: URL) -> float:
        """Return the seconds until a host accepts requests again (Retry-After)."""
        end = self._retry_at.get(url.origin(), 0.0)
        return max(0.0, end - asyncio.get_running_loop().time())

    def check_retry_after(self, uri: str, url: URL) -> None:
        """Raise `Unavailable` if a host does not accept requests now (Retry-After)."""
        seconds = self.retry_after(url)
        if seconds > 0:
            reason = f"{url.host} does not accept requests now (Retry-After)"
            raise Unavailable(uri, reason, seconds)

    def set_retry_after(self, url: URL, seconds: float) -> None:
        """Record that a host does not accept requests for this many seconds."""
        now = asyncio.get_running_loop().time()
        self._retry_at = {host: end for host, end in self._retry_at.items() if end > now}
        self._retry_at[url.origin()] = now + min(seconds, LONGEST_RETRY_AFTER)


class RequestRate:
    """Spaces requests evenly, `most` per second. None means no limit."""

    def __init__(self, most: float | None) -> None:
        self._interval = 0.0 if most is None else 1 / most
        self._next = 0.0

    async def wait(self) -> None:
        if not self._interval:
            return
        now = asyncio.get_running_loop().time()
        at = max(now, self._next)
        self._next = at + self._interval
        await asyncio.sleep(at - now)


MAX_REDIRECTS = 5
#: A URI that is sent unchanged.
_RAW_URI = re.compile(r"[\x21-\x7e]+")
#: A URI that is sent unchanged, without login and fragment. Groups: the origin, and the rest.
_PLAIN_URI = re.compile(r"(https?://[^/?#@\\]+)(/[\x21\x22\x24-\x7e]*)")
_BUSY_STATUSES = frozenset({429, 503})
_MOVED = frozenset({301, 302, 303, 307, 308})


class Sessions:
    """The HTTP requests of one subscriber. An async context manager.

    Args:
        named: The URI that the user gave, which may contain a login, or "".
        credentials: The credentials for the origin of that URI. Without any, the netrc file is
            used.
        allow_private_addresses: Whether any host may have any address.
        per_host: Maximum number of concurrent connections to one host. With `shared`, the maximum
            number of concurrent requests to all hosts.
        shared: Connections that several subscribers share. Their owner opens and closes them.

    Attributes:
        connections: The connections, with the counters of requests.

    Raises:
        FetchError: The user's URI is not an http or https URI.
        ConfigurationError: The credentials cannot be sent.
    """

    def __init__(
        self,
        named: str,
        *,
        credentials: Credentials = NO_CREDENTIALS,
        allow_private_addresses: bool = False,
        per_host: int = PER_HOST,
        shared: Connections | None = None,
    ) -> None:
        named, login = split_login(named)
        self._origin = _url(named, named).origin() if named else None
        self._credentials = credentials.fields()
        authorizes = any(name.lower() == "authorization" for name in self._credentials)
        if self._origin is not None and not authorizes:
            login = login or from_netrc(self._origin.host or "")
            if login is not None:
                self._credentials["Authorization"] = basic(login)
        self._was_private: bool | None = None
        self._allow_private_addresses = allow_private_addresses
        self._most = per_host if shared is not None else MAX_REQUESTS
        self._shared = shared
        self.connections = shared or Connections(per_host=per_host)

    async def __aenter__(self) -> Sessions:
        self._limit = asyncio.Semaphore(self._most)
        if self._shared is None:
            await self.connections.__aenter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._shared is None:
            await self.connections.__aexit__(*exception)

    @property
    def large(self) -> asyncio.Semaphore:
        return self.connections.large

    async def allows_any_address(self, host: str | None, port: int | None = None) -> bool:
        """Return whether a host may be dialled at any address, even a private one.

        `port` is None for a hub, which may be at any port of the Source's host.
        """
        if self._allow_private_addresses:
            return True
        named = self._origin
        if named is None or host != named.host or port not in (None, named.port):
            return False
        if self._was_private is None:
            self._was_private = await _is_private(named)
        return bool(self._was_private)

    def credentials_for(self, uri: str) -> Mapping[str, str]:
        """Return the header fields with the credentials for an `http` or `ws` URI."""
        try:
            url = _url(uri, re.sub(r"^ws", "http", uri))
        except RefusedAddress:
            return {}
        return self._credentials if url.origin() == self._origin else {}

    def get(
        self, uri: str, headers: Mapping[str, str], origin: ResponseOrigin | None = None
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """GET, following redirects. Read the body while the context is active.

        Raises:
            RefusedAddress: The URI, or a redirect, leads to an address that is not allowed.
            Unavailable: There was no complete response, or the host does not accept requests now.
        """
        return self._limited(uri, self._answer(uri, headers=headers, origin=origin))

    async def get_small(self, uri: str) -> SmallResponse | None:
        """GET small content, or return None if `get` must be used. Raises the errors of `get`."""
        if (parts := _PLAIN_URI.fullmatch(uri)) is None or (url := _origin(parts[1])) is None:
            return None
        async with self._limit:
            self.connections.check_retry_after(uri, url)
            anywhere = await self.allows_any_address(url.host, url.port)
            fields = self._credentials if url == self._origin else {}
            try:
                response = await self.connections.get_small(
                    url, parts[2], fields, anywhere=anywhere
                )
            except TimeoutError as error:
                raise Unavailable(uri, "no answer in time") from error
        if response is not None:
            self._record_retry_after(url, response)
            check_transfer(uri, response)
        return response

    def post(
        self, uri: str, form: Mapping[str, str]
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """POST a form, following redirects, but not from https to http. Errors as in `get`."""
        return self._limited(uri, self._answer(uri, form=form))

    @asynccontextmanager
    async def _limited(
        self, uri: str, answer: AbstractAsyncContextManager[aiohttp.ClientResponse]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Make a request when the limit allows it, and translate its errors."""
        try:
            async with self._limit, answer as response:
                yield response
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, NotPublic):
                raise RefusedAddress(uri, str(error.os_error.strerror)) from None
            raise Unavailable(
                uri, f"cannot connect to {error.host} port {error.port}: {reason_of(error)}"
            ) from error
        except TimeoutError as error:
            raise Unavailable(uri, "no answer in time") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(uri, reason_of(error, str(error))) from error

    @asynccontextmanager
    async def _answer(
        self,
        uri: str,
        headers: Mapping[str, str] | None = None,
        form: Mapping[str, str] | None = None,
        origin: ResponseOrigin | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        target, status = uri, 0
        origin = origin or ResponseOrigin(uri)
        method, moved = ("GET", _MOVED) if form is None else ("POST", _MOVED - {303})
        first: URL | None = None
        has_crossed = False
        visited = set[str]()
        for _ in range(MAX_REDIRECTS + 1):
            if target in visited:
                raise Unavailable(uri, "it redirects in a circle", status=status)
            visited.add(target)
            target, login = split_login(target)
            url = _url(uri, target)
            first = first or url.origin()
            has_crossed = has_crossed or url.origin() != first
            fields = {} if has_crossed else self._fields(url, login)
            if form is not None and uri.startswith("https:") and url.scheme == "http":
                raise RefusedAddress(uri, "it redirects a form from https to http")
            self.connections.check_retry_after(uri, url)
            anywhere = await self.allows_any_address(url.host, url.port if form is None else None)
            async with self.connections.request(
                method,
                uri,
                url,
                anywhere=anywhere,
                headers={**fields, **(headers or {})},
                data=form,
            ) as response:
                self._record_retry_after(url, response)
                location = response.headers.get("Location")
                if response.status not in moved or location is None:
                    check_transfer(uri, response)
                    origin.answered(response)
                    yield response
                    return
                status = response.status
            target = resolve(target, location)
            origin.redirected(status, target)
        raise Unavailable(uri, f"more than {MAX_REDIRECTS} redirects", status=status)

    def _fields(self, url: URL, login: str | None) -> Mapping[str, str]:
        """Return the credentials for a request: those of the Source, or else the URI's login."""
        if url.origin() == self._origin and self._credentials:
            return self._credentials
        return {} if login is None else {"Authorization": basic(login)}

    def _record_retry_after(self, url: URL, response: Response) -> None:
        seconds = retry_after(response) if response.status in _BUSY_STATUSES else None
        if seconds is not None:
            self.connections.set_retry_after(url, seconds)


async def _is_private(origin: URL) -> bool | None:
    """Return whether a host has a non-public address, or None if its name cannot be resolved."""
    try:
        found = await look_up(origin.host or "", origin.port or 0, type=socket.SOCK_STREAM)
    except OSError:
        return None
    return any(refusal(str(address[0])) is not None for *_, address in found)


@lru_cache(maxsize=256)
def _origin(uri: str) -> URL | None:
    try:
        return _url(uri, uri).origin()
    except RefusedAddress:
        return None


def _url(uri: str, target: str) -> URL:
    what = "it" if target == uri else repr(target)
    try:
        # Anything but a raw URI is quoted first.
        url = URL(target, encoded=_RAW_URI.fullmatch(target) is not None)
        is_web = url.scheme in ("http", "https") and bool(url.host) and url.port is not None
        # The resolver would not report this error as an error in the URI.
        (url.raw_host or "").encode("idna")
    except ValueError as error:
        raise RefusedAddress(uri, f"{what} is not a URI: {error}") from None
    if not is_web:
        raise RefusedAddress(uri, f"{what} is not an absolute http:// or https:// URL")
    return url
