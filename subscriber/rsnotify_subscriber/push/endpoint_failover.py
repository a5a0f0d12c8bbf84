"""The choice between endpoints of a topic: the best that work, and others while those do not.

`EndpointFailover` decides which endpoints should be open. An endpoint is closed, being tried, or
up, or it has failed and waits for its next attempt:

    closed --needed--> tried --up--> up --has held--> worse ones are closed
                         |            |
                         |  failed    | lost
                         v            v
                        waits <-------+ --backoff over, needed--> tried

An endpoint is needed while too few better ones are up or expected to be up. An endpoint is expected
if it is being tried for the first time, or if it was lost after it had held: such an endpoint often
reconnects at once. If it then fails, the next one is opened during the backoff.

An open endpoint is closed when enough better ones have held and have received something since they
came up: the Source may not have reconnected yet to a hub that has just restarted. If both endpoints
lead to the same hub, the Source reaches both or neither, so the better one only has to hold. A
better endpoint that receives nothing while a worse one does is up, but replaces none. Each loss
after the first doubles the time to hold, so that an unstable endpoint does not close and reopen the
others each time. Losses are forgotten after a long time up. An endpoint that receives nothing is
*mute*, and counts as lost until it receives something.

All times are seconds on one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from math import inf
from random import Random
from typing import Generic, TypeVar

from rsnotify.sync.retry import Retry

#: Seconds for an endpoint to come up before the next one is tried as well.
CONNECT_GRACE = 2.0
#: Seconds for an endpoint that was lost after it had held to reconnect.
RECONNECT_GRACE = 0.5
#: Seconds for which an endpoint must stay up before worse ones are closed.
HOLD_TIME = 3.0
#: Maximum of these seconds, after many losses.
MAX_HOLD_TIME = 300.0
#: Seconds after which a silent endpoint is closed even if the better one is silent, too.
SILENCE_LIMIT = 60.0
#: Maximum seconds by which a better endpoint may receive a fragment later than a worse one.
MAX_LAG = 2.0
#: After this many hold times without a loss, earlier losses no longer count.
_HOLDS_TO_FORGET = 20
_RETRY = Retry(first=0.25, most=15.0)

E = TypeVar("E", bound=Hashable)


class _EndpointState(Generic[E]):
    """The history of one endpoint."""

    def __init__(self, endpoint: E) -> None:
        self.endpoint = endpoint
        self.failures = 0
        self.losses = 0
        #: The host and port of its hub.
        self.hub_address: Hashable = None
        #: When the endpoint may be tried again.
        self.retry_at = -inf
        #: Until when it is expected to come up.
        self.expected_until = -inf
        self.close()

    def open(self, now: float) -> None:
        self.is_open = True
        if now - self.retry_at > _RETRY.most:  # failures so long ago no longer matter
            self.failures = 0
        if not self.failures:
            self.expected_until = now + CONNECT_GRACE

    def up(self, now: float) -> None:
        doublings = min(max(self.losses - 1, 0), 64)
        hold = min(HOLD_TIME * 2.0**doublings, MAX_HOLD_TIME)
        self.is_open = self.is_up = True
        self.held_at, self.losses_end = now + hold, now + _HOLDS_TO_FORGET * hold
        self.received_at, self.proven_at = now, now + SILENCE_LIMIT
        self.expected_until = -inf

    def receive(self, now: float) -> None:
        self.received_at = self.proven_at = now
        self.is_mute = False

    def down(self, now: float, retry_after: float, random: Random) -> None:
        self.expected_until = -inf
        if now >= self.held_at:
            self.failures = 0
            self.expected_until = now + RECONNECT_GRACE
        if self.is_up:
            self.losses = 1 if now >= self.losses_end else self.losses + 1
        self.failures += 1
        self.retry_at = now + _RETRY.delay(self.failures, random, at_least=retry_after)
        if self.retry_at >= self.expected_until:
            self.expected_until = -inf
        self.close()

    def close(self) -> None:
        self.is_open = self.is_up = self.is_mute = False
        #: When it will have held, and when its losses no longer count.
        self.held_at = self.losses_end = inf
        #: When it replaces worse ones even if it has received nothing.
        self.proven_at = inf
        #: When it came up or last received something.
        self.received_at = -inf

    def is_up_or_expected(self, now: float) -> bool:
        return (self.is_up and not self.is_mute) or now < self.expected_until

    def replaces(self, worse: _EndpointState[E], now: float) -> bool:
        has_held = self.held_at <= now and not self.is_mute
        is_same_hub = self.hub_address is not None and self.hub_address == worse.hub_address
        is_proven = self.proven_at <= now or is_same_hub
        keeps_up = worse.received_at <= self.received_at + MAX_LAG
        is_worse_silent = worse.received_at + SILENCE_LIMIT <= now
        return has_held and is_proven and (keeps_up or is_worse_silent)

    def deadlines(self) -> Iterable[float]:
        silent_at = self.received_at + SILENCE_LIMIT
        retry_at = -inf if self.is_open else self.retry_at
        return self.expected_until, self.held_at, self.proven_at, silent_at, retry_at


class EndpointFailover(Generic[E]):
    """Decides which endpoints should be open. The caller opens them and reports the results.

    Args:
        endpoints: The endpoints, best first.
        most: Number of endpoints that should be up at the same time.
    """

    def __init__(self, endpoints: Iterable[E], random: Random, *, most: int = 1) -> None:
        self._states = [_EndpointState(endpoint) for endpoint in endpoints]
        self._random = random
        self._most = most

    def set_endpoints(self, endpoints: Iterable[E]) -> None:
        """Replace the endpoints, and keep the history of those that remain."""
        known = {state.endpoint: state for state in self._states}
        self._states = [known.get(endpoint) or _EndpointState(endpoint) for endpoint in endpoints]

    def up(self, endpoint: E, now: float, hub_address: Hashable = None) -> None:
        """Record that an endpoint is up. `hub_address` is its hub's host and port, if known."""
        state = self._state(endpoint)
        state.up(now)
        state.hub_address = hub_address

    def received(self, endpoint: E, now: float) -> None:
        self._state(endpoint).receive(now)

    def mute(self, endpoint: E) -> None:
        """Record that an endpoint is up, but does not receive what it should."""
        self._state(endpoint).is_mute = True

    def down(self, endpoint: E, now: float, retry_after: float = 0.0) -> None:
        self._state(endpoint).down(now, retry_after, self._random)

    def tick(self, now: float) -> list[E]:
        """Return the endpoints that should be open from now on, best first."""
        better: list[_EndpointState[E]] = []
        for state in self._states:
            if state.is_open:
                if self._are_enough(one.replaces(state, now) for one in better):
                    state.close()
            elif state.retry_at <= now and not self._are_enough(
                one.is_up_or_expected(now) for one in better
            ):
                state.open(now)
            better.append(state)
        return [state.endpoint for state in self._states if state.is_open]

    def _are_enough(self, better: Iterable[bool]) -> bool:
        return sum(better) >= self._most

    def due(self, now: float) -> float | None:
        """Return when `tick` may next return something else if no endpoint changes before."""
        times = (time for state in self._states for time in state.deadlines())
        return min((time for time in times if now < time < inf), default=None)

    def _state(self, endpoint: E) -> _EndpointState[E]:
        return next(state for state in self._states if state.endpoint == endpoint)
