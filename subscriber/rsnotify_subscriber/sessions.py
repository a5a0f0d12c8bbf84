"""HTTP with the guard of DESIGN §6: what a document names may not lead into a private network.

The host that the user named himself is dialled wherever it is; any other is dialled only at
public addresses. The address *dialled* is checked, not the name, since a name may change its
answer and an IP literal is never resolved. Redirects are followed by hand, few, and checked
anew at each step.
"""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from types import TracebackType
from typing import Any
from urllib.parse import urljoin

import aiohttp
from yarl import URL

from rsnotify.addresses import refusal
from rsnotify.errors import RefusedAddress, Unavailable

REDIRECTS = 5
#: Connections to one host at a time: enough to hide latency, and no load to speak of.
CONNECTIONS = 32
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=30)
_AS_WRITTEN = re.compile(r"[\x21-\x7e]+")
_REDIRECT_STATUSES = frozenset({301, 302, 303, 307, 308})


class NotPublic(OSError):
    """An address was not dialled because it is not public."""

    def __init__(self) -> None:
        # The same text for each address of a host: aiohttp then hands this very error on.
        super().__init__(
            errno.EACCES,
            "it is at a loopback, private or otherwise not public address, which is not dialled "
            "unless private addresses are allowed",
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


class Sessions:
    """The HTTP client sessions of one subscriber; an async context manager.

    Args:
        named: The URI that the user gave; its host may be anywhere.
        allow_private_addresses: Whether documents, too, may name any address.
    """

    def __init__(self, named: str, *, allow_private_addresses: bool = False) -> None:
        self._named_host = URL(named).host
        self._allow_private_addresses = allow_private_addresses

    async def __aenter__(self) -> Sessions:
        self._plain = _session(aiohttp.TCPConnector(limit_per_host=CONNECTIONS))
        self._guarded = _session(
            aiohttp.TCPConnector(limit_per_host=CONNECTIONS, socket_factory=guarded_socket)
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._plain.close()
        await self._guarded.close()

    def trusts(self, host: str | None) -> bool:
        """Tell whether this host may be dialled at any address."""
        return self._allow_private_addresses or (host is not None and host == self._named_host)

    @asynccontextmanager
    async def get(
        self, uri: str, headers: Mapping[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """GET, following redirects; the body is read within the context.

        Raises:
            RefusedAddress: The URI, or a redirect, leads where we do not go.
            Unavailable: There was no answer, or it broke off.
        """
        try:
            async with self._answer(uri, headers) as response:
                yield response
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, NotPublic):
                raise RefusedAddress(uri, str(error.os_error.strerror)) from None
            raise Unavailable(uri, str(error)) from error
        except TimeoutError as error:
            raise Unavailable(uri, "no answer in time") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(uri, str(error) or type(error).__name__) from error

    @asynccontextmanager
    async def _answer(
        self, uri: str, headers: Mapping[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        target = uri
        for _ in range(REDIRECTS + 1):
            url = _url(uri, target)
            session = self._plain if self.trusts(url.host) else self._guarded
            async with session.get(url, headers=headers, allow_redirects=False) as response:
                location = response.headers.get("Location")
                if response.status not in _REDIRECT_STATUSES or location is None:
                    yield response
                    return
            target = urljoin(target, location)
        raise Unavailable(uri, f"more than {REDIRECTS} redirects")


def _session(connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=_TIMEOUT,
        # Inflated by ourselves, in pieces of bounded size.
        auto_decompress=False,
        headers={"User-Agent": f"rsnotify/{version('rsnotify')}"},
    )


def _url(asked: str, target: str) -> URL:
    try:
        # A URI is sent as the Source wrote it; what is no URI is quoted first.
        url = URL(target, encoded=_AS_WRITTEN.fullmatch(target) is not None)
    except ValueError as error:
        raise Unavailable(asked, f"{target!r} is not a URI: {error}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise RefusedAddress(asked, f"{target!r} is not an http or https URI")
    return url
