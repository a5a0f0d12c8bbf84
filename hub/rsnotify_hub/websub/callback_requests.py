"""The hub's requests to callbacks: verifications, denials and deliveries.

Callbacks belong to strangers. The hub therefore checks the address of each callback when it
connects, never follows redirects, and reads only a limited part of each response. It POSTs over
pooled connections, with a request head that is mostly the same for all subscribers of a topic. The
caller (`request_scheduler`) limits the time and the number of requests.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

import aiohttp
from msgspec import Struct
from yarl import URL

from rsnotify.format.datetimes import Instant
from rsnotify.format.links import format_links
from rsnotify.format.model import Rel
from rsnotify.format.signatures import SigningKey
from rsnotify.runtime.addresses import Dialer, any_socket, open_session, public_sockets
from rsnotify.runtime.http_client import (
    ConnectionPool,
    Done,
    HttpConnection,
    HttpOrigin,
    HttpReply,
    NoReply,
    StaleConnection,
    Unreachable,
)
from rsnotify.runtime.reasons import reason_of
from rsnotify.sync.retry import parse_retry_after
from rsnotify_hub.store.interface import NotOwner
from rsnotify_hub.urls import SHORTEST_SECRET
from rsnotify_hub.websub_subscription import Subscription

USER_AGENT = "rsnotify-hub"

#: Number of bytes to keep of an error response's body, so that an operator can find the cause.
EXCERPT_BYTES = 512

_REDACTED = b"[...]"

_PORTS = {"http": 80, "https": 443}
# Characters that could end the request line or the Host header early, or that a URI cannot contain.
_UNSAFE_IN_URL = re.compile(r"[^\x21-\x7e]")
# Characters that would end a header early (RFC 9110 §5.5).
_UNSAFE_IN_HEADER = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_FAILURES = (aiohttp.ClientError, TimeoutError, OSError, ValueError)

_guarded_socket = public_sockets(
    lambda reason: PermissionError(
        f"its address is not public ({reason}); to allow it, start the hub with "
        "--allow-private-addresses"
    )
)


def open_client(*, allow_private_addresses: bool) -> aiohttp.ClientSession:
    """Return a new client for URLs from others. Callers must limit the time and number of requests.

    Unless private addresses are allowed, the client refuses them, to prevent server-side request
    forgery. It checks each address just before it connects, because a name may resolve to a private
    address, and because aiohttp does not resolve IP literals.
    """
    return open_session(
        any_socket if allow_private_addresses else _guarded_socket,
        {"User-Agent": USER_AGENT, "Accept-Encoding": "identity"},
        timeout=aiohttp.ClientTimeout(total=None),
    )


def exact_url(url: str) -> URL:
    """Return a URL that aiohttp requests without normalization."""
    return URL(url, encoded=True)


class Answer(Struct, frozen=True, gc=False):
    """The outcome of one request to a callback.

    Args:
        status: The HTTP status; None if there was no response.
        reason: The outcome, worded to follow "the callback", for example `returned 500`.
        excerpt: The first bytes of the body, if requested.
        retry_after: The seconds to wait before the next request, if the response states them.
        reached: False if no connection could be opened, in which case nothing was sent. A forbidden
            address counts as reached, because another attempt would be pointless.
    """

    status: int | None
    reason: str
    excerpt: bytes = b""
    retry_after: float | None = None
    reached: bool = True

    @property
    def succeeded(self) -> bool:
        """Whether the callback accepted the request (WebSub §7).

        A redirect is a failure: the subscriber verified this callback and no other.
        """
        return self.status is not None and 200 <= self.status < 300

    @property
    def is_gone(self) -> bool:
        """Whether the callback ended its subscription."""
        return self.status == 410


@dataclass(eq=False, repr=False)
class CallbackRequests:
    """Sends the hub's requests to callbacks.

    Args:
        hub_url: The URL of this hub's `/websub`, for Link headers.
        method: The signature method of deliveries: `sha1`, `sha256`, `sha384` or `sha512` (WebSub
            §7.1.1).
        tls: The trusted certificates, or None for the system's.
    """

    client: aiohttp.ClientSession
    hub_url: str
    method: str
    clock: Callable[[], Instant]
    allow_private_addresses: bool
    tls: ssl.SSLContext | None = None
    pool: ConnectionPool = field(default_factory=ConnectionPool)

    def __post_init__(self) -> None:
        self._make_socket = any_socket if self.allow_private_addresses else _guarded_socket

    def send_now(
        self, target: CallbackTarget, topic: str, body: bytes, content_type: str, done: Done
    ) -> HttpConnection | None:
        """POST a notification without a task, if the pool has an open connection for it.

        `done` is called exactly once, later, with the outcome, which `parse_outcome` converts.

        Returns:
            The connection, which can cancel the request; None if nothing was sent, in which case
            the caller must use `send`.
        """
        request = self._request(target, topic, body, content_type)
        connection = self.pool.acquire(target.origin)
        if connection is None or not connection.send(request, done):
            return None
        return connection

    def parse_outcome(self, outcome: HttpReply | Exception) -> Answer | None:
        """Return the answer to a request from `send_now`.

        Return None if the connection had already ended. The caller must then use `send`.
        """
        if isinstance(outcome, HttpReply):
            return self._answer_from(outcome)
        return None if isinstance(outcome, StaleConnection) else _no_reply(outcome)

    async def send(
        self,
        subscription: Subscription,
        body: bytes,
        content_type: str,
        *,
        is_allowed: Callable[[], bool] = lambda: True,
    ) -> Answer:
        """POST a notification (WebSub §7), over a new connection if the pool has none.

        Raises:
            NotOwner: `is_allowed` returned False just before sending.
        """
        try:
            target = self.target(subscription)
            request = self._request(target, subscription.topic, body, content_type)
            reply = await self._post(target.origin, request, is_allowed)
        except (NoReply, Unreachable, OSError, ValueError) as error:
            return _no_reply(error)
        return self._answer_from(reply)

    async def _post(
        self, origin: HttpOrigin, request: bytes, is_allowed: Callable[[], bool]
    ) -> HttpReply:
        connection = self.pool.acquire(origin)
        if connection is not None:
            try:
                return await connection.request(request)
            except StaleConnection:
                pass  # retry once (RFC 9110 §9.2.2): a subscriber must cope with a duplicate
        connection = await self._connect(origin)
        if not is_allowed():  # this process may have been suspended while it connected
            connection.abort()
            raise NotOwner("another node delivers to this callback")
        return await connection.request(request)

    async def _connect(self, origin: HttpOrigin) -> HttpConnection:
        if origin.secure and self.tls is None:
            self.tls = ssl.create_default_context()  # takes 15 ms
        try:
            sock = await Dialer(create=self._make_socket).dial(origin.host, origin.port)
            try:
                _, connection = await asyncio.get_running_loop().create_connection(
                    partial(HttpConnection, origin, self.pool),
                    sock=sock,
                    ssl=self.tls if origin.secure else None,
                    # No certificate has the trailing dot of the DNS root.
                    server_hostname=origin.host.rstrip(".") if origin.secure else None,
                )
            except BaseException:
                sock.close()
                raise
        except (OSError, RuntimeError, ValueError) as error:  # including those from uvloop
            raise Unreachable from error
        return connection

    def target(self, subscription: Subscription) -> CallbackTarget:
        """Return the target of a subscription's deliveries.

        Raise `ValueError` if the callback's URL is unusable.
        """
        secret = subscription.secret
        key = None if secret is None else SigningKey(secret, self.method)
        return CallbackTarget(*parse_callback(subscription.callback), secret, key)

    def _request(self, target: CallbackTarget, topic: str, body: bytes, content_type: str) -> bytes:
        common = notification_head(topic, self.hub_url, content_type, len(body))
        signature = b"\r\n"
        if target.key is not None:
            # WebSub §7.1
            signature = f"X-Hub-Signature: {target.key.sign(body)}\r\n\r\n".encode()
        return b"".join((target.opening, common, signature, body))

    async def get(self, url: str, *, limit: int) -> Answer:
        """GET a callback with a query (WebSub §5.2, §5.3).

        Read at most `limit` + 1 bytes of the response, or nothing if `limit` is 0.
        """
        try:
            async with self.client.get(exact_url(url), allow_redirects=False) as response:
                body = await _beginning(response, limit + 1) if limit else b""
                retry_after = response.headers.get("Retry-After", "")
                return self._answer_from(HttpReply(response.status, retry_after, body))
        except _FAILURES as error:
            unconnected = isinstance(error, aiohttp.ClientConnectorError)
            return _unreachable(error, connected=not unconnected)

    def _answer_from(self, reply: HttpReply) -> Answer:
        if not reply.excerpt and reply.status < 300:
            return _success(reply.status)
        limited = reply.status in (429, 503)
        wait = parse_retry_after(reply.retry_after, self.clock()) if limited else None
        return Answer(reply.status, f"returned {reply.status}", reply.excerpt, wait)

    def close(self) -> None:
        self.pool.close()


async def _beginning(response: aiohttp.ClientResponse, size: int) -> bytes:
    body = b""
    async for chunk in response.content.iter_chunked(size):
        body += chunk
        if len(body) >= size:
            break
    return body[:size]


@lru_cache(maxsize=100)
def _success(status: int) -> Answer:
    return Answer(status, f"returned {status}")


def _no_reply(error: Exception) -> Answer:
    if isinstance(error, NoReply):
        return Answer(None, str(error))
    return _unreachable(error, connected=not isinstance(error, Unreachable))


def _unreachable(error: Exception, *, connected: bool) -> Answer:
    refused = isinstance(error.__cause__, PermissionError)
    return Answer(None, f"is unreachable: {reason_of(error)}", reached=connected or refused)


class CallbackTarget(NamedTuple):
    """What all deliveries to a subscription have in common.

    `opening` is the request line and the Host header, and `key` signs the deliveries.
    """

    origin: HttpOrigin
    opening: bytes
    secret: str | None
    key: SigningKey | None


def parse_callback(url: str) -> tuple[HttpOrigin, bytes]:
    """Return the origin of a URL, and the request line and Host header of a POST to it.

    The request target is exactly as written.
    """
    parts = urlsplit(url)
    if _UNSAFE_IN_URL.search(url) or parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError("this is not an absolute http or https URL")
    # A bare `?` at the end belongs to the target, but urlsplit drops it.
    authority, target = _split(url.partition("#")[0].partition("://")[2])
    host = authority.rpartition("@")[2].removesuffix(":")
    opening = f"POST {target} HTTP/1.1\r\nHost: {host}\r\n".encode()
    port = parts.port or _PORTS[parts.scheme]
    return HttpOrigin(parts.scheme == "https", parts.hostname, port), opening


def _split(rest: str) -> tuple[str, str]:
    end = next((index for index, letter in enumerate(rest) if letter in "/?"), len(rest))
    authority, target = rest[:end], rest[end:]
    return authority, target if target.startswith("/") else "/" + target


@lru_cache(maxsize=256)
def notification_head(topic: str, hub_url: str, content_type: str, size: int) -> bytes:
    """Return the headers shared by the requests to all subscribers of a topic (WebSub §7)."""
    headers = {
        "Content-Type": content_type,
        "Link": format_links([(Rel.SELF, topic), (Rel.HUB, hub_url)]),
        "Accept": "*/*",
        "Accept-Encoding": "identity",
        "User-Agent": USER_AGENT,
        "Content-Length": str(size),
    }
    return b"".join(_header(name, value) for name, value in headers.items())


def _header(name: str, value: str) -> bytes:
    if _UNSAFE_IN_HEADER.search(value):
        raise ValueError(f"the value of {name} has a character that is not allowed in a header")
    return f"{name}: {value}\r\n".encode()


def redacted(excerpt: bytes, subscription: Subscription) -> bytes:
    """Return an excerpt of a response without the subscription's secrets.

    An error page may repeat the request, which contains them.
    """
    for secret in _secrets(subscription):
        excerpt = excerpt.replace(secret.encode(), _REDACTED)
    return excerpt[:EXCERPT_BYTES]


def _secrets(subscription: Subscription) -> list[str]:
    # The callback is a capability URL: any part of it except the host may be secret (WebSub §8.2).
    parts = urlsplit(subscription.callback)
    found = [subscription.secret or "", parts.query, *parts.path.split("/")]
    found += [unquote(part) for part in found[1:]]  # as servers decode them
    found += [value or name for name, value in parse_qsl(parts.query, keep_blank_values=True)]
    long_enough = {part for part in found if len(part) >= SHORTEST_SECRET}
    return sorted(long_enough, key=len, reverse=True)
