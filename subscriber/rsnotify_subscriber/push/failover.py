"""Which endpoints are to be open: the best that work, and others while those do not.

Theory of operation. An endpoint is closed, tried, or up; or it has failed and waits for its next
attempt.

    closed --needed--> tried --up--> up --has held--> worse ones are closed
                         |            |
                         |  failed    | lost
                         v            v
                        waits <-------+ --backoff over, needed--> tried

An endpoint is needed while too few of the better ones are up or expected to be. One is expected
that has just been tried for the first time, and one that was lost after it had held, since it is
often back at once. If it fails then, the next one is opened while it waits.

An open endpoint is closed when enough better ones have held, and have received something since
they came up: a hub that is back may not have been reached by the Source yet. Where both lead to the
same hub, the Source reaches both or neither, so the better one only has to hold. A better one that
receives nothing while a worse one does is up, but replaces none. Each loss after the first doubles
the time to hold, so that an endpoint which comes and goes does not close and open the others as
often; one that was up for long is forgiven. An endpoint that was found to receive nothing is
*mute*, and counts as lost until it receives something.

All times are seconds of one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from math import inf
from random import Random
from typing import Generic, TypeVar

from rsnotify.sync.retry import Retry

#: How long an endpoint may take to come up before the next one is tried, too.
PATIENCE = 2.0
#: How long an endpoint may take to be back that was lost after it had held.
RETURN = 0.5
#: How long an endpoint has to be up before worse ones are closed.
HOLD = 3.0
#: The longest such time, after many losses.
LONGEST_HOLD = 300.0
#: A worse one that has received nothing for so long is closed, even if the better one has not.
QUIET = 60.0
#: How much later than a worse one a better one may receive the same.
SLACK = 2.0
#: After being up for so many times the time to hold, a loss counts as the first.
_FORGIVEN = 20
_RETRY = Retry(first=0.25, most=15.0)

E = TypeVar("E", bound=Hashable)


class _EndpointState(Generic[E]):
    """The history of one endpoint."""

    def __init__(self, endpoint: E) -> None:
        self.endpoint = endpoint
        self.is_open = False
        self.is_up = False
        self.is_mute = False
        self.failures = 0
        self.losses = 0
        #: The host and port of its hub.
        self.hub_address: Hashable = None
        #: When it may be tried again.
        self.retry_at = -inf
        #: Until when it is expected to come up.
        self.expected_until = -inf
        #: When it has been up for long enough.
        self.held_at = inf
        self.forgiven_at = inf
        #: When it last received something, or came up.
        self.received_at = -inf
        #: When it replaces worse ones though it has received nothing.
        self.proven_at = inf

    def open(self, now: float) -> None:
        self.is_open = True
        if now - self.retry_at > _RETRY.most:  # failures so long ago show nothing any more
            self.failures = 0
        if not self.failures:
            self.expected_until = now + PATIENCE

    def up(self, now: float) -> None:
        doublings = min(max(self.losses - 1, 0), 64)
        hold = min(HOLD * 2.0**doublings, LONGEST_HOLD)
        self.is_open = self.is_up = True
        self.held_at, self.forgiven_at = now + hold, now + _FORGIVEN * hold
        self.received_at, self.proven_at = now, now + QUIET
        self.expected_until = -inf

    def receive(self, now: float) -> None:
        self.received_at = self.proven_at = now
        self.is_mute = False

    def down(self, now: float, retry_after: float, random: Random) -> None:
        self.expected_until = -inf
        if now >= self.held_at:
            self.failures = 0
            self.expected_until = now + RETURN
        if self.is_up:
            self.losses = 1 if now >= self.forgiven_at else self.losses + 1
        self.failures += 1
        self.retry_at = now + _RETRY.delay(self.failures, random, at_least=retry_after)
        if self.retry_at >= self.expected_until:
            self.expected_until = -inf
        self.close()

    def close(self) -> None:
        self.is_open = self.is_up = self.is_mute = False
        self.held_at = self.forgiven_at = self.proven_at = inf
        self.received_at = -inf

    def is_up_or_expected(self, now: float) -> bool:
        return (self.is_up and not self.is_mute) or now < self.expected_until

    def replaces(self, worse: _EndpointState[E], now: float) -> bool:
        has_held = self.held_at <= now and not self.is_mute
        is_same_hub = self.hub_address is not None and self.hub_address == worse.hub_address
        is_proven = self.proven_at <= now or is_same_hub
        is_as_good = (
            worse.received_at <= self.received_at + SLACK or worse.received_at + QUIET <= now
        )
        return has_held and is_proven and is_as_good

    def times(self) -> Iterable[float]:
        retry_at = -inf if self.is_open else self.retry_at
        return self.expected_until, self.held_at, self.proven_at, self.received_at + QUIET, retry_at


class EndpointFailover(Generic[E]):
    """Decides which endpoints are to be open. The caller opens them and reports the results.

    Args:
        endpoints: The endpoints, the best first.
        most: How many are to be up at the same time.
    """

    def __init__(self, endpoints: Iterable[E], random: Random, *, most: int = 1) -> None:
        self._states = [_EndpointState(endpoint) for endpoint in endpoints]
        self._random = random
        self._most = most

    def set_endpoints(self, endpoints: Iterable[E]) -> None:
        """Use these endpoints; the history of those that stay is kept."""
        known = {state.endpoint: state for state in self._states}
        self._states = [known.get(endpoint) or _EndpointState(endpoint) for endpoint in endpoints]

    def up(self, endpoint: E, now: float, hub_address: Hashable = None) -> None:
        """Note that an endpoint is up; `hub_address` is the host and port of its hub, if known."""
        state = self._state(endpoint)
        state.up(now)
        state.hub_address = hub_address

    def received(self, endpoint: E, now: float) -> None:
        self._state(endpoint).receive(now)

    def mute(self, endpoint: E) -> None:
        """Note that an endpoint is up and does not receive what it should."""
        self._state(endpoint).is_mute = True

    def down(self, endpoint: E, now: float, retry_after: float = 0.0) -> None:
        self._state(endpoint).down(now, retry_after, self._random)

    def tick(self, now: float) -> list[E]:
        """Return the endpoints that are to be open from now on, the best first."""
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
        """Return when the result of `tick` may change, if nothing happens before."""
        times = (time for state in self._states for time in state.times())
        return min((time for time in times if now < time < inf), default=None)

    def _state(self, endpoint: E) -> _EndpointState[E]:
        return next(state for state in self._states if state.endpoint == endpoint)
