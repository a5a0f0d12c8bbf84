"""WebSub callbacks: the URLs at which hubs reach this Destination.

`Callbacks` serves them in an application of aiohttp, ASGI or WSGI. `listening` runs an HTTP server
for callbacks alone, for programs without a web application to mount them in.

Each subscription has its own URL, which nobody can guess (WebSub §5.1.1). The URL at which content
arrives determines its topic. Its Link headers do not, because they are the topic's own (WebSub §7).

`CallbackSubscription` is one subscription as its callback sees it: values in, decisions out, no
I/O. Anybody who knows a callback may send it anything, so it confirms only what was requested, and
only for a limited time. It does not confirm a verification of another topic or mode (WebSub
§5.3.1), nor a late one. Within that time a hub may repeat its verification, because an answer can
be lost.

    state          subscribe requested  confirmed  unsubscribe requested  confirmed  denied
    new            requested            -          -                      -          -
    requested      -                    active     over                   -          over
    active         -                    active     unsubscribing          -          over
    unsubscribing  -                    -          -                      over       over

Content is accepted while the subscription is active or unsubscribing, if its signature is right.
Content for a subscription that is over is answered with 410, which lets the hub end it (WebSub §7).

`DeliveryInbox` holds accepted deliveries, and `HubSilence` measures the time between them.
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
from rsnotify_subscriber.terms import DEFAULT_TERMS, WebSubTerms

#: Maximum lease in seconds. A longer one is capped.
_LONGEST_LEASE = 30 * 86_400
#: A number with more digits is not parsed.
_MOST_DIGITS = 18
#: A longer challenge is not echoed: it would be an attempt to make us send it.
_LONGEST_CHALLENGE = 4096
_LONGEST_REASON = 200
_LONGEST_SHOWN = 100


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
    """A requested subscription and its result. Times are on the clock of `verify`.

    Args:
        callback: The URL to which the hub of this subscription, and no other, delivers.
        secret: The secret for signatures, or None if deliveries are not signed.
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
    #: The method with which the hub signs, if that method is not accepted.
    weak: str | None = None
    #: The parameter that was wrong in the last verification that was refused.
    refused: str | None = None
    _requested: tuple[SubscriptionMode, float] | None = None

    def __repr__(self) -> str:
        """Return a description that may be logged, without the secret and the callback."""
        return f"CallbackSubscription(topic={self.topic!r}, state={self.state.name})"

    @property
    def is_active(self) -> bool:
        return self.state is SubscriptionState.ACTIVE

    @property
    def is_over(self) -> bool:
        return self.state is SubscriptionState.OVER

    def request(self, mode: SubscriptionMode, until: float) -> dict[str, str]:
        """Begin a request to the hub, and return its form (WebSub §5.1).

        A verification after `until` is too late.
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
        """Answer a verification of intent or a denial (WebSub §5.2, §5.3). None stands for 404."""
        if self.is_over:
            return None
        if query.get("hub.topic") != self.topic:
            return self._refuse("hub.topic", query)
        if query.get("hub.mode") == "denied":
            return self._deny(query.get("hub.reason", ""))
        challenge = query.get("hub.challenge", "")
        if not self._is_requested(query.get("hub.mode"), now):
            return self._refuse("hub.mode", query)
        if len(challenge) > _LONGEST_CHALLENGE:
            return self._refuse("hub.challenge", query)
        if not self._confirm(query.get("hub.lease_seconds", ""), now):
            return self._refuse("hub.lease_seconds", query)
        return challenge

    def _refuse(self, name: str, query: Mapping[str, str]) -> str | None:
        """Store which parameter was wrong, for the request's error message."""
        value = query.get(name)
        what = f"without {name}" if value is None else f"with {name}={value[:_LONGEST_SHOWN]!r}"
        self.refused = what
        return None

    def _is_requested(self, mode: str | None, now: float) -> bool:
        requested = self._requested
        return requested is not None and requested[0] == mode and now <= requested[1]

    def _deny(self, reason: str) -> str | None:
        if self.state is SubscriptionState.NEW:
            return None
        self.denial = reason[:_LONGEST_REASON]
        self.state = SubscriptionState.OVER
        return ""

    def _confirm(self, granted: str, now: float) -> bool:
        if self.state is SubscriptionState.UNSUBSCRIBING:
            self.state = SubscriptionState.OVER
            return True
        lease = self._seconds(granted)
        if lease is None:
            return False
        self.state = SubscriptionState.ACTIVE
        self.granted = lease
        self.expires = now + lease
        return True

    def _seconds(self, granted: str) -> int | None:
        """Parse a lease. Some hubs send none, although they must (WebSub §5.3)."""
        if not granted:
            return self.lease
        if not (granted.isascii() and granted.isdigit()) or len(granted) > _MOST_DIGITS:
            return None
        return min(int(granted), _LONGEST_LEASE) or None

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
    """Decides when to check whether a hub is still there. Times are in seconds.

    A hub with nothing to deliver is as silent as a hub that is gone. The hub is therefore checked
    when it has been silent for twice its longest silence so far, and for `least` at any rate. An
    answer shows that a silence of this length is normal.
    """

    def __init__(self, now: float, least: float) -> None:
        self._last = now
        self._least = least
        self._longest = 0.0

    def end(self, now: float) -> None:
        """Record a sign of life."""
        self._longest = max(self._longest, now - self._last)
        self._last = now

    @property
    def due(self) -> float:
        """The time of the next check."""
        return self._last + max(self._least, 2 * self._longest)


