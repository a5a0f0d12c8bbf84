"""WebSub callbacks: the URLs at which hubs reach this Destination.

`Callbacks` serves them in an aiohttp, ASGI or WSGI application. `listening` serves them with an
HTTP server, for programs without a web application.

Each subscription has its own unguessable URL (WebSub §5.1.1). The URL at which content arrives
determines its topic; the Link headers do not, because they come from the topic (WebSub §7).

`CallbackSubscription` is the state machine of one subscription, without I/O. Anybody who knows a
callback may send it anything, so it confirms only what was requested, and only for a limited time.
It rejects late verifications, and those of another topic or mode (WebSub §5.3.1). A hub may repeat
a verification in time, because the response can be lost.

    state          subscribe requested  confirmed  unsubscribe requested  confirmed  denied
    new            requested            -          -                      -          -
    requested      -                    active     over                   -          over
    active         -                    active     unsubscribing          -          over
    unsubscribing  -                    -          -                      over       over

While the subscription is active or unsubscribing, content with a valid signature is accepted. The
response to content for a subscription that is over is 410, so that the hub ends it (WebSub §7).

`DeliveryInbox` queues accepted deliveries, and `HubSilence` measures the time between them.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import socket
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import CancelledError
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from urllib.parse import unquote, urlsplit

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from rsnotify.errors import ConfigurationError
from rsnotify.format.model import MAX_BYTES
from rsnotify.format.signatures import METHODS, verify_signature
from rsnotify.runtime import serving as aiohttp_server
from rsnotify.runtime import web_messages as asgi
from rsnotify.runtime import web_messages as wsgi
from rsnotify.runtime.arguments import require, require_struct
from rsnotify.runtime.serving import serving
from rsnotify.runtime.web_messages import WebRequest, WebResponse, text_response
from rsnotify_subscriber.push_options import DEFAULT_TERMS, WebSubTerms

logger = logging.getLogger("rsnotify.subscriber.websub")

#: Maximum lease in seconds. Longer ones are capped.
_MAX_LEASE = 30 * 86_400
#: Maximum number of digits in a lease.
_MAX_LEASE_DIGITS = 18
#: Maximum number of characters of a challenge, so that the callback cannot be used as a reflector.
_MAX_CHALLENGE_LENGTH = 4096
#: Maximum number of characters of a hub's reason, or of a wrong parameter, to keep for messages.
_MAX_REASON_LENGTH, _MAX_VALUE_LENGTH = 200, 100


class SubscriptionMode(StrEnum):
    SUBSCRIBE = "subscribe"
    UNSUBSCRIBE = "unsubscribe"


class SubscriptionState(Enum):
    NEW = auto()
    REQUESTED = auto()
    ACTIVE = auto()
    UNSUBSCRIBING = auto()
    OVER = auto()


class CallbackDecision(Enum):
    ACCEPTED = auto()
    FORGED = auto()
    WEAK = auto()
    EARLY = auto()
    OVER = auto()


@dataclass(repr=False)
class CallbackSubscription:
    """A subscription, from the request to its end. Times are on the clock passed to `verify`.

    Args:
        callback: The URL to which only the hub of this subscription delivers.
        secret: The key of the signatures, or None if deliveries are not signed.
        lease: The requested lease in seconds.
    """

    topic: str
    callback: str
    secret: str | None
    signatures: tuple[str, ...]
    lease: int
    state: SubscriptionState = SubscriptionState.NEW
    #: The lease that the hub granted, in seconds, and when it ends.
    granted: int = 0
    expires: float = 0.0
    #: The hub's reason for denying the subscription, if it gave one.
    denial: str | None = None
    #: The hub's signature method, if it is not accepted.
    weak: str | None = None
    #: The wrong parameter of the last refused verification.
    refused: str | None = None
    _requested: tuple[SubscriptionMode, float] | None = None

    def __repr__(self) -> str:
        """Return a description for logs, without the secret and the callback."""
        return f"CallbackSubscription(topic={self.topic!r}, state={self.state.name})"

    @property
    def is_active(self) -> bool:
        return self.state is SubscriptionState.ACTIVE

    @property
    def is_over(self) -> bool:
        return self.state is SubscriptionState.OVER

    def request(self, mode: SubscriptionMode, until: float) -> dict[str, str]:
        """Begin a request, and return its form (WebSub §5.1).

        The hub must verify it before `until`.
        """
        self._requested = (mode, until)
        form = {"hub.mode": mode, "hub.topic": self.topic, "hub.callback": self.callback}
        if mode is SubscriptionMode.UNSUBSCRIBE:
            is_active = self.is_active
            self.state = SubscriptionState.UNSUBSCRIBING if is_active else SubscriptionState.OVER
            return form
        self.state = SubscriptionState.REQUESTED
        form["hub.lease_seconds"] = str(self.lease)
        return form if self.secret is None else form | {"hub.secret": self.secret}

    def verify(self, query: Mapping[str, str], now: float) -> str | None:
        """Process a verification or denial (WebSub §5.2, §5.3).

        Returns:
            The body of the response, or None to respond with 404.
        """
        if self.is_over:
            return None
        if query.get("hub.topic") != self.topic:
            return self._refuse("hub.topic", query)
        if query.get("hub.mode") == "denied":
            return self._deny(query.get("hub.reason", ""))
        challenge = query.get("hub.challenge", "")
        if not self._is_requested(query.get("hub.mode"), now):
            return self._refuse("hub.mode", query)
        if len(challenge) > _MAX_CHALLENGE_LENGTH:
            return self._refuse("hub.challenge", query)
        if not self._confirm(query.get("hub.lease_seconds", ""), now):
            return self._refuse("hub.lease_seconds", query)
        return challenge

    def _refuse(self, name: str, query: Mapping[str, str]) -> str | None:
        value = query.get(name)
        what = f"without {name}" if value is None else f"with {name}={value[:_MAX_VALUE_LENGTH]!r}"
        self.refused = what
        return None

    def _is_requested(self, mode: str | None, now: float) -> bool:
        requested = self._requested
        return requested is not None and requested[0] == mode and now <= requested[1]

    def _deny(self, reason: str) -> str | None:
        if self.state is SubscriptionState.NEW:
            return None
        self.denial = reason[:_MAX_REASON_LENGTH]
        self.state = SubscriptionState.OVER
        return ""

    def _confirm(self, granted: str, now: float) -> bool:
        if self.state is SubscriptionState.UNSUBSCRIBING:
            self.state = SubscriptionState.OVER
            return True
        lease = self._parse_lease(granted)
        if lease is None:
            return False
        self.state = SubscriptionState.ACTIVE
        self.granted = lease
        self.expires = now + lease
        return True

    def _parse_lease(self, granted: str) -> int | None:
        """Parse a lease. If a hub sends none, contrary to WebSub §5.3, use the requested lease."""
        if not granted:
            return self.lease
        if not (granted.isascii() and granted.isdigit()) or len(granted) > _MAX_LEASE_DIGITS:
            return None
        return min(int(granted), _MAX_LEASE) or None

    def decide(self, signature: str | None, body: bytes) -> CallbackDecision:
        """Decide whether content with this `X-Hub-Signature` is accepted."""
        if self.is_over:
            return CallbackDecision.OVER
        if self.state not in (SubscriptionState.ACTIVE, SubscriptionState.UNSUBSCRIBING):
            return CallbackDecision.EARLY
        if self.secret is None:
            return CallbackDecision.ACCEPTED
        method = verify_signature(signature or "", self.secret, body)
        if method is None:
            return CallbackDecision.FORGED
        if method not in self.signatures:
            self.weak = method
            return CallbackDecision.WEAK
        return CallbackDecision.ACCEPTED


class HubSilence:
    """Decides when to check whether a silent hub is down. Times are in seconds.

    A hub with nothing to deliver is as silent as one that is down. The check is due when the hub
    has been silent for twice its longest silence so far, but at least for `least`. If the hub is
    up, a silence of this length is normal.
    """

    def __init__(self, now: float, least: float) -> None:
        self._last = now
        self._least = least
        self._longest = 0.0

    def end(self, now: float) -> None:
        """End the current silence."""
        self._longest = max(self._longest, now - self._last)
        self._last = now

    @property
    def due(self) -> float:
        """The time of the next check."""
        return self._last + max(self._least, 2 * self._longest)


class DeliveryInbox:
    """A queue of deliveries, of at most `most` bytes. Each delivery ends the hub's silence.

    A delivery of any size fits if the queue is empty.
    """

    def __init__(self, silence: HubSilence, most: int = MAX_BYTES) -> None:
        self.silence = silence
        self._most = most
        self._bytes = 0
        self._waiting: deque[bytes] = deque()
        self._arrived = asyncio.Event()

    def put(self, body: bytes) -> bool:
        """Add a delivery if it fits. Return whether it did."""
        if self._waiting and self._bytes + len(body) > self._most:
            return False
        self._waiting.append(body)
        self._bytes += len(body)
        self._arrived.set()
        self.silence.end(asyncio.get_running_loop().time())
        return True

    async def get(self) -> bytes:
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        body = self._waiting.popleft()
        self._bytes -= len(body)
        return body


#: Number of random bytes at the end of a callback, and the pattern of their encoding.
_TOKEN_BYTES, _TOKEN = 32, "[A-Za-z0-9_-]{43}"
#: Maximum number of concurrent POST requests to a callback. A hub needs only one.
_MAX_CONCURRENT_POSTS = 4
_CALLBACK_URL = re.compile(r"[\x21-\x7e]+")
# Challenges are untrusted, so browsers must not render them as HTML.
_CHALLENGE_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
_RETRY_HEADERS = {"Retry-After": "1"}
_STATUS = {
    CallbackDecision.ACCEPTED: 204,
    CallbackDecision.WEAK: 403,
    CallbackDecision.EARLY: 404,
    CallbackDecision.OVER: 410,
}


@dataclass
class CallbackRoute:
    """A callback that this process serves."""

    subscription: CallbackSubscription
    inbox: DeliveryInbox
    reading: int = 0
    was_forged: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def notify(self) -> None:
        self._changed.set()
        self._changed.clear()

    async def until(self, condition: Callable[[CallbackSubscription], object]) -> None:
        while not condition(self.subscription):
            await self._changed.wait()


class Callbacks:
    """The callbacks of an application, for all subscribers in its event loop.

    Args:
        url: The URL at which hubs reach the callbacks. Each callback is below its path.
        terms: The terms of subscriptions.

    Raises:
        ConfigurationError: The URL cannot be a callback, or a signature method is unknown.
    """

    def __init__(self, url: str, terms: WebSubTerms = DEFAULT_TERMS) -> None:
        require("url", url, str, "a callback URL as a str")
        require_struct("terms", terms, WebSubTerms)
        self.url = _checked(url)
        self.terms = terms
        #: The event loop of the subscribers, set when one of them subscribes.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: dict[str, CallbackRoute] = {}
        unknown = set(terms.signatures) - set(METHODS)
        if unknown or not terms.signatures:
            raise ConfigurationError(f"the signature methods are {', '.join(METHODS)}")

    def __len__(self) -> int:
        """Return the number of open callbacks."""
        return len(self._open)

    def routes(self, path: str | None = None) -> list[web.RouteDef]:
        """Return the routes for an aiohttp application.

        Args:
            path: The path of the routes, ending in `/`. By default, the path of the URL.
        """
        path = (urlsplit(self.url).path if path is None else path) + f"{{token:{_TOKEN}}}"
        return [web.get(path, self._handle, allow_head=False), web.post(path, self._handle)]

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = request.content.iter_any()
        response = await self._respond(
            request.match_info["token"], aiohttp_server.request_in(request), body
        )
        return await aiohttp_server.send_response(response, request)

    def asgi_application(self, app: asgi.ASGIApplication | None = None) -> asgi.ASGIApplication:
        """Return an ASGI application that serves the callbacks below the path of the URL.

        It must run in the event loop of the subscribers.

        Args:
            app: The application for all other paths. By default, the response is 404.
        """
        others = app or asgi.asgi_not_found

        async def application(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
            token = self._token_in(scope["path"]) if scope["type"] == "http" else None
            if token is None:
                await others(scope, receive, send)
                return
            body = asgi.read_asgi_body(receive)
            with suppress(asgi.ClientDisconnected):
                response = await self._respond(token, asgi.asgi_request(scope), body)
                await asgi.send_response(response, scope, receive, send)

        return application

    def wsgi_application(self, app: wsgi.WSGIApplication | None = None) -> wsgi.WSGIApplication:
        """Return a WSGI application that serves the callbacks below the path of the URL.

        The subscribers run in an event loop in another thread of the same process. Until one of
        them has subscribed, and after their loop has ended, the response is 503.

        Args:
            app: The application for all other paths. By default, the response is 404.
        """
        others = app or wsgi.wsgi_not_found

        def application(
            environ: wsgi.Environ, start_response: wsgi.StartResponse
        ) -> Iterable[bytes]:
            request = wsgi.wsgi_request(environ)
            token = self._token_in(request.path)
            if token is None:
                return others(environ, start_response)
            response = self._respond_from_thread(token, request, environ)
            return wsgi.begin_response(response, environ, start_response)

        return application

    def _token_in(self, path: str) -> str | None:
        """Return the token in a decoded path, or None if it is not the path of a callback."""
        prefix = unquote(urlsplit(self.url).path)
        token = path.removeprefix(prefix)
        return token if path.startswith(prefix) and re.fullmatch(_TOKEN, token) else None

    def _respond_from_thread(
        self, token: str, request: WebRequest, environ: wsgi.Environ
    ) -> WebResponse:
        if self._loop is None:
            return WebResponse(503, dict(_RETRY_HEADERS))
        content = b""
        if request.method == "POST" and token in self._open:
            try:
                content = wsgi.read_wsgi_body(environ, MAX_BYTES)
            except ConnectionError as error:
                return text_response(400, f"{error}\n")
        responding = self._respond(token, request, _once(content))
        try:
            future = asyncio.run_coroutine_threadsafe(responding, self._loop)
        except RuntimeError:  # the loop has ended
            responding.close()
            return WebResponse(503, dict(_RETRY_HEADERS))
        try:
            return future.result(self.terms.patience)
        except (TimeoutError, CancelledError):
            future.cancel()
            return WebResponse(503, dict(_RETRY_HEADERS))

    def open(self, topic: str, inbox: DeliveryInbox) -> CallbackRoute:
        """Create a callback for a topic, whose deliveries go to `inbox`."""
        self._loop = asyncio.get_running_loop()
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        subscription = CallbackSubscription(
            topic,
            self.url + token,
            secret=secrets.token_urlsafe(_TOKEN_BYTES) if self.terms.secret else None,
            signatures=self.terms.signatures,
            lease=self.terms.lease,
        )
        self._open[token] = callback = CallbackRoute(subscription, inbox)
        return callback

    def close(self, callback: CallbackRoute) -> None:
        """Respond with 410 to all further requests to a callback."""
        self._open = {token: one for token, one in self._open.items() if one is not callback}

    async def _respond(
        self, token: str, request: WebRequest, body: AsyncIterable[bytes]
    ) -> WebResponse:
        """Respond to a request, and queue accepted content for the subscriber."""
        if self._loop not in (None, asyncio.get_running_loop()):
            raise ConfigurationError(
                "the subscribers do not run in the event loop of the application; "
                "run them there, or use wsgi_application"
            )
        callback = self._open.get(token)
        if request.method == "GET":
            return text_response(404) if callback is None else _verified(callback, request)
        if request.method != "POST":
            return text_response(405, headers={"Allow": "GET, POST"})
        if callback is None:  # its subscription has ended, perhaps in an earlier run
            return WebResponse(_STATUS[CallbackDecision.OVER], {})
        if callback.reading >= _MAX_CONCURRENT_POSTS:
            return WebResponse(503, dict(_RETRY_HEADERS))
        callback.reading += 1
        try:
            content = await self._read(request, body)
        finally:
            callback.reading -= 1
        if isinstance(content, WebResponse):
            return content
        return self._accept(callback, request.headers.get("x-hub-signature"), content)

    def _accept(self, callback: CallbackRoute, signature: str | None, body: bytes) -> WebResponse:
        decision = callback.subscription.decide(signature, body)
        if decision is CallbackDecision.ACCEPTED and not callback.inbox.put(body):
            return WebResponse(503, dict(_RETRY_HEADERS))
        if decision is CallbackDecision.FORGED:
            self._log_forged(callback, signature)
            return WebResponse(403 if self.terms.refuse else 204, {})
        callback.notify()
        return WebResponse(_STATUS[decision], {})

    def _log_forged(self, callback: CallbackRoute, signature: str | None) -> None:
        what = "without a signature" if signature is None else "with a wrong signature"
        level = logging.DEBUG if callback.was_forged else logging.WARNING
        callback.was_forged = True
        logger.log(level, "ignoring content %s for %s", what, callback.subscription.topic)

    async def _read(self, request: WebRequest, body: AsyncIterable[bytes]) -> bytes | WebResponse:
        """Return the content, or an error response if the content cannot be accepted."""
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            return text_response(415, "Content-Encoding is not supported\n")
        content = bytearray()
        try:
            async with asyncio.timeout(self.terms.patience):
                async for chunk in body:
                    content += chunk
                    if len(content) > MAX_BYTES:
                        return text_response(413, f"at most {MAX_BYTES} bytes are accepted\n")
        except TimeoutError:
            return text_response(408, "the body did not arrive in time\n")
        except ConnectionError:
            return text_response(400, "the connection was lost\n")
        return bytes(content)


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content


def _verified(callback: CallbackRoute, request: WebRequest) -> WebResponse:
    now = asyncio.get_running_loop().time()
    challenge = callback.subscription.verify(request.parameters(), now)
    callback.notify()
    if challenge is None:
        return text_response(404)
    return text_response(200, challenge, _CHALLENGE_HEADERS)


def _checked(url: str) -> str:
    """Return a callback URL with a final `/`, or raise `ConfigurationError`."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not _CALLBACK_URL.fullmatch(url) or "@" in parts.netloc:
        raise ConfigurationError(f"{url!r} is not a callback URL; write https://host/path/")
    if parts.query or parts.fragment:
        raise ConfigurationError(
            f"{url!r} has a query or fragment; remove it from the callback URL"
        )
    return url if url.endswith("/") else url + "/"


#: Maximum number of connections to the server of `listening`.
_MAX_CONNECTIONS = 1_000

http_logger = logging.getLogger("rsnotify.subscriber.websub.http")


@asynccontextmanager
async def listening(callbacks: Callbacks, listener: socket.socket) -> AsyncIterator[None]:
    """Serve callbacks at a listening socket while the context is active, then close the socket."""
    app = web.Application()
    app.add_routes(callbacks.routes())
    http_logger.addFilter(_is_ours)
    options = {"auto_decompress": False, "logger": http_logger}
    async with serving(app, listener, shutdown_timeout=1, most=_MAX_CONNECTIONS, **options):
        yield


def _is_ours(record: logging.LogRecord) -> bool:
    """Filter out malformed requests, because aiohttp logs bytes of them."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError)
