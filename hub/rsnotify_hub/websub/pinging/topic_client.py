"""The GET of a topic after a ping, with few redirects and a bounded answer."""

from __future__ import annotations

import asyncio
from urllib.parse import urldefrag, urlsplit

import aiohttp
from msgspec import Struct
from yarl import URL

from rsnotify.errors import Unavailable
from rsnotify_hub.http.client import exact_url, reason_of
from rsnotify_hub.refusals import Refusal
from rsnotify_hub.urls import check_url

#: How many redirects are followed.
MAX_REDIRECTS = 3

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MAX_VALIDATOR = 200
_SUCCESS, _NOT_MODIFIED = 200, 304


class Validators(Struct, frozen=True):
    """The `ETag` and `Last-Modified` of one version of a content (RFC 9110 §8.8)."""

    etag: str | None = None
    modified: str | None = None

    def conditions(self) -> dict[str, str]:
        headers = {"If-None-Match": self.etag, "If-Modified-Since": self.modified}
        return {name: value for name, value in headers.items() if value is not None}


class Fetched(Struct, frozen=True):
    """The answer of a topic; the content type may be empty."""

    body: bytes
    content_type: str
    validators: Validators


class TopicClient:
    """Fetches topics, each with its redirects within `seconds`, through the guarded HTTP client."""

    def __init__(self, client: aiohttp.ClientSession, *, max_bytes: int, seconds: float) -> None:
        self._client = client
        self._max_bytes = max_bytes
        self._seconds = seconds

    async def fetch(self, topic: str, known: Validators) -> Fetched | None:
        """GET a topic; return None if its version is still the known one.

        Raises:
            Unavailable: It did not answer with usable content.
        """
        try:
            async with asyncio.timeout(self._seconds):
                return await self._follow(topic, known)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise Unavailable(topic, reason_of(error)) from None

    async def _follow(self, topic: str, known: Validators) -> Fetched | None:
        url = topic
        for _ in range(MAX_REDIRECTS + 1):
            async with self._client.get(
                exact_url(url), allow_redirects=False, headers=known.conditions()
            ) as response:
                if response.status not in _REDIRECTS:
                    return await self._read(topic, response)
                url = _target(topic, url, response.headers.get("Location", ""))
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
            validators=Validators(
                _short(response.headers.get("ETag")), _short(response.headers.get("Last-Modified"))
            ),
        )


def _short(validator: str | None) -> str | None:
    return validator if validator is not None and len(validator) <= _MAX_VALIDATOR else None


def _target(topic: str, url: str, location: str) -> str:
    """Return the target of a redirect, if it may be followed."""
    target = urldefrag(str(exact_url(url).join(URL(location, encoded=True)))).url
    try:
        check_url(target, "the Location")
    except Refusal:
        raise Unavailable(topic, "it redirects to an unusable URL") from None
    if urlsplit(url).scheme == "https" and urlsplit(target).scheme != "https":
        raise Unavailable(topic, "it redirects from https to http")
    return target
