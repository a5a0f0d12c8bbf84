"""The URLs at which hubs reach this Destination: an aiohttp handler that any application can mount.

Each subscription has a URL of its own that nobody can guess (WebSub §5.1.1). The URL at which
content arrives determines its topic, not its Link headers, which are those of the topic
(WebSub §7).
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from aiohttp import hdrs, web

from rsnotify.errors import ConfigurationError
from rsnotify.format.signatures import METHODS
from rsnotify.format.vocabulary import MAX_BYTES
from rsnotify.runtime.arguments import require, require_struct
from rsnotify_subscriber.push.websub.inbox import DeliveryInbox
from rsnotify_subscriber.push.websub.subscription import CallbackDecision, CallbackSubscription
from rsnotify_subscriber.push.websub.terms import DEFAULT_TERMS, WebSubTerms

logger = logging.getLogger("rsnotify.subscriber.websub")

#: The random bytes at the end of a callback, and how `secrets` spells them.
_TOKEN_BYTES, _TOKEN = 32, "[A-Za-z0-9_-]{43}"
#: Hubs deliver to a callback one after another, so more requests at once do not come from a hub.
_AT_ONCE = 4
_AS_A_CALLBACK = re.compile(r"[\x21-\x7e]+")
_SIGNATURE = "X-Hub-Signature"
# A challenge is text from outside, which no browser must render as a page.
_PLAIN = {"X-Content-Type-Options": "nosniff", hdrs.CACHE_CONTROL: "no-store"}
_RETRY = {hdrs.RETRY_AFTER: "1"}
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
        return [web.get(path, self._verify, allow_head=False), web.post(path, self._deliver)]

    def open(self, topic: str, inbox: DeliveryInbox) -> CallbackRoute:
        """Return a new callback for a topic, which is answered from now on."""
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

    async def _verify(self, request: web.Request) -> web.Response:
        callback = self._open.get(request.match_info["token"])
        if callback is None:
            raise web.HTTPNotFound
        now = asyncio.get_running_loop().time()
        answer = callback.subscription.verify(request.query, now)
        callback.notify()
        if answer is None:
            raise web.HTTPNotFound
        return web.Response(text=answer, headers=_PLAIN)

    async def _deliver(self, request: web.Request) -> web.Response:
        callback = self._open.get(request.match_info["token"])
        if callback is None:  # it belongs to an earlier run, or has ended
            return web.Response(status=_STATUS[CallbackDecision.OVER])
        if callback.reading >= _AT_ONCE:
            return web.Response(status=503, headers=_RETRY)
        callback.reading += 1
        try:
            body = await self._body(request)
        finally:
            callback.reading -= 1
        return self._accept(callback, request.headers.get(_SIGNATURE), body)

    def _accept(self, callback: CallbackRoute, signature: str | None, body: bytes) -> web.Response:
        decision = callback.subscription.decide(signature, body)
        if decision is CallbackDecision.ACCEPTED and not callback.inbox.put(body):
            return web.Response(status=503, headers=_RETRY)
        if decision is CallbackDecision.FORGED:
            self._log_forged(callback, signature)
            return web.Response(status=_REFUSED if self.terms.refuse else _IGNORED)
        callback.notify()
        return web.Response(status=_STATUS[decision])

    def _log_forged(self, callback: CallbackRoute, signature: str | None) -> None:
        what = "without a signature" if signature is None else "with a wrong signature"
        level = logging.DEBUG if callback.was_forged else logging.WARNING
        callback.was_forged = True
        logger.log(level, "content %s is not used: %s", what, callback.subscription.topic)

    async def _body(self, request: web.Request) -> bytes:
        if request.headers.get(hdrs.CONTENT_ENCODING, "identity").lower() != "identity":
            raise web.HTTPUnsupportedMediaType(text="no Content-Encoding is accepted\n")
        body = bytearray()
        try:
            async with asyncio.timeout(self.terms.patience):
                async for chunk in request.content.iter_any():
                    body += chunk
                    if len(body) > MAX_BYTES:
                        raise web.HTTPRequestEntityTooLarge(MAX_BYTES, len(body))
        except TimeoutError:
            raise web.HTTPRequestTimeout(text="the body did not arrive in time\n") from None
        return bytes(body)


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
