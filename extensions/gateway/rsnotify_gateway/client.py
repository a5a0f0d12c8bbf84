"""Polite HTTP to one origin: robots.txt, delays, and conditional requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from msgspec import Struct
from yarl import URL

from rsnotify.errors import TooLarge, Unavailable
from rsnotify.format.links import parse_links
from rsnotify_gateway.adapter import origin_uri
from rsnotify_gateway.robots import ALLOW_ALL, MOST_BYTES, RobotsRules, parse_robots
from rsnotify_subscriber.fetching.connections import Connections, RequestRate
from rsnotify_subscriber.fetching.credentials import (
    NO_CREDENTIALS,
    Credentials,
    without_login,
)
from rsnotify_subscriber.fetching.downloading import stream_document
from rsnotify_subscriber.fetching.origin import ResponseOrigin
from rsnotify_subscriber.fetching.responses import body, check_status, validator
from rsnotify_subscriber.fetching.sessions import Sessions

#: RFC 9309 §2.4: a robots.txt should not be used for longer than a day.
_ROBOTS_SECONDS = 86_400.0
_ROBOTS = "/robots.txt"
#: A check claims that the origin itself was read.
_UNCACHED = {"Cache-Control": "no-cache"}
_FIELDS = {"Accept-Encoding": "gzip", **_UNCACHED}


class OriginAnswer(Struct, frozen=True):
    """What is known of a response whose body was read.

    Args:
        condition: The header field of a conditional request for the same resource.
        uri: The URI after redirects.
        media_type: The media type, in lower case and without parameters.
        immutable: Whether it will never change (RFC 8246).
        links: Its Link header fields, as relations and targets.
    """

    condition: tuple[str, str] | None
    uri: str
    media_type: str
    immutable: bool
    links: Sequence[tuple[str, str]]


class PoliteSessions(Sessions):
    """Sessions whose requests wait until `admit` returns."""

    def __init__(self, url: str, admit: Callable[[str], Awaitable[None]], **options: Any) -> None:
        super().__init__(url, **options)
        self._admit = admit

    @asynccontextmanager
    async def get(
        self, uri: str, headers: Mapping[str, str], origin: ResponseOrigin | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """GET once the request may be made; raise as `Sessions.get` does."""
        await self._admit(uri)
        async with super().get(uri, {**_UNCACHED, **headers}, origin) as response:
            yield response

    def get_at_once(self, uri: str) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return super().get(uri, _FIELDS)


class OriginClient:
    """The requests to one origin; an async context manager.

    Args:
        url: The URL of the origin, from the configuration.
        shared: The connections of all origins.
        credentials: They are sent to the scheme, host and port of `url` only.
        robots: Whether to respect robots.txt.
        delay: Seconds between two requests; a longer Crawl-delay is respected.
        allow_private_addresses: Whether the origin may name hosts at any address.

    Attributes:
        sessions: They make the requests.
    """

    def __init__(
        self,
        url: str,
        shared: Connections,
        *,
        credentials: Credentials = NO_CREDENTIALS,
        robots: bool = True,
        delay: float = 0.0,
        allow_private_addresses: bool = False,
    ) -> None:
        self.sessions = PoliteSessions(
            url,
            self._admit,
            credentials=credentials,
            allow_private_addresses=allow_private_addresses,
            shared=shared,
        )
        self._respects_robots = robots
        self._delay = delay
        self._rates: dict[URL, RequestRate] = {}
        self._rules: dict[URL, tuple[float, RobotsRules]] = {}

    async def __aenter__(self) -> OriginClient:
        await self.sessions.__aenter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.sessions.__aexit__(*exception)

    async def get(
        self,
        uri: str,
        feed: Callable[[bytes], object],
        condition: tuple[str, str] | None = None,
        accept: str = "*/*",
    ) -> OriginAnswer | None:
        """GET a document, and pass it to `feed` piece by piece; return None after a 304.

        Raises:
            FetchError: It cannot be read, or must not be.
        """
        headers = {**_FIELDS, "Accept": accept, **dict([condition] if condition else ())}
        origin = ResponseOrigin(uri)
        async with self.sessions.get(uri, headers, origin) as response:
            if condition is not None and response.status == 304:
                return None
            check_status(uri, response)
            await stream_document(uri, response, self.sessions.large, feed)
            return OriginAnswer(
                validator(response),
                without_login(origin.base),
                response.content_type.lower(),
                "immutable" in response.headers.get("Cache-Control", "").lower(),
                parse_links(response.headers.getall("Link", [])),
            )

    async def content(
        self,
        uri: str,
        most: int,
        condition: tuple[str, str] | None = None,
        accept: str = "*/*",
    ) -> tuple[bytes, OriginAnswer | None]:
        """GET a document of so many bytes at most; return no answer after a 304.

        Raises:
            FetchError: As `get`.
            TooLarge: It has more bytes.
        """
        data = bytearray()

        def feed(piece: bytes) -> None:
            data.extend(piece)
            if len(data) > most:
                raise TooLarge(f"it is larger than {most} bytes", source=uri)

        answer = await self.get(uri, feed, condition, accept)
        return bytes(data), answer

    @asynccontextmanager
    async def open(
        self, uri: str, headers: Mapping[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """GET what does not end; the body is read within the context.

        Raises:
            FetchError: It cannot be read, or must not be.
        """
        async with self.sessions.get(uri, headers) as response:
            check_status(uri, response)
            yield response

    async def _admit(self, uri: str) -> None:
        """Wait until a request may be made; raise `FetchError` if it must not be."""
        if self._respects_robots:
            await self._check_robots(uri)
        await self._rate(uri, self._delay).wait()

    async def sitemaps(self, uri: str) -> tuple[str, ...]:
        """Return the Sitemaps that the robots.txt of a host names."""
        return (await self._robots(uri)).sitemaps

    def _rate(self, uri: str, delay: float) -> RequestRate:
        origin = _origin(uri)
        rate = self._rates.get(origin)
        if rate is None:
            rate = self._rates[origin] = RequestRate(1 / delay if delay else None)
        return rate

    async def _check_robots(self, uri: str) -> None:
        rules = await self._robots(uri)
        parts = urlsplit(uri)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        if not rules.allows(path):
            raise Unavailable(
                uri,
                "the robots.txt of its host does not allow rsnotify to read it; if you may, set "
                "robots = false for this origin",
            )

    async def _robots(self, uri: str) -> RobotsRules:
        origin = _origin(uri)
        clock = asyncio.get_running_loop().time
        read_at, rules = self._rules.get(origin, (0.0, None))
        if rules is None or clock() > read_at + _ROBOTS_SECONDS:
            rules = await self._read_robots(origin_uri(uri, _ROBOTS))
            self._rules[origin] = clock(), rules
            delay = max(self._delay, rules.delay if self._respects_robots else 0.0)
            self._rates.pop(origin, None)
            self._rate(uri, delay)
        return rules

    async def _read_robots(self, uri: str) -> RobotsRules:
        """Read a robots.txt; if there is none, everything is allowed (RFC 9309 §2.3.1)."""
        async with self.sessions.get_at_once(uri) as response:
            if 400 <= response.status < 500 and response.status != 429:
                return ALLOW_ALL
            check_status(uri, response)  # otherwise, nothing may be requested
            return parse_robots(await _text(uri, response))


def _origin(uri: str) -> URL:
    try:
        return URL(uri).origin()
    except ValueError as error:
        raise Unavailable(uri, f"it is no http(s) URL: {error}") from None


async def _text(uri: str, response: aiohttp.ClientResponse) -> str:
    data = bytearray()
    async for chunk in body(uri, response):
        data += chunk
        if len(data) > MOST_BYTES:
            break
    return data[:MOST_BYTES].decode(errors="replace")
