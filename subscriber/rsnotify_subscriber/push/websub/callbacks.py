"""The URLs at which hubs reach this Destination, for applications of aiohttp, ASGI and WSGI.

Each subscription has a URL of its own that nobody can guess (WebSub §5.1.1). The URL at which
content arrives determines its topic, not its Link headers, which are those of the topic
(WebSub §7).
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from aiohttp import web

from rsnotify.errors import ConfigurationError
from rsnotify.format.signatures import METHODS
from rsnotify.format.vocabulary import MAX_BYTES
from rsnotify.runtime.arguments import require, require_struct
from rsnotify.runtime.web import aiohttp_server, asgi, wsgi
from rsnotify.runtime.web.messages import WebRequest, WebResponse, text_response
from rsnotify_subscriber.push.websub.inbox import DeliveryInbox
from rsnotify_subscriber.push.websub.subscription import CallbackDecision, CallbackSubscription
from rsnotify_subscriber.push.websub.terms import DEFAULT_TERMS, WebSubTerms

logger = logging.getLogger("rsnotify.subscriber.websub")

#: The random bytes at the end of a callback, and how `secrets` spells them.
_TOKEN_BYTES, _TOKEN = 32, "[A-Za-z0-9_-]{43}"
#: Hubs deliver to a callback one after another, so more requests at once do not come from a hub.
_AT_ONCE = 4
_AS_A_CALLBACK = re.compile(r"[\x21-\x7e]+")
# A challenge is text from outside, which no browser must render as a page.
_PLAIN = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
_RETRY = {"Retry-After": "1"}
_STATUS = {
    CallbackDecision.ACCEPTED: 204,
    CallbackDecision.WEAK: 403,
    CallbackDecision.EARLY: 404,
    CallbackDecision.OVER: 410,
}
_REFUSED, _IGNORED = 403, 204


@dataclass
class CallbackRoute:
    """One callback, as long as it is answered."""

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
    """All callbacks of an application, for any number of subscribers of its event loop.

    Args:
        url: The URL at which hubs reach the path where the routes are mounted.
        terms: The terms of subscriptions.

    Raises:
        ConfigurationError: The URL cannot be a callback, or a method of signatures is unknown.
    """

    def __init__(self, url: str, terms: WebSubTerms = DEFAULT_TERMS) -> None:
        require("url", url, str, "a callback URL as a str")
        require_struct("terms", terms, WebSubTerms)
        self.url = _checked(url)
        self.terms = terms
        #: That of the subscribers, once one of them has subscribed.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: dict[str, CallbackRoute] = {}
        unknown = set(terms.signatures) - set(METHODS)
        if unknown or not terms.signatures:
            raise ConfigurationError(f"signatures are made by {', '.join(METHODS)}, by no others")

    def __len__(self) -> int:
        """Return how many callbacks are answered."""
        return len(self._open)

    def routes(self, path: str | None = None) -> list[web.RouteDef]:
        """Return the routes, for an aiohttp application.

        Args:
            path: The path below which they are, ending in `/`; by default that of the URL.
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

        It has to run in the event loop of the subscribers.

        Args:
            app: The application for all other paths; by default they are answered with 404.
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
        """Return a WSGI application that answers at the path of the URL, beside the subscribers.

        These run in an event loop in another thread of the same process. Until one of them has
        subscribed, and when their loop has ended, requests are answered with 503.

        Args:
            app: The application for all other paths; by default they are answered with 404.
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
        """Return the token that ends a decoded path; None if it is not one of callbacks."""
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
        """Return a new callback for a topic, which is answered from now on."""
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
        """Respond to a request; content that is accepted is passed on to the subscriber."""
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
            return WebResponse(_REFUSED if self.terms.refuse else _IGNORED, {})
        callback.notify()
        return WebResponse(_STATUS[decision], {})

    def _log_forged(self, callback: CallbackRoute, signature: str | None) -> None:
        what = "without a signature" if signature is None else "with a wrong signature"
        level = logging.DEBUG if callback.was_forged else logging.WARNING
        callback.was_forged = True
        logger.log(level, "content %s is not used: %s", what, callback.subscription.topic)

    async def _read(self, request: WebRequest, body: AsyncIterable[bytes]) -> bytes | WebResponse:
        """Return the content, or the response if it cannot be accepted."""
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
    """Return the URL below which callbacks are, ending in `/`."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not _AS_A_CALLBACK.fullmatch(url) or "@" in parts.netloc:
        raise ConfigurationError(f"{url!r} is no callback URL; write https://host/path/")
    if parts.query or parts.fragment:
        raise ConfigurationError(f"{url!r} has a query or fragment; a callback URL has none")
    return url if url.endswith("/") else url + "/"
