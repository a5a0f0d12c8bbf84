"""Whose turn it is to be asked, when more callbacks wait than may be asked at once.

Theory of operation. A lane has so many places, of which one host gets a part. Who waits is
served host by host in a ring, so one with a thousand callbacks takes no more of the others' time
than one with a single one. Nothing here does I/O or reads a clock.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from msgspec import Struct


class QueueItem(Protocol):
    """What waits in a lane, and then has a place in it."""

    @property
    def host(self) -> str:
        """Return the host that shares places with others of the same."""


T = TypeVar("T", bound=QueueItem)


class Capacity(Struct, frozen=True):
    """How much there may be at once.

    Args:
        count: Places in all.
        per_host: How many of them one host may have.
    """

    count: int
    per_host: int


class FairQueue(Generic[T]):
    """Places, and who waits for one.

    Args:
        places: How many there are.
    """

    def __init__(self, places: Capacity) -> None:
        self._places = places
        self._waiting: OrderedDict[str, deque[T]] = OrderedDict()
        self._inside: dict[T, float] = {}
        self._hosts: dict[str, int] = {}

    def wait(self, traveller: T) -> None:
        """Stand behind the others of the same host."""
        self._waiting.setdefault(traveller.host, deque()).append(traveller)

    def next(self) -> T | None:
        """Return whose turn it is, who then waits no longer; None when nobody can go in."""
        if not self._waiting or len(self._inside) >= self._places.count:
            return None
        host = next((host for host in self._waiting if self._has_place(host)), None)
        if host is None:
            return None
        found = self._waiting[host].popleft()
        self._waiting.move_to_end(host)
        if not self._waiting[host]:
            del self._waiting[host]
        return found

    def _has_place(self, host: str) -> bool:
        return self._hosts.get(host, 0) < self._places.per_host

    def has_place(self, host: str) -> bool:
        """Tell whether one more of this host could go in."""
        return len(self._inside) < self._places.count and self._has_place(host)

    def enter(self, traveller: T, now: float) -> None:
        """Take a place, in seconds of any clock that does not jump."""
        self._inside[traveller] = now
        self._hosts[traveller.host] = self._hosts.get(traveller.host, 0) + 1

    def leave(self, traveller: T) -> None:
        """Let go of a place, or wait no longer; in neither it changes nothing."""
        if self._inside.pop(traveller, None) is not None:
            self._hosts[traveller.host] -= 1
            if not self._hosts[traveller.host]:
                del self._hosts[traveller.host]
        elif traveller in self._waiting.get(traveller.host, ()):
            self._waiting[traveller.host].remove(traveller)
            if not self._waiting[traveller.host]:
                del self._waiting[traveller.host]

    def in_the_way(self, before: float) -> Iterator[T]:
        """Return who went in at or before an instant and has a place that somebody waits for."""
        full = len(self._inside) >= self._places.count
        for traveller, entered in list(self._inside.items()):
            if entered > before:
                return
            if self._waiting and (full or traveller.host in self._waiting):
                yield traveller

    def is_wanted(self) -> bool:
        """Tell whether anybody waits."""
        return bool(self._waiting)

    def waiting(self) -> int:
        """Count who waits."""
        return sum(map(len, self._waiting.values()))

    def inside(self) -> list[T]:
        """Return who has a place."""
        return list(self._inside)

    def clear(self) -> None:
        """Send away all who wait."""
        self._waiting.clear()
