"""A lasting subscription to a topic, over a given number of the best working endpoints.

`EndpointFailover` decides which endpoints should be open: the best that work, and others while
those do not. `EndpointConnection` is the connection to one endpoint, from opening it to losing it.

Theory of operation. An endpoint is closed, being tried, or up, or it has failed and is waiting for
its next attempt.

    closed --needed--> tried --up--> up --has held--> worse ones are closed
                         |            |
                         |  failed    | lost
                         v            v
                        waits <-------+ --backoff over, needed--> tried

An endpoint is needed while too few of the better ones are up or expected to be. An endpoint is
expected if it is being tried for the first time, or if it was lost after it had held, since such an
endpoint is often back at once. If it then fails, the next one is opened while it waits.

An open endpoint is closed when enough better ones have held, and have received something since they
came up: the Source may not yet have reached a hub that has just come back. If both endpoints lead
to the same hub, the Source reaches both or neither, so the better one only has to hold. A better
endpoint that receives nothing while a worse one does is up, but replaces none. Each loss after the
first doubles the time to hold, so that an endpoint that comes and goes does not close and reopen
the others each time. Losses are forgiven after a long time up. An endpoint that was found to
receive nothing is *mute*, and counts as lost until it receives something.

All times are seconds on one monotonic clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from math import inf
from random import Random
from typing import Generic, TypeVar
from urllib.parse import urlsplit

from rsnotify.errors import FetchError
from rsnotify.format.datetimes import Instant
from rsnotify.runtime.tasks import Tasks
from rsnotify.sync.retry import Retry
from rsnotify_subscriber.events import Event, PushDown, PushUp
from rsnotify_subscriber.push.endpoints import Endpoint

#: Time for an endpoint to come up before the next one is tried as well.
PATIENCE = 2.0
#: Time for an endpoint that was lost after it had held to come back.
RETURN = 0.5
#: Time that an endpoint must stay up before worse ones are closed.
HOLD = 3.0
#: Maximum value of that time, after many losses.
LONGEST_HOLD = 300.0
#: A worse endpoint that has received nothing for this long is closed even if the better one has not
#: received anything either.
QUIET = 60.0
#: Maximum delay of a better endpoint behind a worse one in receiving the same fragment.
SLACK = 2.0
#: After this many times the time to hold without a loss, the next loss counts as the first.
_FORGIVEN = 20
_RETRY = Retry(first=0.25, most=15.0)

E = TypeVar("E", bound=Hashable)


class _EndpointState(Generic[E]):
    """The history of one endpoint."""

    def __init__(self, endpoint: E) -> None:
        self.endpoint = endpoint
        self.failures = 0
        self.losses = 0
        #: The host and port of its hub.
        self.hub_address: Hashable = None
        #: When the endpoint may be tried again.
        self.retry_at = -inf
        #: The time until which it is expected to come up.
        self.expected_until = -inf
        self.close()

    def open(self, now: float) -> None:
        self.is_open = True
        if now - self.retry_at > _RETRY.most:  # failures so long ago no longer matter
            self.failures = 0
        if not self.failures:
            self.expected_until = now + PATIENCE

    def up(self, now: float) -> None:
        doublings = min(max(self.losses - 1, 0), 64)
        hold = min(HOLD * 2.0**doublings, LONGEST_HOLD)
        self.is_open = self.is_up = True
        self.held_at, self.forgiven_at = now + hold, now + _FORGIVEN * hold
        self.received_at, self.proven_at = now, now + QUIET
        self.expected_until = -inf

    def receive(self, now: float) -> None:
        self.received_at = self.proven_at = now
        self.is_mute = False

    def down(self, now: float, retry_after: float, random: Random) -> None:
        self.expected_until = -inf
        if now >= self.held_at:
            self.failures = 0
            self.expected_until = now + RETURN
        if self.is_up:
            self.losses = 1 if now >= self.forgiven_at else self.losses + 1
        self.failures += 1
        self.retry_at = now + _RETRY.delay(self.failures, random, at_least=retry_after)
        if self.retry_at >= self.expected_until:
            self.expected_until = -inf
        self.close()

    def close(self) -> None:
        self.is_open = self.is_up = self.is_mute = False
        #: When it will have been up for long enough, and when its losses are forgiven.
        self.held_at = self.forgiven_at = inf
        #: When it replaces worse ones even if it has received nothing.
        self.proven_at = inf
        #: When it last received something, or came up.
        self.received_at = -inf

    def is_up_or_expected(self, now: float) -> bool:
        return (self.is_up and not self.is_mute) or now < self.expected_until

    def replaces(self, worse: _EndpointState[E], now: float) -> bool:
        has_held = self.held_at <= now and not self.is_mute
        is_same_hub = self.hub_address is not None and self.hub_address == worse.hub_address
        is_proven = self.proven_at <= now or is_same_hub
        is_as_good = (
            worse.received_at <= self.received_at + SLACK or worse.received_at + QUIET <= now
        )
        return has_held and is_proven and is_as_good

    def times(self) -> Iterable[float]:
        retry_at = -inf if self.is_open else self.retry_at
        return self.expected_until, self.held_at, self.proven_at, self.received_at + QUIET, retry_at


class EndpointFailover(Generic[E]):
    """Decides which endpoints should be open. The caller opens them and reports the results.

    Args:
        endpoints: The endpoints, best first.
        most: Number of endpoints that should be up at the same time.
    """

    def __init__(self, endpoints: Iterable[E], random: Random, *, most: int = 1) -> None:
        self._states = [_EndpointState(endpoint) for endpoint in endpoints]
        self._random = random
        self._most = most

    def set_endpoints(self, endpoints: Iterable[E]) -> None:
        """Replace the endpoints, keeping the history of those that remain."""
        known = {state.endpoint: state for state in self._states}
        self._states = [known.get(endpoint) or _EndpointState(endpoint) for endpoint in endpoints]

    def up(self, endpoint: E, now: float, hub_address: Hashable = None) -> None:
        """Record that an endpoint is up. `hub_address` is its hub's host and port, if known."""
        state = self._state(endpoint)
        state.up(now)
        state.hub_address = hub_address

    def received(self, endpoint: E, now: float) -> None:
        self._state(endpoint).receive(now)

    def mute(self, endpoint: E) -> None:
        """Record that an endpoint is up but does not receive what it should."""
        self._state(endpoint).is_mute = True

    def down(self, endpoint: E, now: float, retry_after: float = 0.0) -> None:
        self._state(endpoint).down(now, retry_after, self._random)

    def tick(self, now: float) -> list[E]:
        """Return the endpoints that should be open from now on, best first."""
        better: list[_EndpointState[E]] = []
        for state in self._states:
            if state.is_open:
                if self._are_enough(one.replaces(state, now) for one in better):
                    state.close()
            elif state.retry_at <= now and not self._are_enough(
                one.is_up_or_expected(now) for one in better
            ):
                state.open(now)
            better.append(state)
        return [state.endpoint for state in self._states if state.is_open]

    def _are_enough(self, better: Iterable[bool]) -> bool:
        return sum(better) >= self._most

    def due(self, now: float) -> float | None:
        """Return when the result of `tick` may change, if nothing else happens first."""
        times = (time for state in self._states for time in state.times())
        return min((time for time in times if now < time < inf), default=None)

    def _state(self, endpoint: E) -> _EndpointState[E]:
        return next(state for state in self._states if state.endpoint == endpoint)


