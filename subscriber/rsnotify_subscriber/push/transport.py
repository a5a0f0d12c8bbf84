"""The interface of push transports."""

from __future__ import annotations

from typing import Protocol

from rsnotify.format.datetimes import Instant


class TransportListener(Protocol):
    """Receives what a transport reports."""

    def up(self, hub: str | None = None) -> None:
        """Handle the start of delivery: from `since` without a gap, unless `gap` is called.

        `hub` is given if the endpoint does not determine it. `up` is called again when another hub
        takes over.
        """

    def audience(self, listeners: int) -> None:
        """Handle the number of subscribers to the topic, as reported by the hub."""

    def gap(self) -> None:
        """Handle a gap: the hub no longer has all fragments after `since`."""

    def fragment(self, document: bytes) -> None:
        """Handle a fragment."""


class Transport(Protocol):
    """One connection to one hub."""

    async def receive(self, since: Instant | None, listener: TransportListener) -> None:
        """Connect, and pass fragments to the listener until the connection is lost.

        Args:
            since: The instant up to which every change is known, or None to receive only new
                fragments.
            listener: Receives the fragments.

        Raises:
            FetchError: The connection was lost, for the given reason. Always raised in the end.
        """
