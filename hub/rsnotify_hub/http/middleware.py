"""What holds for every request and every answer, whoever handles it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

from rsnotify.errors import FetchError, StorageError
from rsnotify_hub.access.clients import TrustedProxies
from rsnotify_hub.access.gate import Gate
from rsnotify_hub.http.connection_guard import find_guard
from rsnotify_hub.refusals import RETRY_AFTER, Refusal, answer_to
from rsnotify_hub.statistics import Statistics

log = logging.getLogger("rsnotify.hub")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

#: What an answer has unless its handler says otherwise: nobody is to run it, embed it or guess
#: what it is, and links in it do not tell where they stood.
SAFE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


async def add_safe_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Put the headers of safety on an answer (a signal of aiohttp)."""
    for name, value in SAFE_HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers["Server"] = "rsnotify"


@web.middleware
async def watched(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Tell the guard of the connection when a request begins and ends."""
    guard = find_guard(request.transport)
    if guard is None:
        return await handler(request)
    guard.request_began(request.content)
    try:
        return await handler(request)
    finally:
        guard.request_ended()


def of_client(proxies: TrustedProxies) -> Middleware:
    """Make the middleware that puts the client's address where a proxy's is."""

    @web.middleware
    async def with_client(request: web.Request, handler: Handler) -> web.StreamResponse:
        peer = request.remote or ""
        if not proxies.trusts(peer):
            return await handler(request)
        return await handler(request.clone(remote=proxies.client(peer, request.headers.items())))

    return with_client


@web.middleware
async def identity_only(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse bodies that would become larger when they are read (RFC 9110 §8.4)."""
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise web.HTTPUnsupportedMediaType(
            text="the hub takes no Content-Encoding\n", headers={"Accept-Encoding": "identity"}
        )
    return await handler(request)


def of_this_machine(gate: Callable[[web.Request], Gate]) -> Middleware:
    """Make the middleware that asks the gate by which name the hub may be asked for."""

    @web.middleware
    async def named(request: web.Request, handler: Handler) -> web.StreamResponse:
        gate(request).check_name(request)
        return await handler(request)

    return named


def plain_reasons(statistics: Callable[[web.Request], Statistics]) -> Middleware:
    """Make the middleware that answers refusals.

    Args:
        statistics: Returns where they are counted.
    """

    @web.middleware
    async def answered(request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a refusal with its status and its reason in plain text (WebSub §5.1.2)."""
        try:
            return await handler(request)
        except Refusal as refusal:
            statistics(request).refused[refusal.code] += 1
            status, headers = answer_to(refusal, with_token="Authorization" in request.headers)
            return web.Response(status=status, text=f"{refusal}\n", headers=headers)
        except FetchError as error:
            return web.Response(status=502, text=f"{error}\n")
        except StorageError as error:
            log.error("%s", error)
            return web.Response(
                status=503,
                text="the hub cannot write its data now\n",
                headers={"Retry-After": RETRY_AFTER},
            )

    return answered
