"""A permanent subscription to a topic, over one or more of its best working endpoints.

`PushSubscription` opens and closes the endpoints that `EndpointFailover` chooses. An
`EndpointConnection` is one connection to an endpoint, from opening to losing it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from random import Random
from urllib.parse import urlsplit

from rsnotify.errors import FetchError
from rsnotify.format.datetimes import Instant
from rsnotify.runtime.tasks import Tasks
from rsnotify_subscriber.events import Event, PushDown, PushUp
from rsnotify_subscriber.push.endpoint_failover import EndpointFailover
from rsnotify_subscriber.push.endpoints import Endpoint
from rsnotify_subscriber.push.transport import TransportListener

logger = logging.getLogger("rsnotify.subscriber")

_PORTS = {"ws": 80, "http": 80, "wss": 443, "https": 443}


class PushEvents(TransportListener):
    """Receives fragments from all endpoints, and changes of state, which it ignores by default."""

    #: The instant up to which the last fragment covers changes, if it states one.
    covered_until: Instant | None = None

    def up(self, hub: str | None = None) -> None:
        """Handle the first endpoint that comes up."""

    def audience(self, listeners: int) -> None:
        return

    def gap(self) -> None:
        return

    def down(self) -> None:
        """Handle the loss of the last endpoint."""

    def ended(self) -> None:
        """Handle the end of the subscription. No other method is called afterwards."""


class EndpointConnection(TransportListener):
    """A connection to an endpoint. After `close`, it ignores its transport."""

    def __init__(
        self, endpoint: Endpoint, subscription: PushSubscription, events: PushEvents
    ) -> None:
        self.endpoint = endpoint
        self.hub = endpoint.hub
        #: Whether the hub has accepted the subscription.
        self.is_up = False
        #: Whether the hub does not send what it should.
        self.is_mute = False
        #: Whether the hub should have sent all changes that the lists show from now on.
        self.is_due = False
        self.up_at = 0.0
        #: When the connection came up, or a new fragment last arrived.
        self.received_at = 0.0
        self._subscription = subscription
        self._events = events
        self._is_closed = False
        self._through: Instant | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def delivers(self) -> bool:
        return self.is_up and not self.is_mute

    @property
    def hub_address(self) -> tuple[str, int | None] | None:
        """The host and port of the hub, if its URI has a host."""
        parts = urlsplit(self.hub)
        return (parts.hostname, parts.port or _PORTS.get(parts.scheme)) if parts.hostname else None

    def open(self, tasks: Tasks, since: Callable[[], Instant | None]) -> None:
        """Start receiving. `since` returns the instant up to which every change is known."""
        self._task = tasks.spawn(self._receive(since))

    async def _receive(self, since: Callable[[], Instant | None]) -> None:
        self._through = since()
        try:
            await self.endpoint.make_transport(self.endpoint).receive(self._through, self)
        except FetchError as error:
            if not self._is_closed:
                self._subscription.connection_lost(self, error)

    def close(self) -> None:
        """Unsubscribe in the background, which may take a while."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()

    # Called by the transport

    def up(self, hub: str | None = None) -> None:
        self.hub = hub or self.hub
        if not self._is_closed and not self.is_up:
            self.is_up = True
            self.up_at = self.received_at = asyncio.get_running_loop().time()
            self._subscription.connection_up(self)

    def audience(self, listeners: int) -> None:
        if not self._is_closed:
            self._events.audience(listeners)

    def gap(self) -> None:
        if not self._is_closed:
            self._events.gap()

    def fragment(self, document: bytes) -> None:
        if self._is_closed:
            return
        self._events.fragment(document)
        until = self._events.covered_until
        if until is not None and (self._through is None or until > self._through):
            # A retained fragment does not prove that the broker still receives new ones.
            self._through = until
            self.received_at = asyncio.get_running_loop().time()
            self._subscription.connection_received(self)


#: Seconds for a hub to send changes that the lists already show.
SILENCE_GRACE = 15.0


