"""The number of open connections, in total and of one client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from rsnotify_hub.access.clients import client_network


class ConnectionLimit:
    """Counts open connections. An exempt address, such as a proxy's, has no limit of its own."""

    def __init__(self, total: int, per_client: int, exempt: Callable[[str], bool]) -> None:
        self._total = total
        self._per_client = per_client
        self._exempt = exempt
        self._open: Counter[str] = Counter()
        self.count = 0

    @property
    def is_full(self) -> bool:
        return self.count >= self._total

    def is_client_full(self, address: str) -> bool:
        return self._open[client_network(address)] >= self._per_client and not self._exempt(address)

    def acquire(self, address: str) -> None:
        """Count a new connection; the caller has checked the limits."""
        self._open[client_network(address)] += 1
        self.count += 1

    def release(self, address: str) -> None:
        client = client_network(address)
        self.count -= 1
        self._open[client] -= 1
        if not self._open[client]:
            del self._open[client]
