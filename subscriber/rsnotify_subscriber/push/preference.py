"""Which ways are to be open: the best that work, and others while those do not.

Theory of operation. A way is closed, tried, up, or it has failed and waits for its next try.

    closed --its turn--> tried --up--> up --held--> worse ones are closed
                          |             |
                          |  failed     | lost
                          v             v
                         waits <--------+ --backoff over, its turn--> tried

It is a way's turn as long as too few of the better ones are up, or may be in a moment. That may be
one that was begun with a moment ago, and one that is lost and had held: it is often back at once.
If it fails then, the next is opened while it waits.

An open way is closed when enough better ones have held and told something since they came up: a hub
that is back may not have been reached by the Source yet. Where both lead to the same hub, the
Source reaches both or neither, so the better one only has to hold. One that tells nothing while a
worse one does is up, but in the place of none. Each loss after the first makes holding take twice
as long, so that a way which comes and goes does not close and open the others as often; one that
was up for long is forgiven. One that was found to tell nothing is *mute*, and as good as away until
it does.

All times are seconds of one clock that never jumps.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from math import inf
from random import Random
from typing import Generic, TypeVar

from rsnotify.sync.retry import Retry

#: How long a way may take to come up before the next one is begun with too.
PATIENCE = 2.0
#: How long one may take to be back that is lost after it had held.
RETURN = 1.0
#: How long a way has to be up before worse ones are closed.
HOLD = 3.0
#: How long that is at most, after many losses.
LONGEST_HOLD = 300.0
#: After so long without a word from a worse one it is closed, even if the better told nothing.
QUIET = 60.0
#: By how much later than a worse one a way may tell the same.
SLACK = 2.0
#: After so many times of that a loss is as the first one.
_FORGIVEN = 20
_RETRY = Retry(first=0.25, most=15.0)

W = TypeVar("W", bound=Hashable)


class _EndpointState(Generic[W]):
    """What is known of one way."""

    def __init__(self, way: W) -> None:
        self.way = way
        self.is_open = False
        self.is_up = False
        self.failures = 0
        self.losses = 0
        #: The host and port of its hub.
        self.place: Hashable = None
        #: When it may be tried again.
        self.again = -inf
        #: Until when it may be up in a moment.
        self.hopeful = -inf
        #: When it has been up for long enough.
        self.held = inf
        self.forgiven = inf
        self.is_mute = False
        #: When it told something last, or came up.
        self.heard = -inf
        #: When it counts though it has told nothing.
        self.proven = inf

    def open(self, now: float) -> None:
        self.is_open = True
        if now - self.again > _RETRY.most:  # what it was like then says nothing any more
            self.failures = 0
        if not self.failures:
            self.hopeful = now + PATIENCE

    def up(self, now: float) -> None:
        doublings = min(max(self.losses - 1, 0), 64)
        hold = min(HOLD * 2.0**doublings, LONGEST_HOLD)
        self.is_open = self.is_up = True
        self.held, self.forgiven = now + hold, now + _FORGIVEN * hold
        self.heard, self.proven = now, now + QUIET
        self.hopeful = -inf

    def tell(self, now: float) -> None:
        self.heard = self.proven = now
        self.is_mute = False

    def down(self, now: float, wish: float, random: Random) -> None:
        self.hopeful = -inf
        if now >= self.held:
            self.failures = 0
            self.hopeful = now + RETURN
        if self.is_up:
            self.losses = 1 if now >= self.forgiven else self.losses + 1
        self.failures += 1
        self.again = now + _RETRY.delay(self.failures, random, at_least=wish)
        if self.again >= self.hopeful:
            self.hopeful = -inf
        self.close()

    def close(self) -> None:
        self.is_open = self.is_up = self.is_mute = False
        self.held = self.forgiven = self.proven = inf
        self.heard = -inf

    def is_near(self, now: float) -> bool:
        return (self.is_up and not self.is_mute) or now < self.hopeful

    def replaces(self, worse: _EndpointState[W], now: float) -> bool:
        has_held = self.held <= now and not self.is_mute
        is_proven = self.proven <= now or (self.place is not None and self.place == worse.place)
        is_as_good = worse.heard <= self.heard + SLACK or worse.heard + QUIET <= now
        return has_held and is_proven and is_as_good

    def times(self) -> Iterable[float]:
        again = -inf if self.is_open else self.again
        return self.hopeful, self.held, self.proven, self.heard + QUIET, again


class EndpointPreference(Generic[W]):
    """Says which ways are to be open. What is kept open elsewhere is told to it.

    Args:
        ways: The ways, the best first.
        most: How many are to be up at a time.
        random: The source of jitter.
    """

    def __init__(self, ways: Iterable[W], random: Random, *, most: int = 1) -> None:
        self._lines = [_EndpointState(way) for way in ways]
        self._random = random
        self._most = most

    def change(self, ways: Iterable[W]) -> None:
        """Take other ways; what is known of those that stay is kept."""
        known = {line.way: line for line in self._lines}
        self._lines = [known.get(way) or _EndpointState(way) for way in ways]

    def up(self, way: W, now: float, place: Hashable = None) -> None:
        """Record that a way is up.

        Args:
            way: Which.
            now: The time.
            place: The host and port of its hub, if they are known.
        """
        line = self._line(way)
        line.up(now)
        line.place = place

    def heard(self, way: W, now: float) -> None:
        """Hear that a way told something."""
        self._line(way).tell(now)

    def mute(self, way: W) -> None:
        """Hear that a way that is up does not tell what it should."""
        self._line(way).is_mute = True

    def down(self, way: W, now: float, wish: float = 0.0) -> None:
        """Hear that a way that was open has failed, or is lost.

        Args:
            way: Which.
            now: The time.
            wish: How long the other side asked to be left alone.
        """
        self._line(way).down(now, wish, self._random)

    def tick(self, now: float) -> list[W]:
        """Return the ways that are to be open from now on, the best first."""
        better: list[_EndpointState[W]] = []
        for line in self._lines:
            if line.is_open:
                if self._has_most(one.replaces(line, now) for one in better):
                    line.close()
            elif line.again <= now and not self._has_most(one.is_near(now) for one in better):
                line.open(now)
            better.append(line)
        return [line.way for line in self._lines if line.is_open]

    def _has_most(self, are: Iterable[bool]) -> bool:
        return sum(are) >= self._most

    def due(self, now: float) -> float | None:
        """Return when `tick` may have something else to say, if nothing happens before."""
        times = (time for line in self._lines for time in line.times())
        return min((time for time in times if now < time < inf), default=None)

    def _line(self, way: W) -> _EndpointState[W]:
        return next(line for line in self._lines if line.way == way)
