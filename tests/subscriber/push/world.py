"""Endpoints that can or cannot be reached, with a real `EndpointFailover` and a test clock."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from rsnotify_subscriber.push.endpoint_failover import EndpointFailover


class World:
    """Endpoints named by letters.

    Attributes:
        can: Those that are reachable: they come up as soon as they are opened.
        places: The hubs of those that are known to have the same one.
        silent: Those that neither come up nor fail.
        telling: Those that receive something each second while they are up.
        open: Those that are open.
        tries: How often each was opened.
    """

    def __init__(self, ways: str = "abc", *, can: str = "abc", most: int = 1) -> None:
        self.failover = EndpointFailover(ways, Random(0), most=most)
        self.now = 1000.0
        self._beat = 1000.5
        self.can = set(can)
        self.places: dict[str, str] = {}
        self.silent: set[str] = set()
        self.telling = set(ways)
        self.wish = 0.0
        self.open = ""
        self.up: set[str] = set()
        self.tries: dict[str, int] = {}

    def run(self, seconds: float = 0.0) -> str:
        """Advance the time; return the endpoints that are open then."""
        until = self.now + seconds
        self._settle()
        while (due := self._next()) <= until:
            assert due > self.now
            self.now = due
            if due == self._beat:
                self._tell()
            self._settle()
        self.now = until
        return self.open

    def _next(self) -> float:
        due = self.failover.due(self.now)
        return self._beat if due is None else min(due, self._beat)

    def _tell(self) -> None:
        self._beat += 1.0
        for way in self.up & self.telling:
            self.failover.received(way, self.now)

    def lose(self, ways: Iterable[str]) -> None:
        """Lose endpoints, which may be back at once."""
        for way in ways:
            self._down(way)

    def _settle(self) -> None:
        """Open, connect and fail endpoints until nothing changes any more."""
        self._arrange()
        while news := [way for way in self.open if self._is_news(way)]:
            if news[0] in self.can:
                self.up.add(news[0])
                self.failover.up(news[0], self.now, self.places.get(news[0]))
            else:
                self._down(news[0])
            self._arrange()

    def _is_news(self, way: str) -> bool:
        if way in self.can:
            return way not in self.up
        return way in self.up or way not in self.silent

    def _down(self, way: str) -> None:
        self.up.discard(way)
        self.open = self.open.replace(way, "")
        self.failover.down(way, self.now, self.wish)

    def _arrange(self) -> None:
        before, self.open = self.open, "".join(self.failover.tick(self.now))
        self.up &= set(self.open)
        for way in set(self.open) - set(before):
            self.tries[way] = self.tries.get(way, 0) + 1
