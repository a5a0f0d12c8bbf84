"""A lasting subscription to a topic, by as many of the best working endpoints as are wanted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from random import Random

from rsnotify.errors import FetchError
from rsnotify.format.datetimes import Instant
from rsnotify_subscriber.events import Event, PushDown, PushUp
from rsnotify_subscriber.push.endpoint_connection import EndpointConnection, PushEvents
from rsnotify_subscriber.push.endpoints import Endpoint
from rsnotify_subscriber.push.failover import EndpointFailover
from rsnotify_subscriber.tasks import Tasks

logger = logging.getLogger("rsnotify.subscriber")


#: The seconds after the lists within which a hub may still send the same changes.
SILENCE_GRACE = 15.0


class PushSubscription:
    """A lasting subscription to a topic; the `ConnectionObserver` of its connections.

    Args:
        endpoints: The endpoints of the topic, the best first.
        since: Returns the instant through which every change is known.
        most: How many endpoints are to be up at the same time.
        announce: Is called with each endpoint that comes up or goes down.
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
        self._failed: dict[Endpoint, str] = {}  # the reasons, since each was last up
        self._tasks = Tasks(self._end)
        self._ended: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def up(self) -> list[Endpoint]:
        """The endpoints by which changes arrive now, the best first."""
        return [connection.endpoint for connection in self._delivering()]

    @property
    def hubs(self) -> tuple[str, ...]:
        """The hubs from which changes arrive, in the same order."""
        return tuple(connection.hub for connection in self._delivering())

    @property
    def error(self) -> str | None:
        """Why the best endpoint is not up, if none is and it was tried."""
        reasons = (self._failed.get(endpoint) for endpoint in self.endpoints)
        return None if self._delivering() else next(filter(None, reasons), None)

    def _delivering(self) -> list[EndpointConnection]:
        connections = (self._open.get(endpoint) for endpoint in self.endpoints)
        return [one for one in connections if one is not None and one.delivers]

    def set_endpoints(self, endpoints: Sequence[Endpoint]) -> None:
        """Use these endpoints from now on; connections to those that stay are kept."""
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
        now = loop.time()  # once: a second reading could skip a time that falls due between them
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
        """Close a connection. To unsubscribe may take a while, and nothing waits for that."""
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

    # Connections that are up, and yet receive nothing

    def pulled(self, began: float, *, news: bool) -> None:
        """Compare with the lists, which have what hubs should have sent, too.

        A hub need not send what happened before its connection came up. So the first lists that
        are read after that show nothing about it.

        Args:
            began: The time at which reading the lists began.
            news: Whether they had changes that no hub had sent.
        """
        loop = asyncio.get_running_loop()
        for connection in self._open.values():
            if connection.delivers and connection.up_at <= began:
                if news and connection.is_due:
                    loop.call_later(SILENCE_GRACE, self._check_mute, connection, loop.time())
                connection.is_due = True

    def _check_mute(self, connection: EndpointConnection, since: float) -> None:
        """Rely no longer on a connection that has received nothing new since some time."""
        is_open = self._open.get(connection.endpoint) is connection
        if not is_open or not connection.delivers or connection.received_at > since:
            return
        reason = f"{connection.hub}: it does not send changes that the lists have"
        connection.is_mute = True
        self._failover.mute(connection.endpoint)
        self._log(reason, is_news=True)
        self._report_down(connection, reason, counted=True)
        self._arrange()

    # Logs and events

    def _log(self, reason: object, *, is_news: bool, refused: bool = False) -> None:
        hubs = ", ".join(self.hubs)
        if hubs:
            how = "refuses this Destination" if refused else "is away"
            state = f"a hub {how}, changes arrive by {hubs}"
        else:
            state = f"push is {'refused' if refused else 'away'}, the lists are polled"
        level = logging.WARNING if is_news and self._needed else logging.INFO
        logger.log(level, "%s: %s", state, reason)

    def _report_up(self, connection: EndpointConnection) -> None:
        endpoint = connection.endpoint
        level = logging.INFO if self._needed else logging.DEBUG
        logger.log(level, "changes arrive by %s", connection.hub)
        self._announce(PushUp(endpoint.kind, connection.hub, endpoint.topic))
        if self.up == [endpoint]:
            self._events.up()

    def _report_down(self, connection: EndpointConnection, reason: str, *, counted: bool) -> None:
        endpoint, left = connection.endpoint, len(self.up)
        self._announce(PushDown(endpoint.kind, connection.hub, endpoint.topic, reason, left))
        if counted and not left:
            self._events.down()
