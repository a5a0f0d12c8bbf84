"""The interface of a way out of the hub: WebSub callbacks, WebSocket, MQTT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rsnotify_hub.log.store import LogEntry


class DeliveryChannel(Protocol):
    """A way out. It never refuses and never blocks: who cannot keep up, lags or is cut off."""

    def deliver(self, topic: str, entries: Sequence[LogEntry]) -> None:
        """Take what has just become durable, in the loop turn that learned of it.

        Args:
            topic: Whose log it was appended to.
            entries: At least one, in the order of the log.
        """

    def subscribers(self, topic: str) -> int:
        """Count who listens to a topic."""
