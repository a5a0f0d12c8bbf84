"""The connection to one endpoint, from opening it to its loss."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol
from urllib.parse import urlsplit

from rsnotify.errors import FetchError
from rsnotify.format.datetimes import Instant
from rsnotify_subscriber.push.endpoints import Endpoint
from rsnotify_subscriber.tasks import Tasks

_PORTS = {"ws": 80, "http": 80, "wss": 443, "https": 443}


class PushEvents:
    """Receives what arrives by any endpoint, and whether anything can; ignores it by default."""

    def up(self) -> None:
        """Note that fragments arrive from now on, from `since` without a gap or after `gap`."""

    def audience(self, listeners: int) -> None:
        """Note the number of subscribers of the topic, where the hub reports it."""

    def gap(self) -> None:
        """Note that a hub has not stored all fragments since `since`."""

    def fragment(self, document: bytes) -> Instant | None:
        """Receive a fragment; return the instant through which it covers changes, if any."""
        raise NotImplementedError

    def down(self) -> None:
        """Note that no endpoint is left."""

    def ended(self) -> None:
        """Note that nothing else will happen."""


class ConnectionObserver(Protocol):
    """Is called when the state of a connection changes."""

    def connection_up(self, connection: EndpointConnection) -> None:
        """Note that the hub has accepted the subscription."""

    def connection_received(self, connection: EndpointConnection) -> None:
        """Note that a fragment arrived which covers more than those before."""

    def connection_lost(self, connection: EndpointConnection, error: FetchError) -> None:
        """Note that nothing arrives any more, and why."""


class EndpointConnection:
    """A connection to an endpoint; the `TransportListener` of its transport.

    After `close`, neither observer nor events are called any more.
    """

    def __init__(
        self, endpoint: Endpoint, observer: ConnectionObserver, events: PushEvents
    ) -> None:
        self.endpoint = endpoint
        self.hub = endpoint.hub
        #: Whether the hub has accepted the subscription.
        self.is_up = False
        #: Whether the hub does not send what it should.
        self.is_mute = False
        #: Whether the hub should have sent what the lists have from now on.
        self.is_due = False
        self.up_at = 0.0
        #: When it came up, or a new fragment last arrived.
        self.received_at = 0.0
        self._observer = observer
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
        """Start to receive; `since` returns the instant through which every change is known."""
        self._task = tasks.spawn(self._receive(since))

    async def _receive(self, since: Callable[[], Instant | None]) -> None:
        self._through = since()
        try:
            await self.endpoint.transport().receive(self._through, self)
        except FetchError as error:
            if not self._is_closed:
                self._observer.connection_lost(self, error)

    def close(self) -> None:
        """Unsubscribe, which may take a while."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()

    # Called by the transport

    def up(self, hub: str | None = None) -> None:
        self.hub = hub or self.hub
        if not self._is_closed and not self.is_up:
            self.is_up = True
            self.up_at = self.received_at = asyncio.get_running_loop().time()
            self._observer.connection_up(self)

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
            # What a broker has retained does not show that it receives anything now.
            self._through = until
            self.received_at = asyncio.get_running_loop().time()
            self._observer.connection_received(self)