class DeliveryInbox:
    """A queue of deliveries, each of which ends the silence. Holds at most `most` bytes.

    A single delivery may exceed the limit if it waits alone.
    """

    def __init__(self, silence: HubSilence, most: int = MAX_BYTES) -> None:
        self.silence = silence
        self._most = most
        self._bytes = 0
        self._waiting: deque[bytes] = deque()
        self._arrived = asyncio.Event()

    def put(self, body: bytes) -> bool:
        """Add a delivery if it fits, and return whether it did."""
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


logger = logging.getLogger("rsnotify.subscriber.websub")

#: The number of random bytes at the end of a callback, and the pattern of their encoding.
_TOKEN_BYTES, _TOKEN = 32, "[A-Za-z0-9_-]{43}"
#: Hubs deliver to a callback one at a time, so more concurrent requests do not come from a hub.
_AT_ONCE = 4
_AS_A_CALLBACK = re.compile(r"[\x21-\x7e]+")
# A challenge comes from outside, and browsers must not render it as a page.
_PLAIN = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
_RETRY = {"Retry-After": "1"}
_STATUS = {
    CallbackDecision.ACCEPTED: 204,
    CallbackDecision.WEAK: 403,
    CallbackDecision.EARLY: 404,
    CallbackDecision.OVER: 410,
}


