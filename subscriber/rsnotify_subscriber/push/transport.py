"""Ways in which fragments arrive. Each is a `Transport`, and knows nothing of the others."""

from __future__ import annotations

from typing import Protocol

from rsnotify.format.datetimes import Instant


class TransportListener(Protocol):
    """Who is told what arrives."""

    def up(self, hub: str | None = None) -> None:
        """Hear that fragments arrive from now on, from `since` without a hole, or with a gap.

        Args:
            hub: From where, if the way leaves that open; said anew when it is another.
        """

    def audience(self, listeners: int) -> None:
        """Hear how many hear the same, where the hub tells."""

    def gap(self) -> None:
        """Hear that the hub does not reach back to `since`."""

    def fragment(self, document: bytes) -> None:
        """Take a fragment."""


class Transport(Protocol):
    """One way to one hub."""

    async def receive(self, since: Instant | None, listener: TransportListener) -> None:
        """Connect, and tell the listener what arrives until the connection is lost.

        Args:
            since: Where to join: every change up to here is known; None for what comes now.
            listener: Who is told.

        Raises:
            FetchError: Always, at the end: why nothing arrives any more.
        """
