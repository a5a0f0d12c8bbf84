"""The HTTP server of a hub: its routes and middleware, and JSON logs."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from ipaddress import ip_address
from urllib.parse import urlsplit

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from rsnotify.errors import ConfigurationError, FetchError, StorageError
from rsnotify.format.datetimes import format_datetime
from rsnotify.format.offer import HUB_DOCUMENT
from rsnotify.runtime.listening import BACKLOG, address, listen
from rsnotify.runtime.reasons import Repetitions
from rsnotify.runtime.serving import add_security_headers, without_ambiguity
from rsnotify_hub.access.authorization import reload_grants
from rsnotify_hub.access.client_addresses import TrustedProxies, is_loopback
from rsnotify_hub.admin.api import AdminApi, add_admin_routes, add_dashboard_routes
from rsnotify_hub.config.configuration import HubConfig
from rsnotify_hub.config.loading import ConfigurationSource, load_hub_follower
from rsnotify_hub.connection_guard import ConnectionGuard, find_guard, make_timeout_watch
from rsnotify_hub.hub import Clock, HubService, open_hub
from rsnotify_hub.refusals import RETRY_AFTER, Refusal, answer_to
from rsnotify_hub.urls import check_url
from rsnotify_hub.websub.websub_handler import defer_continue

#: The standard attributes of a log record. All other attributes come from `extra`.
_STANDARD_ATTRIBUTES = frozenset(
    (*vars(logging.makeLogRecord({})), "message", "asctime", "taskName")
)


def use_json_logs(root: logging.Logger) -> None:
    for handler in root.handlers:
        handler.setFormatter(JsonLogFormatter())


class JsonLogFormatter(logging.Formatter):
    """Formats each record as a JSON object on one line.

    Its members are `time`, `level`, `logger`, `message`, the record's `extra` attributes, and
    `exception` if there is one.
    """

    def format(self, record: logging.LogRecord) -> str:
        extra = {
            name: value for name, value in vars(record).items() if name not in _STANDARD_ATTRIBUTES
        }
        line = {
            "time": format_datetime(datetime.fromtimestamp(record.created, UTC)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **extra,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


logger = logging.getLogger("rsnotify.hub")

HUB = web.AppKey("hub", HubService)

_SHUTDOWN_SECONDS = 5.0


def utc_now() -> datetime:
    return datetime.now(UTC)


@asynccontextmanager
async def serve(
    configuration: HubConfig,
    *,
    source: ConfigurationSource | None = None,
    clock: Clock = utc_now,
) -> AsyncIterator[str]:
    """Return a context that runs a hub and yields the URL at which the hub listens.

    The hub reloads the grants when a file of `source` changes.

    Raises:
        ConfigurationError: The address, the port or the data folder is not available, or other
            machines can reach the hub but nobody may publish on it.
    """
    server = configuration.server
    with listen(server.host, server.port) as listener:
        public_url = _public_url(configuration, listener)
        local = _is_local(configuration, listener)
        _check_grants(configuration, local=local)
        app = create_application(configuration, public_url=public_url, anonymous=local, clock=clock)
        gateway = None
        if configuration.follow.tables:
            gateway = load_hub_follower()(configuration, public_url, listener)
            gateway.add_routes(app)
        runner = web.AppRunner(
            app,
            access_log=None,
            shutdown_timeout=_SHUTDOWN_SECONDS,
            keepalive_timeout=server.idle_seconds,
            auto_decompress=False,  # prevents small bodies from becoming large
            logger=_http_logger,
        )
        async with AsyncExitStack() as stack:
            stack.push_async_callback(runner.cleanup)
            await runner.setup()
            watch = make_timeout_watch(
                server,
                request_seconds=configuration.intake.request_seconds,
                statistics=app[HUB].statistics,
            )
            stack.callback(watch.close)
            app[HUB].connections = lambda: watch.limit.count
            assert runner.server is not None
            protocols = partial(ConnectionGuard, runner.server, watch)
            await ProtocolSite(runner, listener, protocols).start()
            if source is not None:
                reloading = reload_grants(app[HUB].authorizer, source, configuration)
                stack.callback(asyncio.create_task(reloading).cancel)
            if gateway is not None:
                await stack.enter_async_context(gateway.running(app[HUB].authorizer.grants))
            yield url_of(listener)


def _check_grants(configuration: HubConfig, *, local: bool) -> None:
    """Refuse to start a hub that others can reach but nobody may publish on."""
    access = configuration.access
    granted = access.publishers or access.open_topics or access.jwt_algorithms
    others = configuration.mqtt.channels or configuration.follow.tables
    if not local and not granted and not others:
        raise ConfigurationError(
            "other machines can reach this hub, but nobody may publish on it: configure "
            "publishers, or use a loopback address for both the host and the public URL"
        )


def _public_url(configuration: HubConfig, listener: socket.socket) -> str:
    url = configuration.server.public_url or url_of(listener)
    try:
        return check_url(url, "the public URL").rstrip("/") + "/"
    except Refusal as refusal:
        raise ConfigurationError(refusal.reason) from None


def _is_local(configuration: HubConfig, listener: socket.socket) -> bool:
    """Return whether only this machine can reach the hub, directly or through a proxy."""
    server = configuration.server
    if server.trusted_proxies:
        return False
    host = urlsplit(server.public_url or url_of(listener)).hostname or ""
    local = host == "localhost" or is_loopback(host)
    return local and is_loopback(listener.getsockname()[0])


def url_of(listener: socket.socket) -> str:
    host = listener.getsockname()[0]
    return address(socket.gethostname() if ip_address(host).is_unspecified else host, listener)


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


def with_plain_reasons() -> Middleware:
    """Return middleware that responds to refusals and errors in plain text (WebSub §5.1.2)."""
    reported = Repetitions()

    @web.middleware
    async def explained(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except Refusal as refusal:
            request.config_dict[HUB].statistics.refused[refusal.code] += 1
            status, headers = answer_to(refusal, with_token="Authorization" in request.headers)
            return web.Response(status=status, text=f"{refusal}\n", headers=headers)
        except FetchError as error:
            return web.Response(status=502, text=f"{error}\n")
        except StorageError as error:
            if reported.is_new(str(error)):
                logger.error("%s", error)
            return web.Response(
                status=503,
                text="the hub currently cannot write its data\n",
                headers={"Retry-After": RETRY_AFTER},
            )

    return explained


@web.middleware
async def with_host_check(request: web.Request, handler: Handler) -> web.StreamResponse:
    request.config_dict[HUB].authorizer.check_host(request)
    return await handler(request)


@web.middleware
async def without_encoding(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse encoded bodies, which may become large when decoded (RFC 9110 §8.4)."""
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise web.HTTPUnsupportedMediaType(
            text="the hub does not support Content-Encoding\n",
            headers={"Accept-Encoding": "identity"},
        )
    return await handler(request)


