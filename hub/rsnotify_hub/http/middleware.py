"""The site that accepts connections, and the middleware that every request passes through."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from ipaddress import ip_address

from aiohttp import web
from aiohttp.typedefs import Middleware

from rsnotify.errors import FetchError, StorageError
from rsnotify.runtime.listening import BACKLOG
from rsnotify.runtime.reasons import Repetitions
from rsnotify_hub.access.authorization import Authorizer
from rsnotify_hub.access.limits import TrustedProxies
from rsnotify_hub.http.connection_guard import find_guard
from rsnotify_hub.refusals import RETRY_AFTER, Refusal, answer_to
from rsnotify_hub.statistics import Statistics

log = logging.getLogger("rsnotify.hub")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    if ip_address(host).is_unspecified:
        host = socket.gethostname()
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


class ProtocolSite(web.BaseSite):
    def __init__(
        self,
        runner: web.BaseRunner,
        listener: socket.socket,
        protocols: Callable[[], asyncio.Protocol],
    ) -> None:
        super().__init__(runner, backlog=BACKLOG)
        self._listener = listener
        self._protocols = protocols

    @property
    def name(self) -> str:
        return url_of(self._listener)

    async def start(self) -> None:
        await super().start()
        self._server = await asyncio.get_running_loop().create_server(
            self._protocols, sock=self._listener, backlog=self._backlog
        )


@web.middleware
async def with_guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    guard = find_guard(request.transport)
    if guard is None:
        return await handler(request)
    guard.request_began(request.content)
    try:
        return await handler(request)
    finally:
        guard.request_ended()


def with_client_address(proxies: TrustedProxies) -> Middleware:
    @web.middleware
    async def replaced(request: web.Request, handler: Handler) -> web.StreamResponse:
        peer = request.remote or ""
        if not proxies.trusts(peer):
            return await handler(request)
        return await handler(request.clone(remote=proxies.client(peer, request.headers.items())))

    return replaced


def with_plain_reasons(statistics: Callable[[web.Request], Statistics]) -> Middleware:
    """Return middleware that answers refusals and errors in plain text (WebSub §5.1.2)."""
    reported = Repetitions()

    @web.middleware
    async def answered(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except Refusal as refusal:
            statistics(request).refused[refusal.code] += 1
            status, headers = answer_to(refusal, with_token="Authorization" in request.headers)
            return web.Response(status=status, text=f"{refusal}\n", headers=headers)
        except FetchError as error:
            return web.Response(status=502, text=f"{error}\n")
        except StorageError as error:
            if reported.is_new(str(error)):
                log.error("%s", error)
            return web.Response(
                status=503,
                text="the hub cannot write its data now\n",
                headers={"Retry-After": RETRY_AFTER},
            )

    return answered


def with_host_check(authorizer: Callable[[web.Request], Authorizer]) -> Middleware:
    @web.middleware
    async def checked(request: web.Request, handler: Handler) -> web.StreamResponse:
        authorizer(request).check_name(request)
        return await handler(request)

    return checked


@web.middleware
async def without_encoding(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse encoded bodies, because they grow when decoded (RFC 9110 §8.4)."""
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise web.HTTPUnsupportedMediaType(
            text="the hub accepts no Content-Encoding\n", headers={"Accept-Encoding": "identity"}
        )
    return await handler(request)
