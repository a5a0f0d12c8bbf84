"""The interface of the transports to Destinations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from rsnotify_hub.fragments import Fragment
from rsnotify_hub.store.interface import LogEntry


class DeliveryChannel(ABC):
    """A transport to Destinations: WebSub callbacks, live connections or a broker.

    A channel accepts all entries, and never blocks. A subscriber that is too slow lags or is
    disconnected.
    """

    @abstractmethod
    def deliver(self, topic: str, entries: Sequence[LogEntry]) -> None:
        """Deliver entries that have just become durable: at least one, in log order."""

    def deliver_early(  # noqa: B027  (most transports only deliver what is durable)
        self, topic: str, fragments: Sequence[Fragment]
    ) -> None:
        """Deliver fragments that are still being written, if the transport permits it.

        The next call for the topic is either `deliver` with the same fragments, or `write_failed`.
        """

    def write_failed(self, topic: str) -> None:  # noqa: B027
        """Discard the fragments of `deliver_early`, so that later subscribers do not get them."""

    def subscribers(self, topic: str) -> int:
        """Return the number of subscribers to a topic; 0 if the channel does not count them."""
        return 0