_PORTS = {"ws": 80, "http": 80, "wss": 443, "https": 443}


class PushEvents:
    """Receives fragments from all endpoints, and state changes, which it ignores by default."""

    def up(self) -> None:
        """Handle the start of delivery, either from `since` without a gap, or after `gap`."""

    def audience(self, listeners: int) -> None:
        """Handle a hub's report of the number of subscribers to the topic."""

    def gap(self) -> None:
        """Handle a notice that a hub has not stored all fragments since `since`."""

    def fragment(self, document: bytes) -> Instant | None:
        """Handle a fragment. Return the instant up to which it covers changes, if any."""
        raise NotImplementedError

    def down(self) -> None:
        """Handle the loss of the last endpoint."""

    def ended(self) -> None:
        """Handle the end of the subscription, after which nothing else happens."""


class EndpointConnection:
    """A connection to an endpoint. Implements `TransportListener` for its transport.

    After `close`, it calls neither subscription nor events.
    """

    def __init__(
        self, endpoint: Endpoint, subscription: PushSubscription, events: PushEvents
    ) -> None:
        self.endpoint = endpoint
        self.hub = endpoint.hub
        #: Whether the hub has accepted the subscription.
        self.is_up = False
        #: Whether the hub fails to send what it should.
        self.is_mute = False
        #: Whether the hub must have sent any change that the lists show from now on.
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
            await self.endpoint.transport().receive(self._through, self)
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
        until = self._events.fragment(document)
        if until is not None and (self._through is None or until > self._through):
            # A retained fragment does not show that the broker is still receiving new ones.
            self._through = until
            self.received_at = asyncio.get_running_loop().time()
            self._subscription.connection_received(self)


logger = logging.getLogger("rsnotify.subscriber")

#: Seconds after reading the lists within which a hub may still send the same changes.
SILENCE_GRACE = 15.0


class PushSubscription:
    """A lasting subscription to a topic.

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
        """The reason why the best endpoint is down, if none is up and it was tried."""
        reasons = (self._failed.get(endpoint) for endpoint in self.endpoints)
        return None if self._delivering() else next(filter(None, reasons), None)

    def _delivering(self) -> list[EndpointConnection]:
        connections = (self._open.get(endpoint) for endpoint in self.endpoints)
        return [one for one in connections if one is not None and one.delivers]

    def set_endpoints(self, endpoints: Sequence[Endpoint]) -> None:
        """Replace the endpoints, keeping connections to those that remain."""
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
        now = loop.time()  # once: a second reading could skip a time that falls between the two
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
        """Close a connection. Unsubscribing may take a while, and nothing waits for it."""
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
        """Compare push with the lists: hubs should have sent the same changes.

        A hub does not have to send changes from before its connection came up. The first lists that
        are read after that therefore prove nothing about the hub.

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
        """Mark a connection as mute if it has received nothing new since the given time."""
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
