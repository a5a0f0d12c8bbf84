"""The aiohttp application around a hub, and its server."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from urllib.parse import urlsplit

from aiohttp import web

from rsnotify.errors import ConfigurationError
from rsnotify_hub.access.clients import TrustedProxies, is_loopback
from rsnotify_hub.access.rotation import Rotation
from rsnotify_hub.admin.api import add_admin
from rsnotify_hub.configuration import Configuration
from rsnotify_hub.dashboard.pages import add_dashboard
from rsnotify_hub.hub import Clock, Hub, open_hub
from rsnotify_hub.refusals import Refusal
from rsnotify_hub.serving.guard import Guard, watch_of
from rsnotify_hub.serving.logs import WithoutRequests
from rsnotify_hub.serving.middleware import (
    add_safe_headers,
    identity_only,
    of_client,
    of_this_machine,
    plain_reasons,
    watched,
)
from rsnotify_hub.serving.network import ProtocolSite, listen, url_of
from rsnotify_hub.settings.loading import ConfigurationSource
from rsnotify_hub.statistics import Statistics
from rsnotify_hub.urls import check_url
from rsnotify_hub.websub.handler import defer_continue

log = logging.getLogger("rsnotify.hub")

HUB = web.AppKey("hub", Hub)

_SHUTDOWN_SECONDS = 5.0


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

    proxies = TrustedProxies(configuration.trusted_proxies, configuration.forwarded_header)
    app = web.Application(
        client_max_size=configuration.max_fragment_bytes,
        middlewares=[
            watched,
            of_client(proxies),
            plain_reasons(_statistics),
            of_this_machine(lambda request: request.config_dict[HUB].gate),
            identity_only,
        ],
    )
    app.on_response_prepare.append(add_safe_headers)
    app.cleanup_ctx.append(hub_of_app)
    app.on_shutdown.append(_say_goodbye)
    app.router.add_post("/websub", _websub, expect_handler=defer_continue)
    app.router.add_get("/ws", _websocket)
    app.router.add_get("/topics", _topics)
    app.router.add_get("/healthz", _healthz)
    app.router.add_get("/readyz", _readyz)
    app.router.add_get("/metrics", _metrics)
    add_dashboard(app, is_admin=lambda request: request.app[HUB].gate.is_admin(request))
    add_admin(app, lambda request: request.config_dict[HUB].admin)
    return app


async def _websub(request: web.Request) -> web.Response:
    return await request.app[HUB].websub.handle(request)


async def _websocket(request: web.Request) -> web.StreamResponse:
    return await request.app[HUB].websockets.handle(request)


async def _topics(request: web.Request) -> web.Response:
    return await request.app[HUB].memory.handle(request)


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


def _statistics(request: web.Request) -> Statistics:
    return request.config_dict[HUB].statistics


@asynccontextmanager
async def serve(
    configuration: Configuration,
    *,
    source: ConfigurationSource | None = None,
    clock: Clock = utc_now,
) -> AsyncIterator[str]:
    """Run a hub.

    Args:
        configuration: The settings.
        source: Where they came from, to take up new grants when a file changes.
        clock: Tells the current instant.

    Returns:
        A context with the URL that the hub listens at; leaving it stops the hub.

    Raises:
        ConfigurationError: The address, the port or the data folder cannot be had, or the hub
            would be open to others without saying who may publish.
    """
    with listen(configuration.host, configuration.port) as listener:
        public_url = _public_url(configuration, listener)
        local = _is_local(configuration, listener)
        _check_grants(configuration, local=local)
        app = create_application(
            configuration,
            public_url=public_url,
            anonymous=local,
            clock=clock,
        )
        runner = web.AppRunner(
            app,
            access_log=None,
            shutdown_timeout=_SHUTDOWN_SECONDS,
            keepalive_timeout=configuration.idle_seconds,
            auto_decompress=False,  # a small body cannot become a large one
            logger=_http_log(),
        )
        async with AsyncExitStack() as stack:
            stack.push_async_callback(runner.cleanup)
            await runner.setup()
            watch = watch_of(configuration, app[HUB].statistics)
            stack.callback(watch.close)
            app[HUB].connections = lambda: watch.seats.count
            assert runner.server is not None
            protocols = partial(Guard, runner.server, watch)
            await ProtocolSite(runner, listener, protocols).start()
            if source is not None:
                rotation = Rotation(app[HUB].gate, source, configuration)
                stack.callback(asyncio.create_task(rotation.run()).cancel)
            yield url_of(listener)


def _check_grants(configuration: Configuration, *, local: bool) -> None:
    """Refuse to be open without saying to whom."""
    granted = configuration.publishers or configuration.open_topics or configuration.jwt_algorithms
    if not local and not granted and not configuration.mqtt_channels:
        raise ConfigurationError(
            "others reach this hub, and nobody may publish on it: name publishers in its "
            "configuration, or listen on a loopback address without a public URL elsewhere"
        )


def _http_log() -> logging.Logger:
    logger = logging.getLogger("rsnotify.hub.http")
    if not logger.filters:
        logger.addFilter(WithoutRequests())
    return logger


def _public_url(configuration: Configuration, listener: socket.socket) -> str:
    url = configuration.public_url or url_of(listener)
    try:
        return check_url(url, "the public URL").rstrip("/") + "/"
    except Refusal as refusal:
        raise ConfigurationError(refusal.reason) from None


def _is_local(configuration: Configuration, listener: socket.socket) -> bool:
    """Tell whether only this machine reaches the hub: a proxy would bring in others."""
    if configuration.trusted_proxies:
        return False
    host = urlsplit(configuration.public_url or url_of(listener)).hostname or ""
    local = host == "localhost" or is_loopback(host)
    return local and is_loopback(listener.getsockname()[0])
