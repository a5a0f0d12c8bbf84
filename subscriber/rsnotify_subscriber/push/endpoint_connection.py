"""One way while it is open."""

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


class ConnectionObserver(Protocol):
    """Who is told what becomes of a line, and what arrives by it."""

    def line_up(self, line: EndpointConnection) -> None:
        """Hear that its hub has accepted the subscription."""

    def line_told(self, line: EndpointConnection) -> None:
        """Hear that it told something that it had not told before."""

    def line_lost(self, line: EndpointConnection, error: FetchError) -> None:
        """Hear that nothing arrives by it any more, and why."""

    def audience(self, listeners: int) -> None:
        """Hear how many hear the same."""

    def gap(self) -> None:
        """Hear that its hub does not reach back."""

    def fragment(self, document: bytes) -> Instant | None:
        """Take a fragment; return up to which instant it tells, if it tells something."""


class EndpointConnection:
    """A way that is open, until it is lost or closed; a `Listener`.

    Args:
        way: Which.
        exchange: Who is told; nobody any more once it is closed.

    Attributes:
        hub: The hub that tells, as far as that is known.
        is_up: Whether its hub has accepted the subscription.
        is_mute: Whether it does not tell what it should.
        heard_at: When it came up, or told something, in seconds of the event loop.
        is_due: Whether it should have told what the lists have from now on.
    """

    def __init__(self, way: Endpoint, exchange: ConnectionObserver) -> None:
        self.way = way
        self.hub = way.hub
        self.is_up = self.is_mute = self.is_due = False
        self.up_at = self.heard_at = 0.0
        self._exchange: ConnectionObserver | None = exchange
        self._told: Instant | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def counts(self) -> bool:
        """Whether changes arrive by it."""
        return self.is_up and not self.is_mute

    @property
    def place(self) -> tuple[str, int | None] | None:
        """The host and port of its hub, if it has them."""
        parts = urlsplit(self.hub)
        return (parts.hostname, parts.port or _PORTS.get(parts.scheme)) if parts.hostname else None

    def open(self, tasks: Tasks, since: Callable[[], Instant | None]) -> None:
        """Begin to receive.

        Args:
            tasks: Where that runs.
            since: Gives the instant to join at.
        """
        self._task = tasks.spawn(self._receive(since))

    async def _receive(self, since: Callable[[], Instant | None]) -> None:
        self._told = since()
        try:
            await self.way.transport().receive(self._told, self)
        except FetchError as error:
            if self._exchange is not None:
                self._exchange.line_lost(self, error)

    def close(self) -> None:
        """Tell nobody any more, and take leave of the hub, which may take a while."""
        self._exchange = None
        if self._task is not None:
            self._task.cancel()

    # What the transport tells

    def up(self, hub: str | None = None) -> None:
        """Hear that the hub has accepted the subscription, and which it is."""
        self.hub = hub or self.hub
        if self._exchange is not None and not self.is_up:
            self.is_up = True
            self.up_at = self.heard_at = asyncio.get_running_loop().time()
            self._exchange.line_up(self)

    def audience(self, listeners: int) -> None:
        """Hear how many hear the same."""
        if self._exchange is not None:
            self._exchange.audience(listeners)

    def gap(self) -> None:
        """Hear that the hub does not reach back."""
        if self._exchange is not None:
            self._exchange.gap()

    def fragment(self, document: bytes) -> None:
        """Take a fragment."""
        if self._exchange is None:
            return
        until = self._exchange.fragment(document)
        if until is not None and (self._told is None or until > self._told):
            # What a broker kept from before is no sign that anything comes now.
            self._told = until
            self.heard_at = asyncio.get_running_loop().time()
            self._exchange.line_told(self)
