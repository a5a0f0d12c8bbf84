"""Polite HTTP requests to one origin, which respect robots.txt and wait between requests."""

from __future__ import annotations

import asyncio
import math
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any
from urllib.parse import quote, unquote_to_bytes, urlsplit

import aiohttp
from msgspec import Struct
from yarl import URL

from rsnotify.errors import DocumentError, TooLarge, Unavailable
from rsnotify.format.links import parse_links
from rsnotify_gateway.adapter import origin_uri
from rsnotify_subscriber.fetching.credentials import NO_CREDENTIALS, Credentials, without_login
from rsnotify_subscriber.fetching.fetcher import stream_document
from rsnotify_subscriber.fetching.responses import (
    ResponseOrigin,
    check_status,
    read_beginning,
    validator,
)
from rsnotify_subscriber.fetching.sessions import Connections, RequestRate, Sessions

#: The gateway's product token in a robots.txt.
PRODUCT = "rsnotify"
_MAX_DELAY_SECONDS = 3600.0


class _Group(Struct):
    """The rules for one or more user agents."""

    agents: set[str]
    rules: list[tuple[bool, str]]
    delay: float = 0.0


class RobotsRules(Struct, frozen=True):
    """The rules of a robots.txt for the gateway.

    Each rule is a pair: whether it allows matching paths, and the path pattern. `delay` is the
    minimum number of seconds between requests.
    """

    rules: tuple[tuple[bool, str], ...] = ()
    delay: float = 0.0
    sitemaps: tuple[str, ...] = ()

    def allows(self, path: str) -> bool:
        """Return whether a path and query may be requested. The longest matching rule wins."""
        path = _normalized(path)
        matching = [(len(rule), allow) for allow, rule in self.rules if _matches(rule, path)]
        return max(matching, default=(0, True))[1]


def parse_robots(text: str) -> RobotsRules:
    """Return the rules of the groups that name `PRODUCT`, or else of the groups for `*`."""
    groups, sitemaps = _groups(text)
    ours = [group for group in groups if PRODUCT.lower() in group.agents]
    ours = ours or [group for group in groups if "*" in group.agents]
    return RobotsRules(
        tuple(rule for group in ours for rule in group.rules),
        max((group.delay for group in ours), default=0.0),
        tuple(dict.fromkeys(sitemaps)),
    )


def _groups(text: str) -> tuple[list[_Group], list[str]]:
    groups: list[_Group] = []
    sitemaps: list[str] = []
    expects_agents = False
    for key, value in _lines(text.removeprefix("\ufeff").splitlines()):
        if key == "sitemap":
            sitemaps.append(value)
        elif key == "user-agent":
            if not expects_agents:
                groups.append(_Group(set(), []))
                expects_agents = True
            groups[-1].agents.add(value.split("/")[0].strip().lower())
        elif groups and key in ("allow", "disallow", "crawl-delay"):
            expects_agents = False
            if key == "crawl-delay":
                groups[-1].delay = _seconds(value)
            elif value:  # an empty rule matches nothing
                groups[-1].rules.append((key == "allow", _normalized(value)))
    return groups, sitemaps


