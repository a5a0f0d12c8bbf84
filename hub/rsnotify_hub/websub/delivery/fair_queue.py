"""Which waiting request starts next when more wait than may run at once.

Theory of operation. A queue has a capacity, of which each host gets at most a share. Hosts that
have something waiting are served round-robin, so a host with a thousand callbacks delays the
others no more than a host with one. Nothing here does I/O or reads a clock.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from msgspec import Struct


class QueueItem(Protocol):
    @property
    def host(self) -> str: ...


T = TypeVar("T", bound=QueueItem)


class Capacity(Struct, frozen=True):
    count: int
    per_host: int


class FairQueue(Generic[T]):
    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._waiting: OrderedDict[str, deque[T]] = OrderedDict()
        self._running: dict[T, float] = {}
        self._running_hosts: dict[str, int] = {}

    def add(self, item: T) -> None:
        self._waiting.setdefault(item.host, deque()).append(item)

    def pop(self) -> T | None:
        """Remove and return the waiting item that may run next; None if none may."""
        if not self._waiting or len(self._running) >= self._capacity.count:
            return None
        host = next((host for host in self._waiting if self._has_share(host)), None)
        if host is None:
            return None
        found = self._waiting[host].popleft()
        self._waiting.move_to_end(host)
        if not self._waiting[host]:
            del self._waiting[host]
        return found

    def _has_share(self, host: str) -> bool:
        return self._running_hosts.get(host, 0) < self._capacity.per_host

    def has_capacity(self, host: str) -> bool:
        return len(self._running) < self._capacity.count and self._has_share(host)

    def start_at_once(self, item: T, now: float) -> bool:
        """Start an item that does not wait, if there is capacity; return whether there was."""
        running = self._running_hosts.get(item.host, 0)
        if running >= self._capacity.per_host or len(self._running) >= self._capacity.count:
            return False
        self._running[item] = now
        self._running_hosts[item.host] = running + 1
        return True

    def start(self, item: T, now: float) -> None:
        """Count an item as running since `now`, in seconds of any monotonic clock."""
        self._running[item] = now
        self._running_hosts[item.host] = self._running_hosts.get(item.host, 0) + 1

    def remove(self, item: T) -> None:
        if self._running.pop(item, None) is not None:
            self._running_hosts[item.host] -= 1
            if not self._running_hosts[item.host]:
                del self._running_hosts[item.host]
        elif item in self._waiting.get(item.host, ()):
            self._waiting[item.host].remove(item)
            if not self._waiting[item.host]:
                del self._waiting[item.host]

    def blocking(self, before: float) -> Iterator[T]:
        """Yield what runs since `before` or earlier while another waits for its capacity."""
        full = len(self._running) >= self._capacity.count
        for item, started in list(self._running.items()):
            if started > before:
                return
            if self._waiting and (full or item.host in self._waiting):
                yield item

    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def running(self) -> list[T]:
        return list(self._running)

    def clear(self) -> None:
        self._waiting.clear()
