"""Requests to URLs from clients: an HTTP client for topics and callbacks, and fetching topics.

The client refuses private addresses, to prevent server-side request forgery. It checks each address
just before it connects, because a name may resolve to a private address, and because aiohttp does
not resolve IP literals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from urllib.parse import urldefrag, urlsplit

import aiohttp
from msgspec import Struct
from yarl import URL

from rsnotify.errors import Unavailable
from rsnotify.runtime.addresses import any_socket, open_session, public_sockets
from rsnotify.runtime.reasons import reason_of
from rsnotify_hub.refusals import Refusal
from rsnotify_hub.urls import check_url

USER_AGENT = "rsnotify-hub"

#: Maximum number of redirects to follow.
MAX_REDIRECTS = 3

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
#: Maximum length of an `ETag` or `Last-Modified` to send back.
_MAX_VALIDATOR_SIZE = 200
_SUCCESS, _NOT_MODIFIED = 200, 304


guarded_socket = public_sockets(
    lambda reason: PermissionError(
        f"its address is not public ({reason}); to allow it, start the hub with "
        "--allow-private-addresses"
    )
)


def open_client(*, allow_private_addresses: bool) -> aiohttp.ClientSession:
    """Return a new client. Callers must limit the duration and number of their requests."""
    return open_session(
        any_socket if allow_private_addresses else guarded_socket,
        {"User-Agent": USER_AGENT, "Accept-Encoding": "identity"},
        timeout=aiohttp.ClientTimeout(total=None),
    )


class Fetched(Struct, frozen=True):
    """The content of a topic. The content type may be empty.

    `conditions` are the headers of a conditional request for any other version.
    """

    body: bytes
    content_type: str
    conditions: Mapping[str, str]


class TopicClient:
    """Fetches topics. The timeout includes redirects."""

    def __init__(self, client: aiohttp.ClientSession, *, max_bytes: int, seconds: float) -> None:
        self._client = client
        self._max_bytes = max_bytes
        self._seconds = seconds

    async def fetch(self, topic: str, conditions: Mapping[str, str]) -> Fetched | None:
        """Fetch a topic. Return None if it has not changed according to the conditions.

        Raises:
            Unavailable: The topic could not be fetched, or its content is unusable.
        """
        try:
            async with asyncio.timeout(self._seconds):
                return await self._follow(topic, conditions)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise Unavailable(topic, reason_of(error)) from None

    async def _follow(self, topic: str, conditions: Mapping[str, str]) -> Fetched | None:
        url = topic
        for _ in range(MAX_REDIRECTS + 1):
            async with self._client.get(
                exact_url(url), allow_redirects=False, headers=conditions
            ) as response:
                if response.status not in _REDIRECTS:
                    return await self._read(topic, response)
                url = _redirect_target(topic, url, response.headers.get("Location", ""))
        raise Unavailable(topic, f"it redirects more than {MAX_REDIRECTS} times")

    async def _read(self, topic: str, response: aiohttp.ClientResponse) -> Fetched | None:
        if response.status == _NOT_MODIFIED:
            return None
        if response.status != _SUCCESS:
            raise Unavailable(topic, f"it answers {response.status}")
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise Unavailable(topic, "it answers with a Content-Encoding")
        chunks, size = [], 0
        async for chunk in response.content.iter_any():
            chunks.append(chunk)
            size += len(chunk)
            if size > self._max_bytes:
                raise Unavailable(topic, f"its content is too large: over {self._max_bytes} bytes")
        return Fetched(
            body=b"".join(chunks),
            content_type=response.headers.get("Content-Type", ""),
            conditions=_conditions(response.headers),
        )


def _conditions(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a conditional request for another version (RFC 9110 §13.1)."""
    values = {
        "If-None-Match": headers.get("ETag", ""),
        "If-Modified-Since": headers.get("Last-Modified", ""),
    }
    return {name: value for name, value in values.items() if 0 < len(value) <= _MAX_VALIDATOR_SIZE}


def _redirect_target(topic: str, url: str, location: str) -> str:
    """Return the target of a redirect. Raise `Unavailable` if it must not be followed."""
    target = urldefrag(str(exact_url(url).join(URL(location, encoded=True)))).url
    try:
        check_url(target, "the Location")
    except Refusal:
        raise Unavailable(topic, "it redirects to an unusable URL") from None
    if urlsplit(url).scheme == "https" and urlsplit(target).scheme != "https":
        raise Unavailable(topic, "it redirects from https to http")
    return target


def exact_url(url: str) -> URL:
    """Return a URL that aiohttp requests without normalization."""
    return URL(url, encoded=True)