def create_application(
    configuration: HubConfig, *, public_url: str, anonymous: bool, clock: Clock = utc_now
) -> web.Application:
    """Return the application of a hub, which runs from startup to cleanup (`open_hub`)."""

    async def hub_of_app(app: web.Application) -> AsyncIterator[None]:
        async with open_hub(
            configuration, public_url=public_url, anonymous=anonymous, clock=clock
        ) as hub:
            app[HUB] = hub
            yield

    server = configuration.server
    proxies = TrustedProxies(server.trusted_proxies, server.forwarded_header)
    app = web.Application(
        client_max_size=configuration.intake.max_fragment_bytes,
        middlewares=[
            with_guard,
            without_ambiguity,
            with_client_address(proxies),
            with_plain_reasons(),
            with_host_check,
            without_encoding,
        ],
    )
    app.on_response_prepare.append(add_security_headers)
    app.cleanup_ctx.append(hub_of_app)
    app.on_shutdown.append(_close_connections)
    websub = _handler(lambda hub: hub.websub.handle)
    app.router.add_post("/websub", websub, expect_handler=defer_continue)
    app.router.add_get("/ws", _handler(lambda hub: hub.accept_websocket))
    app.router.add_get("/events", _handler(lambda hub: hub.accept_event_stream), allow_head=False)
    app.router.add_get("/events/schema", _handler(lambda hub: hub.event_streams.handle_schema))
    app.router.add_get("/topics", _handler(lambda hub: hub.change_memory.handle))
    app.router.add_get("/" + HUB_DOCUMENT, _document)
    app.router.add_get("/healthz", _healthz)
    app.router.add_get("/readyz", _readyz)
    app.router.add_get("/metrics", _metrics)
    add_dashboard_routes(app, _admin_api)
    add_admin_routes(app, _admin_api)
    return app


def _handler(find: Callable[[HubService], Handler]) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        return await find(request.app[HUB])(request)

    return handle


def _admin_api(request: web.Request) -> AdminApi:
    return request.config_dict[HUB].admin


async def _document(request: web.Request) -> web.Response:
    body = msgspec.json.encode(request.app[HUB].document)
    headers = {"Access-Control-Allow-Origin": "*", "Cross-Origin-Resource-Policy": "cross-origin"}
    return web.Response(body=body, content_type="application/json", headers=headers)


async def _healthz(request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


async def _readyz(request: web.Request) -> web.Response:
    await request.app[HUB].readiness.check()
    return web.Response(text="ready\n")


async def _metrics(request: web.Request) -> web.Response:
    return request.app[HUB].metrics.answer()


async def _close_connections(app: web.Application) -> None:
    if HUB in app:  # absent if the start failed
        await app[HUB].close_connections()


def _without_request(record: logging.LogRecord) -> bool:
    """Keep requests out of the HTTP server's log.

    When aiohttp cannot parse a request, it logs the malformed line, which may contain a token.
    """
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError):
        record.exc_info = None
        record.levelno, record.levelname = logging.INFO, "INFO"
    return True


_http_logger = logging.getLogger("rsnotify.hub.http")
_http_logger.addFilter(_without_request)