class PushSubscription:
    """A permanent subscription to a topic.

    Args:
        endpoints: The endpoints of the topic, best first.
        since: Returns the instant up to which every change is known.
        most: Number of endpoints that should be up at the same time.
        announce: Called with an event for each endpoint that comes up or goes down.
        needed: Whether to log a warning when no endpoint is left.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        events: PushEvents,
        since: Callable[[], Instant | None],
        random: Random,
        *,
        most: int = 1,
        announce: Callable[[Event], None] = lambda _: None,
        needed: bool = True,
    ) -> None:
        self._needed = needed
        self.endpoints = tuple(endpoints)
        self._failover = EndpointFailover(endpoints, random, most=most)
        self._events = events
        self._since = since
        self._announce = announce
        self._open: dict[Endpoint, EndpointConnection] = {}
        self._failed: dict[Endpoint, str] = {}  # the reasons for failures since the last success
        self._tasks = Tasks(self._end)
        self._ended: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def up(self) -> list[Endpoint]:
        """The endpoints over which changes arrive now, best first."""
        return [connection.endpoint for connection in self._delivering()]

    @property
    def hubs(self) -> tuple[str, ...]:
        """The hubs from which changes arrive, in the order of `up`."""
        return tuple(connection.hub for connection in self._delivering())

    @property
    def error(self) -> str | None:
        """Why the best endpoint that was tried is down, or None while any endpoint is up."""
        reasons = (self._failed.get(endpoint) for endpoint in self.endpoints)
        return None if self._delivering() else next(filter(None, reasons), None)

    def _delivering(self) -> list[EndpointConnection]:
        connections = (self._open.get(endpoint) for endpoint in self.endpoints)
        return [one for one in connections if one is not None and one.delivers]

    def set_endpoints(self, endpoints: Sequence[Endpoint]) -> None:
        """Replace the endpoints, and keep the connections to those that remain."""
        self.endpoints = tuple(endpoints)
        self._failover.set_endpoints(endpoints)
        self._failed = {one: reason for one, reason in self._failed.items() if one in endpoints}
        self._arrange()

    async def run(self) -> None:
        self._ended = asyncio.get_running_loop().create_future()
        try:
            self._arrange()
            await self._ended
        finally:
            self._ended = None
            for endpoint in list(self._open):
                self._close(endpoint)
            if self._timer is not None:
                self._timer.cancel()
            self._events.ended()
            await self._tasks.cancel()

    def _end(self, error: BaseException) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)

    # Opening and closing

    def _arrange(self) -> None:
        if self._ended is None:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()  # read once: `due` must not miss a deadline after `tick`
        wanted = self._failover.tick(now)
        for endpoint in [endpoint for endpoint in self._open if endpoint not in wanted]:
            self._close(endpoint)
        for endpoint in [endpoint for endpoint in wanted if endpoint not in self._open]:
            self._open[endpoint] = connection = EndpointConnection(endpoint, self, self._events)
            connection.open(self._tasks, self._since)
        if self._timer is not None:
            self._timer.cancel()
        due = self._failover.due(now)
        self._timer = None if due is None else loop.call_at(due, self._arrange)

    def _close(self, endpoint: Endpoint) -> None:
        """Close a connection without waiting until it has unsubscribed."""
        connection = self._open.pop(endpoint)
        connection.close()
        if connection.delivers:
            self._report_down(connection, "", counted=True)

    # Called by connections

    def connection_up(self, connection: EndpointConnection) -> None:
        self._failed.pop(connection.endpoint, None)
        self._failover.up(connection.endpoint, connection.up_at, connection.hub_address)
        self._report_up(connection)
        self._arrange()

    def connection_received(self, connection: EndpointConnection) -> None:
        self._failover.received(connection.endpoint, connection.received_at)
        if connection.is_mute:
            connection.is_mute = False
            self._report_up(connection)
        if len(self._open) > 1:
            self._arrange()

    def connection_lost(self, connection: EndpointConnection, error: FetchError) -> None:
        endpoint, reason = connection.endpoint, str(error)
        del self._open[endpoint]
        now = asyncio.get_running_loop().time()
        self._failover.down(endpoint, now, error.retry_after or 0.0)
        is_news = endpoint not in self._failed
        is_refusal = error.remedy is not None
        is_new_refusal = is_refusal and self._failed.get(endpoint) != reason
        self._failed[endpoint] = reason
        self._log(error, is_news=is_news or is_new_refusal, refused=is_refusal)
        if is_news:
            self._report_down(connection, reason, counted=connection.delivers)
        self._arrange()

    # Connections that are up but receive nothing

    def pulled(self, began: float, *, news: bool) -> None:
        """Check that the hubs have sent the changes that the lists show.

        Hubs need not send changes from before a connection came up, so the first lists that are
        read afterwards prove nothing.

        Args:
            began: When reading the lists began.
            news: Whether the lists had changes that no hub had sent.
        """
        loop = asyncio.get_running_loop()
        for connection in self._open.values():
            if connection.delivers and connection.up_at <= began:
                if news and connection.is_due:
                    loop.call_later(SILENCE_GRACE, self._check_mute, connection, loop.time())
                connection.is_due = True

    def _check_mute(self, connection: EndpointConnection, since: float) -> None:
        """Mark a connection as mute if it has received nothing new since then."""
        is_open = self._open.get(connection.endpoint) is connection
        if not is_open or not connection.delivers or connection.received_at > since:
            return
        reason = f"{connection.hub}: it does not send changes that the lists show"
        connection.is_mute = True
        self._failover.mute(connection.endpoint)
        self._log(reason, is_news=True)
        self._report_down(connection, reason, counted=True)
        self._arrange()

    # Logs and events

    def _log(self, reason: object, *, is_news: bool, refused: bool = False) -> None:
        hubs = ", ".join(self.hubs)
        if hubs:
            how = "refuses this Destination" if refused else "is down"
            state = f"a hub {how}; changes arrive from {hubs}"
        else:
            state = f"push is {'refused' if refused else 'down'}; polling the lists"
        level = logging.WARNING if is_news and self._needed else logging.INFO
        logger.log(level, "%s: %s", state, reason)

    def _report_up(self, connection: EndpointConnection) -> None:
        endpoint = connection.endpoint
        level = logging.INFO if self._needed else logging.DEBUG
        logger.log(level, "changes arrive from %s", connection.hub)
        self._announce(PushUp(endpoint.kind, connection.hub, endpoint.topic))
        if self.up == [endpoint]:
            self._events.up()

    def _report_down(self, connection: EndpointConnection, reason: str, *, counted: bool) -> None:
        endpoint, left = connection.endpoint, len(self.up)
        self._announce(PushDown(endpoint.kind, connection.hub, endpoint.topic, reason, left))
        if counted and not left:
            self._events.down()
