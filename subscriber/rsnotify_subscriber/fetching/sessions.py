"""HTTP for one subscriber: what a document names may not lead into a private network.

The host that the user named himself is dialled wherever it is; any other is dialled only at
public addresses. The address *dialled* is checked, not the name, since a name may change its
answer and an IP literal is never resolved. Redirects are followed by hand, few, and checked
anew at each step.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
from yarl import URL

from rsnotify.errors import RefusedAddress, Unavailable
from rsnotify.links import resolve
from rsnotify_subscriber.fetching.connections import MOST, PER_HOST, Connections, NotPublic
from rsnotify_subscriber.fetching.origin import Origin
from rsnotify_subscriber.fetching.responses import retry_after

REDIRECTS = 5
_AS_WRITTEN = re.compile(r"[\x21-\x7e]+")
_BUSY_STATUSES = frozenset({429, 503})
_MOVED = frozenset({301, 302, 303, 307, 308})


class Sessions:
    """What one subscriber asks for over HTTP; an async context manager.

    Args:
        named: The URI that the user gave, or ""; its host may be anywhere.
        allow_private_addresses: Whether documents, too, may name any address.
        per_host: Connections to one host at a time; with `shared`, requests to all hosts.
        shared: The connections, if others use them too: somebody else opens and closes them.

    Raises:
        FetchError: What the user gave is no http or https URI.
    """

    def __init__(
        self,
        named: str,
        *,
        allow_private_addresses: bool = False,
        per_host: int = PER_HOST,
        shared: Connections | None = None,
    ) -> None:
        self._named_host = _url(named, named).host if named else None
        self._allow_private_addresses = allow_private_addresses
        self._most = per_host if shared is not None else MOST
        self._shared = shared
        self._connections = shared or Connections(per_host=per_host)

    async def __aenter__(self) -> Sessions:
        # Whoever shares connections gets no more than a part of them.
        self._room = asyncio.Semaphore(self._most)
        if self._shared is None:
            await self._connections.__aenter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._shared is None:
            await self._connections.__aexit__(*exception)

    @property
    def large(self) -> asyncio.Semaphore:
        """What is held while a large document is read."""
        return self._connections.large

    def trusts(self, host: str | None) -> bool:
        """Tell whether this host may be dialled at any address."""
        return self._allow_private_addresses or (host is not None and host == self._named_host)

    @asynccontextmanager
    async def get(
        self, uri: str, headers: Mapping[str, str], origin: Origin | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """GET, following redirects; the body is read within the context.

        Args:
            uri: What is requested.
            headers: Header fields of the request.
            origin: Receives where the answer came from.

        Raises:
            RefusedAddress: The URI, or a redirect, leads where we do not go.
            Unavailable: There was no answer, or it broke off, or the host asked lately to be
                left alone for a while.
        """
        answer = self._answer(uri, headers=headers, origin=origin)
        async with self._told(uri), self._room, answer as response:
            yield response

    @asynccontextmanager
    async def post(
        self, uri: str, form: Mapping[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """POST a form, also to where a redirect sends it, but never from https to http.

        Raises:
            FetchError: As `get`.
        """
        async with self._told(uri), self._room, self._answer(uri, form=form) as response:
            yield response

    @asynccontextmanager
    async def _told(self, uri: str) -> AsyncIterator[None]:
        """Tell what goes wrong in our own words."""
        try:
            yield
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, NotPublic):
                raise RefusedAddress(uri, str(error.os_error.strerror)) from None
            raise Unavailable(uri, _unreachable(error)) from error
        except TimeoutError as error:
            raise Unavailable(uri, "no answer in time") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(uri, str(error) or type(error).__name__) from error

    @asynccontextmanager
    async def _answer(
        self,
        uri: str,
        headers: Mapping[str, str] | None = None,
        form: Mapping[str, str] | None = None,
        origin: Origin | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        target, status = uri, 0
        method, moved = ("GET", _MOVED) if form is None else ("POST", _MOVED - {303})
        for _ in range(REDIRECTS + 1):
            url = _url(uri, target)
            if form is not None and uri.startswith("https:") and url.scheme == "http":
                raise RefusedAddress(uri, "it redirects a form from https to http")
            self._leave_alone(uri, url)
            async with self._connections.request(
                method, url, anywhere=self.trusts(url.host), headers=headers, data=form
            ) as response:
                self._note_rest(url, response)
                location = response.headers.get("Location")
                if response.status not in moved or location is None:
                    if origin is not None:
                        origin.answered(response)
                    yield response
                    return
                status = response.status
            target = resolve(target, location)
            if origin is not None:
                origin.redirected(status, target)
        raise Unavailable(uri, f"more than {REDIRECTS} redirects", status=status)

    def _leave_alone(self, asked: str, url: URL) -> None:
        """Ask no host that asked to be left alone; others are asked meanwhile."""
        rest = self._connections.rest_of(url)
        if rest > 0:
            raise Unavailable(asked, f"{url.host} asked to be left alone for a while", rest)

    def _note_rest(self, url: URL, response: aiohttp.ClientResponse) -> None:
        wish = retry_after(response) if response.status in _BUSY_STATUSES else None
        if wish is not None:
            self._connections.let_rest(url, wish)


def _unreachable(error: aiohttp.ClientConnectorError) -> str:
    reason = error.os_error
    if not reason.errno or not reason.strerror:
        return str(error)
    # Numbers of the resolver and of TLS are their own; texts of asyncio name addresses.
    own = isinstance(reason, (socket.gaierror, ssl.SSLError))
    why = reason.strerror if own else os.strerror(reason.errno)
    return f"cannot connect to {error.host} port {error.port}: {why}"


def _url(asked: str, target: str) -> URL:
    try:
        # A URI is sent as the Source wrote it; what is no URI is quoted first.
        url = URL(target, encoded=_AS_WRITTEN.fullmatch(target) is not None)
        is_web = url.scheme in ("http", "https") and bool(url.host) and url.port is not None
        # As the resolver will do, whose error would be taken for a fault of the program.
        (url.raw_host or "").encode("idna")
    except ValueError as error:
        what = "it" if target == asked else repr(target)
        raise RefusedAddress(asked, f"{what} is no URI: {error}") from None
    if not is_web:
        what = "it" if target == asked else repr(target)
        raise RefusedAddress(asked, f"{what} is no http or https URI")
    return url
