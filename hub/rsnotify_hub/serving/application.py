"""The aiohttp application around a hub, and its server."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from urllib.parse import urlsplit

from aiohttp import web

from rsnotify.errors import ConfigurationError, FetchError, StorageError
from rsnotify_hub.admin.api import add_admin
from rsnotify_hub.configuration import Configuration
from rsnotify_hub.hub import Clock, Hub, open_hub
from rsnotify_hub.pages import CONTENT_SECURITY_POLICY
from rsnotify_hub.refusals import Refusal, answer_to
from rsnotify_hub.serving.network import is_loopback, listen, url_of
from rsnotify_hub.websub.forms import check_url

log = logging.getLogger("rsnotify.hub")

HUB = web.AppKey("hub", Hub)

_SHUTDOWN_SECONDS = 5.0
_RETRY_AFTER = {"Retry-After": "5"}

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def utc_now() -> datetime:
    """Tell the current instant."""
    return datetime.now(UTC)


def create_application(
    configuration: Configuration, *, public_url: str, anonymous: bool, clock: Clock = utc_now
) -> web.Application:
    """Make the application of one hub.

    Args:
        configuration: The settings; `host` and `port` are not looked at.
        public_url: How others reach it, ending in `/`.
        anonymous: Whether local peers may publish without a token if there are no publishers.
        clock: Tells the current instant.
    """

    async def hub_of_app(app: web.Application) -> AsyncIterator[None]:
        async with open_hub(
            configuration, public_url=public_url, anonymous=anonymous, clock=clock
        ) as hub:
            app[HUB] = hub
            yield

    app = web.Application(
        client_max_size=configuration.max_fragment_bytes, middlewares=[_plain_reasons]
    )
    app.cleanup_ctx.append(hub_of_app)
    app.on_shutdown.append(_say_goodbye)
    app.router.add_get("/", _page)
    app.router.add_post("/websub", _websub)
    app.router.add_get("/ws", _websocket)
    app.router.add_get("/healthz", _healthz)
    app.router.add_get("/readyz", _readyz)
    app.router.add_get("/metrics", _metrics)
    add_admin(app, lambda request: request.config_dict[HUB].admin)
    return app


async def _page(request: web.Request) -> web.Response:
    return web.Response(
        text=request.app[HUB].page(),
        content_type="text/html",
        headers={
            "Content-Security-Policy": CONTENT_SECURITY_POLICY,
            "X-Content-Type-Options": "nosniff",
        },
    )


async def _websub(request: web.Request) -> web.Response:
    return await request.app[HUB].websub.handle(request)


async def _websocket(request: web.Request) -> web.WebSocketResponse:
    return await request.app[HUB].websockets.handle(request)


async def _healthz(request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


async def _readyz(request: web.Request) -> web.Response:
    await request.app[HUB].readiness.check()
    return web.Response(text="ready\n")


async def _metrics(request: web.Request) -> web.Response:
    return request.app[HUB].metrics.answer()


async def _say_goodbye(app: web.Application) -> None:
    if HUB in app:  # it is not when the start failed
        await app[HUB].websockets.close()


@web.middleware
async def _plain_reasons(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Answer a refusal with its status and its reason in plain text (WebSub §5.2)."""
    try:
        return await handler(request)
    except Refusal as refusal:
        return _refused(request, refusal)
    except FetchError as error:
        return web.Response(status=502, text=f"{error}\n")
    except StorageError as error:
        log.error("%s", error)
        return web.Response(
            status=503, text="the hub cannot write its data now\n", headers=_RETRY_AFTER
        )


def _refused(request: web.Request, refusal: Refusal) -> web.Response:
    status, headers = answer_to(refusal, with_token="Authorization" in request.headers)
    return web.Response(status=status, text=f"{refusal}\n", headers=headers)


@asynccontextmanager
async def serve(configuration: Configuration, *, clock: Clock = utc_now) -> AsyncIterator[str]:
    """Run a hub.

    Args:
        configuration: The settings.
        clock: Tells the current instant.

    Returns:
        A context with the URL that the hub listens at; leaving it stops the hub.

    Raises:
        ConfigurationError: The address, the port or the data folder cannot be had.
    """
    with listen(configuration.host, configuration.port) as listener:
        app = create_application(
            configuration,
            public_url=_public_url(configuration, listener),
            anonymous=_is_local(configuration, listener),
            clock=clock,
        )
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS)
        try:
            await runner.setup()
            await web.SockSite(runner, listener).start()
            yield url_of(listener)
        finally:
            await runner.cleanup()


def _public_url(configuration: Configuration, listener: socket.socket) -> str:
    url = configuration.public_url or url_of(listener)
    try:
        return check_url(url, "the public URL").rstrip("/") + "/"
    except Refusal as refusal:
        raise ConfigurationError(refusal.reason) from None


def _is_local(configuration: Configuration, listener: socket.socket) -> bool:
    """Tell whether only this machine reaches the hub: a proxy would bring in others."""
    host = urlsplit(configuration.public_url or url_of(listener)).hostname or ""
    local = host == "localhost" or is_loopback(host)
    return local and is_loopback(listener.getsockname()[0])
