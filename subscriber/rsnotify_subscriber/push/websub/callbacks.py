"""The URLs at which hubs reach this Destination: an aiohttp handler to mount anywhere.

Each subscription has a URL of its own that nobody can guess (WebSub §5.1.1). Content is told
by the URL at which it arrives, never by its Link headers, which are the topic's (WebSub §7).
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Callable
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

#: What a callback ends with, and how `secrets` spells so many bytes.
_TOKEN_BYTES, _TOKEN = 32, "[A-Za-z0-9_-]{43}"
#: Hubs deliver to a callback one after another; who sends more at once is none.
_AT_ONCE = 4
_AS_A_CALLBACK = re.compile(r"[\x21-\x7e]+")
_SIGNATURE = "X-Hub-Signature"
# A challenge is the hub's text, which no browser shall take for a page.
_PLAIN = {"X-Content-Type-Options": "nosniff", hdrs.CACHE_CONTROL: "no-store"}
_AGAIN = {hdrs.RETRY_AFTER: "1"}
_STATUS = {
    CallbackDecision.TAKEN: 204,
    CallbackDecision.WEAK: 403,
    CallbackDecision.EARLY: 404,
    CallbackDecision.OVER: 410,
}
_REFUSED, _IGNORED = 403, 204


class CallbackRoute:
    """One callback, as long as it is answered.

    Args:
        subscription: What it is for.
        inbox: Where its content goes.
    """

    def __init__(self, subscription: CallbackSubscription, inbox: DeliveryInbox) -> None:
        self.subscription = subscription
        self.inbox = inbox
        self.reading = 0
        self.was_forged = False
        self._changed = asyncio.Event()

    def tell(self) -> None:
        """Wake those who wait."""
        self._changed.set()
        self._changed.clear()

    async def until(self, condition: Callable[[CallbackSubscription], object]) -> None:
        """Wait until the subscription is such."""
        while not condition(self.subscription):
            await self._changed.wait()


class Callbacks:
    """All callbacks of an application, for any number of subscribers of its event loop.

    Args:
        url: How hubs reach it: what leads to the path at which it is mounted.
        terms: What is asked of hubs, and what is taken from them.

    Raises:
        ConfigurationError: The URL can be no callback, or a method of signatures is unknown.
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
        """Make the routes, for an application of one's own.

        Args:
            path: Where they are below it, ending in `/`; by default the path of the URL.
        """
        path = (urlsplit(self.url).path if path is None else path) + f"{{token:{_TOKEN}}}"
        return [web.get(path, self._question, allow_head=False), web.post(path, self._content)]

    def open(self, topic: str, inbox: DeliveryInbox) -> CallbackRoute:
        """Begin to answer at a new callback.

        Args:
            topic: What it is for.
            inbox: Where its content goes.
        """
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
        """Answer there that it is gone."""
        self._open = {token: one for token, one in self._open.items() if one is not callback}

    async def _question(self, request: web.Request) -> web.Response:
        callback = self._open.get(request.match_info["token"])
        if callback is None:
            raise web.HTTPNotFound
        now = asyncio.get_running_loop().time()
        answer = callback.subscription.question(request.query, now)
        callback.tell()
        if answer is None:
            raise web.HTTPNotFound
        return web.Response(text=answer, headers=_PLAIN)

    async def _content(self, request: web.Request) -> web.Response:
        callback = self._open.get(request.match_info["token"])
        if callback is None:  # of an earlier run, or ended
            return web.Response(status=_STATUS[CallbackDecision.OVER])
        if callback.reading >= _AT_ONCE:
            return web.Response(status=503, headers=_AGAIN)
        callback.reading += 1
        try:
            body = await self._body(request)
        finally:
            callback.reading -= 1
        return self._take(callback, request.headers.get(_SIGNATURE), body)

    def _take(self, callback: CallbackRoute, signature: str | None, body: bytes) -> web.Response:
        verdict = callback.subscription.judge(signature, body)
        if verdict is CallbackDecision.TAKEN and not callback.inbox.put(body):
            return web.Response(status=503, headers=_AGAIN)
        if verdict is CallbackDecision.FORGED:
            self._note_forged(callback, signature)
            return web.Response(status=_REFUSED if self.terms.refuse else _IGNORED)
        callback.tell()
        return web.Response(status=_STATUS[verdict])

    def _note_forged(self, callback: CallbackRoute, signature: str | None) -> None:
        what = "without a signature" if signature is None else "with a wrong signature"
        level = logging.DEBUG if callback.was_forged else logging.WARNING
        callback.was_forged = True
        logger.log(level, "content %s is not used: %s", what, callback.subscription.topic)

    async def _body(self, request: web.Request) -> bytes:
        if request.headers.get(hdrs.CONTENT_ENCODING, "identity").lower() != "identity":
            raise web.HTTPUnsupportedMediaType(text="a Content-Encoding is not taken\n")
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