@dataclass
class CallbackRoute:
    """A callback that this process currently answers."""

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
    """All callbacks of an application, for any number of subscribers in its event loop.

    Args:
        url: The URL at which hubs reach the path where the routes are mounted.
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
            raise ConfigurationError(f"signatures are made by {', '.join(METHODS)}, by no others")

    def __len__(self) -> int:
        """Return the number of callbacks that are answered."""
        return len(self._open)

    def routes(self, path: str | None = None) -> list[web.RouteDef]:
        """Return the routes, for an aiohttp application.

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
        """Return an ASGI application that answers at the path of the URL.

        It must run in the event loop of the subscribers.

        Args:
            app: The application for all other paths. By default, they are answered with 404.
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
        """Return a WSGI application that answers at the path of the URL.

        The subscribers run in an event loop in another thread of the same process. Requests are
        answered with 503 until one of them has subscribed, and after their loop has ended.

        Args:
            app: The application for all other paths. By default, they are answered with 404.
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
        """Return the token at the end of a decoded path, or None if it is not a callback's path."""
        prefix = unquote(urlsplit(self.url).path)
        token = path.removeprefix(prefix)
        return token if path.startswith(prefix) and re.fullmatch(_TOKEN, token) else None

    def _respond_from_thread(
        self, token: str, request: WebRequest, environ: wsgi.Environ
    ) -> WebResponse:
        if self._loop is None:
            return WebResponse(503, dict(_RETRY))
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
            return WebResponse(503, dict(_RETRY))
        try:
            return future.result(self.terms.patience)
        except (TimeoutError, CancelledError):
            future.cancel()
            return WebResponse(503, dict(_RETRY))

    def open(self, topic: str, inbox: DeliveryInbox) -> CallbackRoute:
        """Open and return a new callback for a topic."""
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
        """Answer requests to a callback with 410 from now on."""
        self._open = {token: one for token, one in self._open.items() if one is not callback}

    async def _respond(
        self, token: str, request: WebRequest, body: AsyncIterable[bytes]
    ) -> WebResponse:
        """Respond to a request, and pass accepted content on to the subscriber."""
        if self._loop not in (None, asyncio.get_running_loop()):
            raise ConfigurationError(
                "the subscribers run in another event loop than the application; "
                "run them in that of the server, or use wsgi_application"
            )
        callback = self._open.get(token)
        if request.method == "GET":
            return text_response(404) if callback is None else _verified(callback, request)
        if request.method != "POST":
            return text_response(405, headers={"Allow": "GET, POST"})
        if callback is None:  # it belongs to an earlier run, or has ended
            return WebResponse(_STATUS[CallbackDecision.OVER], {})
        if callback.reading >= _AT_ONCE:
            return WebResponse(503, dict(_RETRY))
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
            return WebResponse(503, dict(_RETRY))
        if decision is CallbackDecision.FORGED:
            self._log_forged(callback, signature)
            return WebResponse(403 if self.terms.refuse else 204, {})
        callback.notify()
        return WebResponse(_STATUS[decision], {})

    def _log_forged(self, callback: CallbackRoute, signature: str | None) -> None:
        what = "without a signature" if signature is None else "with a wrong signature"
        level = logging.DEBUG if callback.was_forged else logging.WARNING
        callback.was_forged = True
        logger.log(level, "content %s is not used: %s", what, callback.subscription.topic)

    async def _read(self, request: WebRequest, body: AsyncIterable[bytes]) -> bytes | WebResponse:
        """Return the content, or an error response if the content cannot be accepted."""
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            return text_response(415, "no Content-Encoding is accepted\n")
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
    return text_response(404) if challenge is None else text_response(200, challenge, _PLAIN)


def _checked(url: str) -> str:
    """Check the URL below which the callbacks are, and return it with a final `/`."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not _AS_A_CALLBACK.fullmatch(url) or "@" in parts.netloc:
        raise ConfigurationError(f"{url!r} is not a callback URL; write https://host/path/")
    if parts.query or parts.fragment:
        raise ConfigurationError(f"{url!r} has a query or fragment; a callback URL has none")
    return url if url.endswith("/") else url + "/"


#: Maximum number of connections: few hubs deliver over more than a handful.
_MOST = 1_000

http_logger = logging.getLogger("rsnotify.subscriber.websub.http")


@asynccontextmanager
async def listening(callbacks: Callbacks, listener: socket.socket) -> AsyncIterator[None]:
    """Serve callbacks at a listening socket within the context, and close it at the end."""
    app = web.Application()
    app.add_routes(callbacks.routes())
    http_logger.addFilter(_is_ours)
    options = {"auto_decompress": False, "logger": http_logger}
    async with serving(app, listener, shutdown_timeout=1, most=_MOST, **options):
        yield


def _is_ours(record: logging.LogRecord) -> bool:
    """Filter out malformed requests, which aiohttp logs together with bytes of the request."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError)