def _lines(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        key, colon, value = line.partition("#")[0].partition(":")
        if colon:
            # This also works for the URIs of Sitemaps, in which `#` must be escaped.
            yield key.strip().lower(), value.strip()


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        return 0.0
    return min(max(seconds, 0.0), _MAX_DELAY_SECONDS) if math.isfinite(seconds) else 0.0


def _normalized(path: str) -> str:
    """Return a path with uniform percent-encoding (RFC 9309 §2.2.2)."""
    return quote(unquote_to_bytes(path), safe="/*$?&=;:@+,!'()~")


def _matches(rule: str, path: str) -> bool:
    """Match a pattern in linear time. `*` matches any string, a final `$` the end of the path."""
    ends = rule.endswith("$")
    first, *others = rule.removesuffix("$").split("*")
    if not path.startswith(first):
        return False
    if not others:
        return not ends or path == first
    position = len(first)
    for piece in others[:-1]:
        found = path.find(piece, position)
        if found < 0:
            return False
        position = found + len(piece)
    last = others[-1]
    if ends:
        return path.endswith(last) and len(path) - len(last) >= position
    return path.find(last, position) >= 0


#: RFC 9309 §2.4: a cached robots.txt should not be used for more than a day.
_ROBOTS_MAX_AGE_SECONDS = 86_400.0
#: RFC 9309 §2.5: crawlers must read at least 500 KiB.
_MAX_ROBOTS_BYTES = 512_000
#: Bypasses caches, because a check must read the current state of the origin.
_UNCACHED = {"Cache-Control": "no-cache"}
_HEADERS = {"Accept-Encoding": "gzip", **_UNCACHED}
#: The statuses of responses whose body may be an error message of the origin's protocol.
_ERROR_STATUSES = frozenset({400, 404, 410, 422})


class OriginAnswer(Struct, frozen=True):
    """Metadata of a response whose body has been read.

    Args:
        condition: A header field that makes the next request for this resource conditional.
        uri: The URI after redirects.
        media_type: The media type, in lower case and without parameters.
        immutable: Whether the resource will never change (RFC 8246).
        links: The relations and targets of the Link header fields.
    """

    condition: tuple[str, str] | None
    uri: str
    media_type: str
    immutable: bool
    links: Sequence[tuple[str, str]]


class PoliteSessions(Sessions):
    """Sessions that await `admit` before each request."""

    def __init__(self, url: str, admit: Callable[[str], Awaitable[None]], **options: Any) -> None:
        super().__init__(url, **options)
        self._admit = admit

    @asynccontextmanager
    async def get(
        self, uri: str, headers: Mapping[str, str], origin: ResponseOrigin | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """GET once the request is allowed. Raises the errors of `admit` and of `Sessions.get`."""
        await self._admit(uri)
        async with super().get(uri, {**_UNCACHED, **headers}, origin) as response:
            yield response

    def get_robots(self, uri: str) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """GET a robots.txt, which needs no permission."""
        return super().get(uri, _HEADERS)


class OriginClient:
    """An HTTP client for one origin; an async context manager.

    Args:
        url: The URL of the origin, from the configuration.
        shared: The connections that all origins share.
        credentials: Sent only to the scheme, host and port of `url`.
        robots: Whether to respect robots.txt.
        delay: Minimum seconds between requests. A longer Crawl-delay takes precedence.
        allow_private_addresses: Whether the origin's documents may name hosts at any address.

    Attributes:
        sessions: The sessions that make the requests.
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
        self._limiters: dict[URL, RequestRate] = {}
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
        is_error: Callable[[], bool] | None = None,
    ) -> OriginAnswer | None:
        """GET a document, and pass its body to `feed` in pieces. Return None for a 304 response.

        If `is_error` is given, `feed` also receives the body of a 400, 404, 410 or 422 response. If
        `is_error` then returns True, the body is an error message of the origin's protocol, and no
        error is raised.

        Raises:
            FetchError: The document cannot be read, or may not be requested.
        """
        headers = {**_HEADERS, "Accept": accept, **dict([condition] if condition else ())}
        origin = ResponseOrigin(uri)
        async with self.sessions.get(uri, headers, origin) as response:
            if condition is not None and response.status == 304:
                return None
            if is_error is None or response.status not in _ERROR_STATUSES:
                check_status(uri, response)
                await stream_document(uri, response, self.sessions.large, feed)
            else:
                with suppress(DocumentError):
                    await stream_document(uri, response, self.sessions.large, feed)
                if not is_error():
                    check_status(uri, response)
            return OriginAnswer(
                validator(response),
                without_login(origin.base),
                response.content_type.lower(),
                "immutable" in response.headers.get("Cache-Control", "").lower(),
                parse_links(response.headers.getall("Link", [])),
            )

    async def content(
        self, uri: str, most: int, condition: tuple[str, str] | None = None, accept: str = "*/*"
    ) -> tuple[bytes, OriginAnswer | None]:
        """GET a document of at most `most` bytes. The answer is None for a 304 response.

        Raises:
            FetchError: See `get`.
            TooLarge: The document is larger.
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
        """GET a stream. The caller reads the body while the context is active.

        Raises:
            FetchError: The response cannot be read, or may not be requested.
        """
        async with self.sessions.get(uri, headers) as response:
            check_status(uri, response)
            yield response

    async def _admit(self, uri: str) -> None:
        """Wait until a request is allowed. Raise `FetchError` if robots.txt disallows it."""
        if self._respects_robots:
            rules = await self._robots(uri)
            parts = urlsplit(uri)
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            if not rules.allows(path):
                raise Unavailable(
                    uri,
                    "its robots.txt disallows this request; if the site's operator agrees, set "
                    "robots = false for this origin",
                )
        await self._limiter(uri, self._delay).wait()

    async def sitemaps(self, uri: str) -> tuple[str, ...]:
        """Return the Sitemaps listed in the robots.txt of a URI's host."""
        return (await self._robots(uri)).sitemaps

    def _limiter(self, uri: str, delay: float) -> RequestRate:
        origin = _origin(uri)
        limiter = self._limiters.get(origin)
        if limiter is None:
            limiter = self._limiters[origin] = RequestRate(1 / delay if delay else None)
        return limiter

    async def _robots(self, uri: str) -> RobotsRules:
        origin = _origin(uri)
        clock = asyncio.get_running_loop().time
        read_at, rules = self._rules.get(origin, (0.0, None))
        if rules is None or clock() > read_at + _ROBOTS_MAX_AGE_SECONDS:
            rules = await self._read_robots(origin_uri(uri, "/robots.txt"))
            self._rules[origin] = clock(), rules
            delay = max(self._delay, rules.delay if self._respects_robots else 0.0)
            self._limiters.pop(origin, None)
            self._limiter(uri, delay)
        return rules

    async def _read_robots(self, uri: str) -> RobotsRules:
        """Fetch a robots.txt. If there is none, everything is allowed (RFC 9309 §2.3.1)."""
        async with self.sessions.get_robots(uri) as response:
            if 400 <= response.status < 500 and response.status != 429:
                return RobotsRules()
            check_status(uri, response)  # any other error disallows everything
            text = await read_beginning(uri, response, _MAX_ROBOTS_BYTES)
            return parse_robots(text.decode(errors="replace"))


def _origin(uri: str) -> URL:
    try:
        return URL(uri).origin()
    except ValueError as error:
        raise Unavailable(uri, f"it is not an http(s) URL: {error}") from None
