"""The requests that the hub makes to callbacks: to verify, to deny, and to deliver.

A callback is a stranger's: it is never followed to another place, and little of its answer is
read. How long a request may take is for others to say (`turns`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp

from rsnotify.datetimes import Instant
from rsnotify.links import format_links
from rsnotify.retry import asked_wait
from rsnotify.vocabulary import Rel
from rsnotify_hub.client import exactly, reason_of
from rsnotify_hub.subscriptions import Subscription, signature
from rsnotify_hub.websub.answers import Answer

_FAILURES = (aiohttp.ClientError, TimeoutError, OSError, ValueError)

#: How much of a failed answer's body is read, and how long that may take, in seconds.
_EXCERPT_BYTES = 4096
_EXCERPT_SECONDS = 1.0


class Callbacks:
    """The requests to callbacks.

    Args:
        client: The guarded HTTP client.
        hub_url: This hub's `/websub`, for Link headers.
        method: How deliveries are signed (WebSub §7.1.1).
        clock: Tells the current instant.
    """

    def __init__(
        self,
        client: aiohttp.ClientSession,
        hub_url: str,
        *,
        method: str,
        clock: Callable[[], Instant],
    ) -> None:
        self._client = client
        self._hub_url = hub_url
        self._method = method
        self._clock = clock

    async def deliver(self, subscription: Subscription, body: bytes, content_type: str) -> Answer:
        """POST a notification (WebSub §7).

        Args:
            subscription: Whose callback, and what to sign with.
            body: The content.
            content_type: What it is.

        Returns:
            The answer, with an excerpt of its body where it is a failure.
        """
        links = [(Rel.SELF, subscription.topic), (Rel.HUB, self._hub_url)]
        headers = {"Content-Type": content_type, "Link": format_links(links)}
        if subscription.secret is not None:
            headers["X-Hub-Signature"] = signature(subscription.secret, body, self._method)
        url = exactly(subscription.callback)
        try:
            async with self._client.post(
                url, data=body, headers=headers, allow_redirects=False
            ) as response:
                excerpt = b"" if 200 <= response.status < 300 else await _excerpt(response)
                return self._answer(response, excerpt)
        except _FAILURES as error:
            return _failure(error)

    async def ask(self, url: str, *, limit: int) -> Answer:
        """GET a callback with a query (WebSub §5.2, §5.3).

        Args:
            url: The callback and the query.
            limit: How many bytes of the answer matter.

        Returns:
            The answer, with its body as the excerpt, cut one byte beyond the limit.
        """
        try:
            async with self._client.get(exactly(url), allow_redirects=False) as response:
                body = await _beginning(response, limit + 1) if limit else b""
                return self._answer(response, body)
        except _FAILURES as error:
            return _failure(error)

    def _answer(self, response: aiohttp.ClientResponse, excerpt: bytes) -> Answer:
        wait = None
        if response.status in (429, 503):
            wait = asked_wait(response.headers.get("Retry-After", ""), self._clock())
        return Answer(response.status, f"answers {response.status}", excerpt, wait)


async def _beginning(response: aiohttp.ClientResponse, size: int) -> bytes:
    body = b""
    async for chunk in response.content.iter_chunked(size):
        body += chunk
        if len(body) >= size:
            break
    return body[:size]


async def _excerpt(response: aiohttp.ClientResponse) -> bytes:
    """Return what can be had of a body soon; the status counts without it."""
    try:
        async with asyncio.timeout(_EXCERPT_SECONDS):
            return await _beginning(response, _EXCERPT_BYTES)
    except _FAILURES:
        return b""


def _failure(error: Exception) -> Answer:
    unconnected = isinstance(error, aiohttp.ClientConnectorError)
    forbidden = unconnected and isinstance(error.__cause__, PermissionError)
    return Answer(
        None,
        f"cannot be reached: {reason_of(error)}",
        reached=forbidden or not unconnected,
    )
