"""The interface of transports. Transports do not depend on each other."""

from __future__ import annotations

from typing import Protocol

from rsnotify.format.datetimes import Instant


class TransportListener(Protocol):
    """Receives messages from a transport."""

    def up(self, hub: str | None = None) -> None:
        """Handle the start of delivery, either from `since` without a gap, or after `gap`.

        The hub is passed if the endpoint does not determine it. `up` is called again when another
        hub takes over.
        """

    def audience(self, listeners: int) -> None:
        """Handle a hub's report of the number of subscribers to the topic."""

    def gap(self) -> None:
        """Handle a notice that the hub has not stored all fragments since `since`."""

    def fragment(self, document: bytes) -> None:
        """Handle a fragment."""


class Transport(Protocol):
    """One connection to one hub."""

    async def receive(self, since: Instant | None, listener: TransportListener) -> None:
        """Connect, and pass everything received to the listener until the connection is lost.

        Args:
            since: The instant up to which every change is known; None for fragments from now on.
            listener: Receives the messages.

        Raises:
            FetchError: Always, when the connection ends. The error states the reason.
        """
