"""How many connections there are, in all and of one client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from rsnotify_hub.access.clients import client_network


class ConnectionLimit:
    """The places for connections.

    Args:
        total: How many there are.
        each: How many of them one client gets.
        exempt: Tells of an address whether it may have more than that: a proxy brings many.
    """

    def __init__(self, total: int, each: int, exempt: Callable[[str], bool]) -> None:
        self._total = total
        self._each = each
        self._exempt = exempt
        self._taken: Counter[str] = Counter()
        self.count = 0

    @property
    def full(self) -> bool:
        """Whether nobody gets one more."""
        return self.count >= self._total

    def has_enough(self, address: str) -> bool:
        """Tell whether a client has all that it gets."""
        return self._taken[client_network(address)] >= self._each and not self._exempt(address)

    def take(self, address: str) -> None:
        """Take one for an address; the caller has looked whether there is one."""
        self._taken[client_network(address)] += 1
        self.count += 1

    def leave(self, address: str) -> None:
        """Give one back."""
        client = client_network(address)
        self.count -= 1
        self._taken[client] -= 1
        if not self._taken[client]:
            del self._taken[client]
