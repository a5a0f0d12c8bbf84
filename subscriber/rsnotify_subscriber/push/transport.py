"""The interface of transports. No transport knows of the others."""

from __future__ import annotations

from typing import Protocol

from rsnotify.format.datetimes import Instant


class TransportListener(Protocol):
    """Receives what arrives by a transport."""

    def up(self, hub: str | None = None) -> None:
        """Note that fragments arrive from now on, from `since` without a gap or after `gap`.

        The hub is named where the endpoint does not determine it; `up` is called again when another
        hub takes over.
        """

    def audience(self, listeners: int) -> None:
        """Note the number of subscribers of the topic, where the hub reports it."""

    def gap(self) -> None:
        """Note that the hub has not stored all fragments since `since`."""

    def fragment(self, document: bytes) -> None:
        """Receive a fragment."""


class Transport(Protocol):
    """One connection to one hub."""

    async def receive(self, since: Instant | None, listener: TransportListener) -> None:
        """Connect, and call the listener with what arrives until the connection is lost.

        Args:
            since: The instant through which every change is known; None to receive only what
                comes from now on.
            listener: Receives what arrives.

        Raises:
            FetchError: The connection has ended, always; with the reason.
        """
