"""The requests that the hub makes to callbacks: to verify, to deny, and to deliver.

A callback is a stranger's: it is never followed to another place, and little of its answer is
read. How long a request may take is for others to say (`turns`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import aiohttp

from rsnotify.format.datetimes import Instant
from rsnotify.format.links import format_links
from rsnotify.format.vocabulary import Rel
from rsnotify.sync.retry import asked_wait
from rsnotify_hub.http.client import exact_url, reason_of
from rsnotify_hub.subscriptions import Subscription
from rsnotify_hub.websub.delivering.answers import Answer
from rsnotify_hub.websub.delivering.posting.connection import Connection
from rsnotify_hub.websub.delivering.posting.heads import common_head
from rsnotify_hub.websub.delivering.posting.poster import Poster
from rsnotify_hub.websub.delivering.posting.replies import NoReply, Reply, Stale, Unreachable
from rsnotify_hub.websub.delivering.signatures import Signatures

_FAILURES = (aiohttp.ClientError, TimeoutError, OSError, ValueError)


class Callbacks:
    """The requests to callbacks.

    Args:
        client: The guarded HTTP client, for questions.
        poster: Makes deliveries.
        hub_url: This hub's `/websub`, for Link headers.
        method: How deliveries are signed (WebSub §7.1.1).
        clock: Tells the current instant.
    """

    def __init__(
        self,
        client: aiohttp.ClientSession,
        poster: Poster,
        hub_url: str,
        *,
        method: str,
        clock: Callable[[], Instant],
    ) -> None:
        self._client = client
        self._poster = poster
        self._hub_url = hub_url
        self._clock = clock
        self._signatures = Signatures(method)

    async def deliver(self, subscription: Subscription, body: bytes, content_type: str) -> Answer:
        """POST a notification (WebSub §7).

        Args:
            subscription: Whose callback, and what to sign with.
            body: The content.
            content_type: What it is.

        Returns:
            The answer, with an excerpt of its body where it is a failure.
        """
        try:
            head = self._head(subscription, body, content_type)
            reply = await self._poster.post(subscription.callback, head, body)
        except (NoReply, Unreachable, OSError, ValueError) as error:
            return _no_reply(error)
        return self._answer(reply.status, reply.retry_after, reply.excerpt)

    def begin(
        self,
        subscription: Subscription,
        body: bytes,
        content_type: str,
        done: Callable[[Answer | None], None],
    ) -> Connection | None:
        """Begin to POST a notification, where a connection waits for one: it needs no task then.

        Args:
            subscription: Whose callback, and what to sign with.
            body: The content.
            content_type: What it is.
            done: Called once, later, with the answer; with None if that connection had ended
                before, so that it is for `deliver` to make the request.

        Returns:
            The connection, to cancel the request with; None where `deliver` is needed.
        """

        def settle(outcome: Reply | Exception) -> None:
            if isinstance(outcome, Reply):
                done(self._answer(outcome.status, outcome.retry_after, outcome.excerpt))
            else:
                done(None if isinstance(outcome, Stale) else _no_reply(outcome))

        try:
            head = self._head(subscription, body, content_type)
            return self._poster.begin(subscription.callback, head, body, settle)
        except ValueError:
            return None

    def _head(self, subscription: Subscription, body: bytes, content_type: str) -> bytes:
        head = notification_head(subscription.topic, self._hub_url, content_type, len(body))
        if subscription.secret is None:
            return head
        return head + self._signatures.header(subscription.secret, body)

    async def ask(self, url: str, *, limit: int) -> Answer:
        """GET a callback with a query (WebSub §5.2, §5.3).

        Args:
            url: The callback and the query.
            limit: How many bytes of the answer matter.

        Returns:
            The answer, with its body as the excerpt, cut one byte beyond the limit.
        """
        try:
            async with self._client.get(exact_url(url), allow_redirects=False) as response:
                body = await _beginning(response, limit + 1) if limit else b""
                retry_after = response.headers.get("Retry-After", "")
                return self._answer(response.status, retry_after, body)
        except _FAILURES as error:
            return _failure(error)

    def _answer(self, status: int, retry_after: str, excerpt: bytes) -> Answer:
        wait = asked_wait(retry_after, self._clock()) if status in (429, 503) else None
        return Answer(status, f"answers {status}", excerpt, wait)


@lru_cache(maxsize=256)
def notification_head(topic: str, hub_url: str, content_type: str, size: int) -> bytes:
    """Write what the requests to all subscribers of a topic have alike (WebSub §7).

    Raises:
        ValueError: Something in it cannot stand in a header.
    """
    links = format_links([(Rel.SELF, topic), (Rel.HUB, hub_url)])
    return common_head((("Content-Type", content_type), ("Link", links)), size)


async def _beginning(response: aiohttp.ClientResponse, size: int) -> bytes:
    body = b""
    async for chunk in response.content.iter_chunked(size):
        body += chunk
        if len(body) >= size:
            break
    return body[:size]


def _no_reply(error: Exception) -> Answer:
    if isinstance(error, NoReply):
        return Answer(None, str(error))
    # What is forbidden is so at the next try, too.
    reached = not isinstance(error, Unreachable) or isinstance(error.__cause__, PermissionError)
    return Answer(None, f"cannot be reached: {reason_of(error)}", reached=reached)


def _failure(error: Exception) -> Answer:
    unconnected = isinstance(error, aiohttp.ClientConnectorError)
    forbidden = unconnected and isinstance(error.__cause__, PermissionError)
    return Answer(
        None,
        f"cannot be reached: {reason_of(error)}",
        reached=forbidden or not unconnected,
    )
