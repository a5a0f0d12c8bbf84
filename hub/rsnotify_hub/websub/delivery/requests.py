"""The requests that the hub makes to callbacks: to verify, to deny, and to deliver.

Callbacks belong to strangers: redirects are never followed, and only a bounded part of an answer is
read. Time limits and the number of requests are up to the caller (`scheduler`): a request that is
cancelled leaves nothing behind.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import aiohttp

from rsnotify.format.datetimes import Instant
from rsnotify.format.links import format_links
from rsnotify.format.signatures import SigningKey
from rsnotify.format.vocabulary import Rel
from rsnotify.runtime.http.connection import HttpConnection, HttpOrigin
from rsnotify.runtime.http.pool import ConnectionPool
from rsnotify.runtime.http.response import (
    HttpReply,
    NoReply,
    StaleConnection,
    Unreachable,
)
from rsnotify.sync.retry import parse_retry_after
from rsnotify_hub.http.client import exact_url, reason_of
from rsnotify_hub.store.interface import NotOwner
from rsnotify_hub.subscriptions import Subscription
from rsnotify_hub.websub.delivery.answers import Answer
from rsnotify_hub.websub.delivery.posting.dialer import CallbackDialer
from rsnotify_hub.websub.delivery.posting.request_head import common_head, endpoint_of

_FAILURES = (aiohttp.ClientError, TimeoutError, OSError, ValueError)


class CallbackRequests:
    """Makes the requests to callbacks.

    Args:
        hub_url: This hub's `/websub`, for Link headers.
        method: The signature method of deliveries: `sha1`, `sha256`, `sha384` or `sha512` (WebSub
            §7.1.1).
    """

    def __init__(
        self,
        client: aiohttp.ClientSession,
        hub_url: str,
        *,
        method: str,
        clock: Callable[[], Instant],
        allow_private_addresses: bool,
        tls: ssl.SSLContext | None = None,
        pool: ConnectionPool | None = None,
    ) -> None:
        self.pool = ConnectionPool() if pool is None else pool
        self._dialer = CallbackDialer(
            self.pool, allow_private_addresses=allow_private_addresses, tls=tls
        )
        self._client = client
        self._hub_url = hub_url
        self._method = method
        self._clock = clock

    def begin(
        self,
        subscription: Subscription,
        body: bytes,
        content_type: str,
        done: Callable[[Answer | None], None],
    ) -> HttpConnection | None:
        """POST a notification without a task, if a connection is kept for it.

        `done` is called once, later, with the answer; or with None if the connection had already
        ended, so that `deliver` must make the request.

        Returns:
            The connection, with which the request can be cancelled; None if nothing was sent, and
            `deliver` must be used.
        """

        def settle(outcome: HttpReply | Exception) -> None:
            if isinstance(outcome, HttpReply):
                done(self._answer(outcome))
            else:
                done(None if isinstance(outcome, StaleConnection) else _no_reply(outcome))

        try:
            origin, head = self._request(subscription, body, content_type)
        except ValueError:
            return None
        connection = self.pool.acquire(origin)
        if connection is None or not connection.send(head, body, settle):
            return None
        return connection

    async def deliver(
        self,
        subscription: Subscription,
        body: bytes,
        content_type: str,
        *,
        is_allowed: Callable[[], bool] = lambda: True,
    ) -> Answer:
        """POST a notification (WebSub §7), over a new connection if none is kept.

        Raises:
            NotOwner: `is_allowed` returned False when it would have been sent.
        """
        try:
            origin, head = self._request(subscription, body, content_type)
            reply = await self._post(origin, head, body, is_allowed)
        except (NoReply, Unreachable, OSError, ValueError) as error:
            return _no_reply(error)
        return self._answer(reply)

    async def _post(
        self, origin: HttpOrigin, head: bytes, body: bytes, is_allowed: Callable[[], bool]
    ) -> HttpReply:
        connection = self.pool.acquire(origin)
        if connection is not None:
            try:
                return await connection.request(head, body)
            except StaleConnection:
                # Repeat it once (RFC 9110 §9.2.2): a subscriber must accept a notification twice.
                pass
        connection = await self._dialer.dial(origin)
        if not is_allowed():  # this process may have been suspended meanwhile
            connection.abort()
            raise NotOwner("another node delivers to this callback")
        return await connection.request(head, body)

    def _request(
        self, subscription: Subscription, body: bytes, content_type: str
    ) -> tuple[HttpOrigin, bytes]:
        origin, opening, key = callback_target(
            subscription.callback, subscription.secret, self._method
        )
        common = notification_head(subscription.topic, self._hub_url, content_type, len(body))
        if key is None:
            return origin, opening + common + b"\r\n"
        signature = f"X-Hub-Signature: {key.sign(body)}\r\n\r\n".encode()  # WebSub §7.1
        return origin, opening + common + signature

    async def get(self, url: str, *, limit: int) -> Answer:
        """GET a callback with a query (WebSub §5.2, §5.3); keep one byte more than the limit."""
        try:
            async with self._client.get(exact_url(url), allow_redirects=False) as response:
                body = await _beginning(response, limit + 1) if limit else b""
                retry_after = response.headers.get("Retry-After", "")
                return self._answer(HttpReply(response.status, retry_after, body))
        except _FAILURES as error:
            unconnected = isinstance(error, aiohttp.ClientConnectorError)
            return _not_reached(error, connected=not unconnected)

    def _answer(self, reply: HttpReply) -> Answer:
        if not reply.excerpt and reply.status < 300:
            return _success(reply.status)
        limited = reply.status in (429, 503)
        wait = parse_retry_after(reply.retry_after, self._clock()) if limited else None
        return Answer(reply.status, f"answers {reply.status}", reply.excerpt, wait)

    def close(self) -> None:
        self.pool.close()


class CallbackTarget(NamedTuple):
    """What the deliveries to one subscription share."""

    origin: HttpOrigin
    opening: bytes
    key: SigningKey | None


# As many as the subscriptions of a large hub: a smaller cache that is used in order never hits.
@lru_cache(maxsize=32_768)
def callback_target(callback: str, secret: str | None, method: str) -> CallbackTarget:
    """Return what a POST to a callback needs but its body; ValueError if it is no URL."""
    key = None if secret is None else SigningKey(secret, method)
    return CallbackTarget(*endpoint_of(callback), key)


@lru_cache(maxsize=256)
def notification_head(topic: str, hub_url: str, content_type: str, size: int) -> bytes:
    """Return the headers that the requests to all subscribers of a topic share (WebSub §7)."""
    links = format_links([(Rel.SELF, topic), (Rel.HUB, hub_url)])
    return common_head(("Content-Type", content_type), ("Link", links), size=size)


@lru_cache(maxsize=100)
def _success(status: int) -> Answer:
    return Answer(status, f"answers {status}")


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
    return _not_reached(error, connected=not isinstance(error, Unreachable))


def _not_reached(error: Exception, *, connected: bool) -> Answer:
    # An address that is refused now is refused at the next attempt, too: not worth one.
    refused = isinstance(error.__cause__, PermissionError)
    return Answer(None, f"cannot be reached: {reason_of(error)}", reached=connected or refused)
