"""The gateway as a library: a Source with one set of resources per origin."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web
from filelock import FileLock, Timeout
from msgspec import json

from rsnotify import __version__
from rsnotify.errors import ConfigurationError, without_credentials
from rsnotify.format.datetimes import format_datetime, from_microseconds
from rsnotify.runtime.extensions import load_extension
from rsnotify.runtime.reasons import reason_of
from rsnotify.runtime.state_folders import make_durably
from rsnotify.runtime.tasks import first_cause
from rsnotify_gateway.adapter import OriginType
from rsnotify_gateway.client import OriginClient
from rsnotify_gateway.config import OriginSettings
from rsnotify_gateway.origin_watch import CheckedClock, OriginWatch
from rsnotify_publisher import Hub, Options, Publisher, SourceDescription, routes
from rsnotify_publisher.journal import system_clock
from rsnotify_publisher.publisher import close_all
from rsnotify_publisher.source_context import normalize_base_url
from rsnotify_publisher.web import LIVE, robots
from rsnotify_subscriber.fetching.sessions import Connections
from rsnotify_subscriber.push.websub_callbacks import Callbacks
from rsnotify_subscriber.push_options import WebSubTerms

#: The name of the document about an origin, below the URL of its set.
ORIGIN_DOCUMENT = "origin.json"
#: Maximum number of concurrent requests, in total and per host.
_MAX_REQUESTS, _MAX_PER_HOST = 50, 2
_MAX_STREAMS = 1_000
#: A stream counts as broken after this many seconds without data.
_STREAM_TIMEOUT_SECONDS = 120.0
#: The path of the callbacks. No origin can have this name.
_CALLBACK_PATH = ".websub/"
#: A feed may be quiet for the whole lease of its subscription.
_FEED_TERMS = WebSubTerms(quiet=WebSubTerms().lease)
_RETRY_HEADERS = {"Retry-After": "5"}


class Gateway:
    """Follows origins, and publishes each as a set of resources with the origin's own URIs.

    Args:
        state: The folder for the state.
        base_url: The URL below which the documents are served. Each set is below its origin's name.
        origins: The origins to follow.
        contact: A URL or email address, sent to the origins with each request.
        hubs: The hubs to push changes to: URLs, or `Hub`s with a token.
        options: Tuning options for publishing.
        described_by: The URL of a document that describes the whole Source.

    Raises:
        ConfigurationError: A URL or an option is invalid.
    """

    def __init__(
        self,
        state: str | os.PathLike[str],
        base_url: str,
        origins: Sequence[OriginSettings],
        *,
        contact: str,
        hubs: Sequence[str | Hub] = (),
        options: Options | None = None,
        described_by: str | None = None,
    ) -> None:
        self._base_url = normalize_base_url(base_url)
        self._state = Path(state)
        agent = f"rsnotify-gateway/{__version__} (+{contact})"
        self._connections = Connections(
            most=_MAX_REQUESTS, per_host=_MAX_PER_HOST, user_agent=agent
        )
        # Streams do not count toward the limit of two concurrent requests per host.
        self._streams = Connections(
            most=_MAX_STREAMS,
            per_host=_MAX_STREAMS,
            silence=_STREAM_TIMEOUT_SECONDS,
            user_agent=agent,
        )
        self._callbacks = Callbacks(self._base_url + _CALLBACK_PATH, _FEED_TERMS)
        self._clients: list[OriginClient] = []
        self.watches = [self._watch(origin, hubs, options) for origin in origins]
        self.source = SourceDescription(
            self._base_url, [watch.publisher for watch in self.watches], described_by=described_by
        )

    def _watch(
        self, origin: OriginSettings, hubs: Sequence[str | Hub], options: Options | None
    ) -> OriginWatch:
        base_url = f"{self._base_url}{origin.name}/"
        folder = self._state / origin.name
        # A new set begins now. An existing set continues from its last complete check.
        checked = CheckedClock(0 if folder.exists() else system_clock())
        publisher = Publisher(
            folder,
            base_url,
            hubs=hubs,
            described_by=origin.described_by or base_url + ORIGIN_DOCUMENT,
            options=options,
            clock=checked,
        )
        kind: OriginType = load_extension("origins", origin.type, f'type = "{origin.type}"')
        client = OriginClient(
            origin.url if kind.uses_http else "",
            self._streams if kind.is_stream else self._connections,
            credentials=origin.credentials,
            robots=origin.robots,
            delay=origin.delay,
            allow_private_addresses=origin.allow_private_addresses,
        )
        self._clients.append(client)
        adapter = kind.adapter(origin, client, self._callbacks)
        return OriginWatch(origin, adapter, publisher, checked)

    def application(self) -> web.Application:
        """Return an application that serves the documents while `run` is running."""
        app = web.Application()
        app.add_routes(self.routes())
        app.router.add_get("/robots.txt", robots(self.source))
        return app

    def routes(self, prefix: str | None = None) -> list[web.RouteDef]:
        """Return the routes of the documents and callbacks.

        Args:
            prefix: The path below which they are served; by default, the path of the base URL.
        """
        prefix = urlsplit(self._base_url).path if prefix is None else prefix
        watches = {watch.name: watch for watch in self.watches}
        found: list[web.RouteDef] = []
        for route in routes(self.source, prefix):
            watch = watches.get(route.path.removeprefix(prefix).partition("/")[0])
            found.append(route if watch is None else _once_ready(route, watch))
        found += [
            web.get(f"{prefix}{watch.name}/{ORIGIN_DOCUMENT}", _origin_handler(watch))
            for watch in self.watches
        ]
        return found + self._callbacks.routes(prefix + _CALLBACK_PATH)

    async def run(self, on_serving: Callable[[], Awaitable[None]] | None = None) -> None:
        """Follow the origins and publish them until cancelled.

        Args:
            on_serving: Called when the gateway is ready to serve requests.

        Raises:
            RsnotifyError: The state cannot be used.
        """
        async with AsyncExitStack() as stack:
            stack.enter_context(self._lock())
            for connections in (self._connections, self._streams):
                await stack.enter_async_context(connections)
            for client in self._clients:
                await stack.enter_async_context(client)
            try:
                if on_serving is not None:
                    await on_serving()
                async with asyncio.TaskGroup() as tasks:
                    for watch in self.watches:
                        tasks.create_task(watch.run())
            except ExceptionGroup as group:
                raise first_cause(group) from None
            finally:
                publishers = [watch.publisher for watch in self.watches]
                await asyncio.to_thread(close_all, publishers)

    def _lock(self) -> AbstractContextManager[object]:
        """Lock the state, because two gateways would record every change twice."""
        try:
            make_durably(self._state)
            return FileLock(self._state / "gateway.lock", blocking=False).acquire()
        except Timeout:
            raise ConfigurationError(
                f"another rsnotify gateway uses the state in {self._state}; stop it first"
            ) from None
        except OSError as error:
            raise ConfigurationError(f"cannot write {self._state}: {reason_of(error)}") from None


def _once_ready(route: web.RouteDef, watch: OriginWatch) -> web.RouteDef:
    """Return a route that responds with 503 until the first check is complete."""

    async def handle(request: web.Request) -> web.StreamResponse:
        if not watch.ready.is_set():
            reason = f": {watch.problem}" if watch.problem else ""
            raise web.HTTPServiceUnavailable(
                headers=_RETRY_HEADERS, text=f"the first check is not complete yet{reason}\n"
            )
        response = await route.handler(request)
        assert isinstance(response, web.StreamResponse)
        return response

    return web.RouteDef(route.method, route.path, handle, route.kwargs)


def origin_document(watch: OriginWatch) -> dict[str, Any]:
    """Return the members of origin.json: when the origin was checked, and what it cannot show."""
    terms = watch.adapter.terms()
    return {
        "origin": watch.origin_url,
        "protocol": terms.kind,
        "granularity": terms.granularity,
        "deletions": without_credentials(terms.deletions),
        "limits": [without_credentials(limit) for limit in terms.limits],
        "checked": _datetime(watch.last_check),
        "failing_since": _datetime(watch.failing_since),
        "problem": watch.problem,
    }


def _datetime(instant: int | None) -> str | None:
    return None if instant is None else format_datetime(from_microseconds(instant))


def _origin_handler(watch: OriginWatch) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        body = json.format(json.encode(origin_document(watch)), indent=2)
        return web.Response(body=body, content_type="application/json", headers=LIVE)

    return handle
