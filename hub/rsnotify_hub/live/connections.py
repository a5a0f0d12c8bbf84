"""The open WebSockets and event streams together, and who may open another."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial

from aiohttp import web

from rsnotify_hub.access.clients import is_loopback
from rsnotify_hub.access.limits import RateLimits
from rsnotify_hub.config.configuration import WebSocketConfig
from rsnotify_hub.http.connection_limit import ConnectionLimit
from rsnotify_hub.live.connection import LiveConnection
from rsnotify_hub.live.handover import HandedOver, hand_over
from rsnotify_hub.live.keep_alive import KeepAlive
from rsnotify_hub.live.origins import Origins
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.statistics import DeliveryTransport, Statistics

#: Makes a connection from its transport and the function that it calls when it is lost.
Connect = Callable[[asyncio.Transport, Callable[[LiveConnection], None]], LiveConnection]


class LiveConnections:
    """All connections, within the limits. Pages of the public URL may connect."""

    def __init__(
        self,
        limits: RateLimits,
        statistics: Statistics,
        configuration: WebSocketConfig,
        *,
        public_url: str,
    ) -> None:
        self._rate = limits.connections
        self._statistics = statistics
        self._origins = Origins(public_url, configuration.websocket_origins)
        self._limit = ConnectionLimit(
            configuration.max_websockets, configuration.websockets_per_client, is_loopback
        )
        self._keep_alive = KeepAlive(configuration.websocket_ping_seconds)
        self._counts: Counter[DeliveryTransport] = Counter()

    def count(self, kind: DeliveryTransport) -> int:
        return self._counts[kind]

    def queued(self) -> int:
        """Return the number of bytes that wait in the transports and queues."""
        connections = self._keep_alive.connections()
        waiting = sum(each.transport.get_write_buffer_size() for each in connections)
        return waiting + sum(each.queue.size for each in connections if each.queue)

    def check(self, request: web.Request) -> None:
        """Check whether the client of a request may connect.

        Raises:
            HTTPForbidden: It is a page of an origin that may not.
            Refusal: It, or all clients together, have connected too often.
        """
        if not self._origins.allows(request.headers.get("Origin"), request.host):
            # Not a Refusal, whose answer would request a token: none would help.
            self._statistics.refused[Code.FORBIDDEN] += 1
            raise web.HTTPForbidden(text="pages of this origin may not connect here\n")
        self._check_limits(request.remote)

    def _check_limits(self, address: str | None) -> None:
        self._rate.check(address)
        if self._limit.is_full or self._limit.is_client_full(address or ""):
            raise Refusal(
                Code.TOO_MANY, "too many WebSockets and event streams are open; try again later"
            )

    def add_topic(self, address: str | None) -> Callable[[], None]:
        """Count another topic of a connection as one more connection; return what ends that.

        Raises:
            Refusal: The client, or all clients together, have too many.
        """
        self._check_limits(address)
        self._limit.acquire(address or "")
        return partial(self._limit.release, address or "")

    def accept(self, request: web.Request, answer: bytes, connect: Connect) -> HandedOver:
        """Answer a request that was checked, and hand its transport over to a connection."""
        address = request.remote or ""

        def take(transport: asyncio.Transport, release: Callable[[], None]) -> LiveConnection:
            def lost(connection: LiveConnection) -> None:
                release()
                self._limit.release(address)
                self._counts[connection.kind] -= 1
                self._keep_alive.remove(connection)

            self._limit.acquire(address)
            connection = connect(transport, lost)
            self._counts[connection.kind] += 1
            self._keep_alive.add(connection)
            return connection

        return hand_over(request, answer, take)

    async def close(self) -> None:
        """Close every connection; those whose client does not answer in time are aborted."""
        for connection in self._keep_alive.connections():
            connection.go_away()
        await self._keep_alive.wait_until_empty()
