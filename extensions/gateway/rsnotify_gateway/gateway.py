"""The gateway as a library: a Source with one set of resources for each origin."""

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
from rsnotify_gateway.watch import CheckedClock, OriginWatch
from rsnotify_publisher import Hub, Options, Publisher, SourceDescription, routes
from rsnotify_publisher.journal import system_clock
from rsnotify_publisher.publisher import close_all
from rsnotify_publisher.source_context import normalize_base_url
from rsnotify_publisher.web import LIVE, robots
from rsnotify_subscriber.fetching.sessions import Connections
from rsnotify_subscriber.push.websub_callbacks import Callbacks
from rsnotify_subscriber.push_options import WebSubTerms

#: The document about an origin, below the URL of its set.
ABOUT = "origin.json"
#: Maximum number of concurrent requests, in total and per host.
_MOST_REQUESTS, _PER_HOST = 50, 2
#: Maximum number of concurrent event streams, and the seconds after which a silent one counts as
#: broken.
_MOST_STREAMS, _SILENCE = 1_000, 120.0
#: The path of the callbacks. No origin can have this name.
_CALLBACKS = ".websub/"
#: A feed may be quiet for as long as the lease of its subscription.
_TERMS = WebSubTerms(quiet=WebSubTerms().lease)
_RETRY_AFTER = {"Retry-After": "5"}


class Gateway:
    """Follows origins, and publishes each as a set of resources with the origin's own URIs.

    Args:
        state: The folder for the state.
        base_url: The URL below which the documents are served, each set below its own name.
        origins: The origins to follow.
        contact: A URL or email address that origins see.
        hubs: The hubs to which changes are pushed: URLs, or `Hub`s with a token.
        options: Tuning options for publishing.
        described_by: The URL of a document that describes the whole Source.

    Raises:
        ConfigurationError: A URL or an option cannot be used.
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
        self._connections = Connections(most=_MOST_REQUESTS, per_host=_PER_HOST, user_agent=agent)
        # Streams do not count toward the limit of two concurrent requests per host.
        self._streams = Connections(
            most=_MOST_STREAMS, per_host=_MOST_STREAMS, silence=_SILENCE, user_agent=agent
        )
        self._callbacks = Callbacks(self._base_url + _CALLBACKS, _TERMS)
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
        # A new set may begin now. An existing one continues from the beginning of its last check.
        checked = CheckedClock(0 if folder.exists() else system_clock())
        publisher = Publisher(
            folder,
            base_url,
            hubs=hubs,
            described_by=origin.described_by or base_url + ABOUT,
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
        found += [web.get(f"{prefix}{it.name}/{ABOUT}", _about(it)) for it in self.watches]
        return found + self._callbacks.routes(prefix + _CALLBACKS)

    async def run(self, on_serving: Callable[[], Awaitable[None]] | None = None) -> None:
        """Follow the origins and publish them until cancelled.

        Args:
            on_serving: Called when the gateway can answer requests.

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
                f"another rsnotify gateway uses the state in {self._state}; stop that one first"
            ) from None
        except OSError as error:
            raise ConfigurationError(f"cannot write {self._state}: {reason_of(error)}") from None


def _once_ready(route: web.RouteDef, watch: OriginWatch) -> web.RouteDef:
    """Answer 503 until the first check is complete, because there is no set until then."""

    async def handle(request: web.Request) -> web.StreamResponse:
        if not watch.ready.is_set():
            reason = f": {watch.problem}" if watch.problem else ""
            raise web.HTTPServiceUnavailable(
                headers=_RETRY_AFTER, text=f"the origin was never checked completely{reason}\n"
            )
        response = await route.handler(request)
        assert isinstance(response, web.StreamResponse)
        return response

    return web.RouteDef(route.method, route.path, handle, route.kwargs)


def about(watch: OriginWatch) -> dict[str, Any]:
    """Describe an origin: through when it was checked, and which changes it cannot show."""
    terms = watch.adapter.terms()
    return {
        "origin": watch.origin_url,
        "protocol": terms.kind,
        "granularity": terms.granularity,
        "deletions": without_credentials(terms.deletions),
        "limits": [without_credentials(limit) for limit in terms.limits],
        "checked": _written(watch.last_check),
        "failing_since": _written(watch.failing_since),
        "problem": watch.problem,
    }


def _written(instant: int | None) -> str | None:
    return None if instant is None else format_datetime(from_microseconds(instant))


def _about(watch: OriginWatch) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        body = json.format(json.encode(about(watch)), indent=2)
        return web.Response(body=body, content_type="application/json", headers=LIVE)

    return handle
