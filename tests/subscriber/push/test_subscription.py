"""A `PushSubscription` on a virtual clock: what its endpoints receive, and should receive."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from rsnotify.errors import Unavailable
from rsnotify.format.datetimes import Instant
from rsnotify_subscriber import Callbacks, Event, PushDown, PushUp, TransportListener, Via
from rsnotify_subscriber.fetching.sessions import Sessions
from rsnotify_subscriber.push.endpoint_failover import CONNECT_GRACE, HOLD_TIME, MAX_LAG
from rsnotify_subscriber.push.endpoints import MAX_HUBS_PER_KIND, Endpoint, EndpointFactory
from rsnotify_subscriber.push.mqtt_transport import DEFAULT_MQTT
from rsnotify_subscriber.push.push_subscription import SILENCE_GRACE, PushEvents, PushSubscription
from tests.subscriber.push.virtual import VirtualLoop, run

#: What is known when ways are joined.
KNOWN = datetime(2026, 1, 1, tzinfo=UTC)


class Hub:
    """A `Transport` that is up when a test says so."""

    def __init__(self, name: str) -> None:
        self.way = Endpoint(Via.WEBSOCKET, "topic", (name,), lambda _: self)
        self.joins = 0
        self._can = asyncio.Event()
        self._lost = asyncio.Event()
        self._listener: TransportListener | None = None

    async def receive(self, since: Instant | None, listener: TransportListener) -> None:
        self.joins += 1
        await self._can.wait()
        self._lost.clear()
        self._listener = listener
        listener.up()
        await self._lost.wait()
        raise Unavailable(self.way.hub, "lost")

    def be_there(self) -> None:
        self._can.set()

    def be_away(self) -> None:
        self._can.clear()
        self._lost.set()

    def tell(self, seconds: float) -> None:
        """Tell of everything up to so many seconds after what was known at first."""
        assert self._listener is not None
        self._listener.fragment((KNOWN + timedelta(seconds=seconds)).isoformat().encode())


class Refusing(Hub):
    """One that lets nobody in."""

    async def receive(self, since: Instant | None, listener: TransportListener) -> None:
        self.joins += 1
        raise Unavailable(self.way.hub, "it lets nobody in")


class Kept(PushEvents):
    """A `PushSubscription` that keeps one of two hubs, and its events."""

    def __init__(self) -> None:
        self.better, self.worse = Hub("better"), Hub("worse")
        ways = (self.better.way, self.worse.way)
        self.events: list[Event] = []
        self.is_up = False
        self.push = PushSubscription(
            ways, self, lambda: KNOWN, Random(0), announce=self.events.append
        )

    def up(self, hub: str | None = None) -> None:
        assert not self.is_up
        self.is_up = True

    def down(self) -> None:
        assert self.is_up
        self.is_up = False

    def fragment(self, document: bytes) -> None:
        self.covered_until = datetime.fromisoformat(document.decode())

    def names(self) -> list[str]:
        return [way.hub for way in self.push.up]

    def pull(self, *, news: bool) -> None:
        self.push.pulled(asyncio.get_running_loop().time(), news=news)


def lived(life: Callable[[Kept], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Make a test of what a `PushSubscription` lives through."""

    async def whole() -> None:
        kept = Kept()
        keeping = asyncio.create_task(kept.push.run())
        try:
            await life(kept)
        finally:
            keeping.cancel()
            await asyncio.wait({keeping})
        assert not kept.is_up

    return lambda: run(whole())


async def both_up(kept: Kept) -> None:
    """Keep the worse endpoint up for long, and then the better one, too."""
    kept.worse.be_there()
    await asyncio.sleep(CONNECT_GRACE + 60)
    kept.better.be_there()
    await asyncio.sleep(HOLD_TIME + 1)


@lived
async def test_an_endpoint_that_misses_the_changes_of_two_pulls_counts_as_lost(kept: Kept) -> None:
    kept.better.be_there()
    await asyncio.sleep(60)
    kept.pull(news=True)  # of before it was joined, for all one knows
    await asyncio.sleep(SILENCE_GRACE + 1)
    assert kept.names() == ["better"]
    kept.pull(news=True)
    kept.worse.be_there()
    await asyncio.sleep(SILENCE_GRACE - 1)
    assert kept.names() == ["better"]
    assert kept.worse.joins == 0
    await asyncio.sleep(2)
    assert kept.names() == ["worse"]
    kinds = [(type(one), one.hub) for one in kept.events if isinstance(one, PushUp | PushDown)]
    assert kinds == [(PushUp, "better"), (PushDown, "better"), (PushUp, "worse")]
    kept.better.tell(1)
    await asyncio.sleep(0)
    assert kept.names() == ["better"]
    assert kept.better.joins == 1


@lived
async def test_an_endpoint_that_receives_them_soon_does_not_count_as_lost(kept: Kept) -> None:
    kept.better.be_there()
    await asyncio.sleep(60)
    kept.pull(news=False)
    kept.pull(news=True)
    await asyncio.sleep(SILENCE_GRACE - 1)
    kept.better.tell(1)
    await asyncio.sleep(60)
    assert kept.names() == ["better"]


@lived
async def test_a_pull_that_began_before_an_endpoint_was_up_proves_nothing(kept: Kept) -> None:
    began = asyncio.get_running_loop().time()
    await asyncio.sleep(1)
    kept.better.be_there()
    await asyncio.sleep(1)
    kept.push.pulled(began, news=True)
    kept.pull(news=True)
    await asyncio.sleep(60)
    assert kept.names() == ["better"]


@lived
async def test_the_only_endpoint_is_down_while_it_receives_nothing(kept: Kept) -> None:
    kept.push.set_endpoints([kept.better.way])
    kept.better.be_there()
    await asyncio.sleep(1)
    kept.pull(news=False)
    kept.pull(news=True)
    await asyncio.sleep(SILENCE_GRACE + 1)
    assert not kept.is_up
    kept.better.tell(1)
    assert kept.is_up


@lived
async def test_a_worse_endpoint_is_closed_at_once_when_the_better_receives_the_same(
    kept: Kept,
) -> None:
    await both_up(kept)
    kept.worse.tell(1)
    await asyncio.sleep(MAX_LAG + 1)
    assert kept.names() == ["better", "worse"]
    kept.better.tell(1)
    assert kept.names() == ["better"]


@lived
async def test_changes_known_before_do_not_prove_that_an_endpoint_works(kept: Kept) -> None:
    await both_up(kept)
    kept.better.tell(0)
    kept.better.tell(-10)
    await asyncio.sleep(10)
    assert kept.names() == ["better", "worse"]
    kept.better.tell(1)
    assert kept.names() == ["better"]


@lived
async def test_an_endpoint_that_is_removed_before_it_is_opened_is_never_connected(
    kept: Kept,
) -> None:
    await asyncio.sleep(0)
    kept.push.set_endpoints([])
    kept.push.set_endpoints([kept.worse.way])
    kept.push.set_endpoints([])
    kept.worse.be_there()
    await asyncio.sleep(60)
    assert kept.worse.joins == 0
    assert kept.names() == []


@lived
async def test_the_loss_of_the_last_endpoint_is_reported_once(kept: Kept) -> None:
    kept.better.be_there()
    await asyncio.sleep(60)
    kept.better.be_away()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not kept.is_up
    kept.better.be_there()
    await asyncio.sleep(0.5)
    assert kept.names() == ["better"]


@lived
async def test_an_endpoint_that_never_comes_up_is_reported_once_and_retried(kept: Kept) -> None:
    refusing = Refusing("refusing")
    kept.push.set_endpoints([refusing.way])
    await asyncio.sleep(3600)
    assert refusing.joins > 100
    reason = "refusing: it lets nobody in"
    assert kept.events == [PushDown(Via.WEBSOCKET, "refusing", "topic", reason, 0)]


@lived
async def test_a_worse_endpoint_of_the_same_hub_is_closed_once_the_better_has_held(
    kept: Kept,
) -> None:
    kept.better, kept.worse = Hub("wss://hub.example/ws"), Hub("https://HUB.example:443/websub")
    kept.push.set_endpoints([kept.worse.way])
    kept.worse.be_there()
    await asyncio.sleep(60)
    kept.push.set_endpoints([kept.better.way, kept.worse.way])
    kept.better.be_there()
    await asyncio.sleep(HOLD_TIME - 1)
    assert kept.names() == [kept.better.way.hub, kept.worse.way.hub]
    await asyncio.sleep(2)
    assert kept.names() == [kept.better.way.hub]


# `PushSubscription` on an event loop that is not exact, as none is.


#: What passes between two looks at the clock, in seconds.
STEP = 2.0**-10


class InexactLoop(VirtualLoop):
    """Time goes on while one works, and timers fire a little early, as in whole milliseconds."""

    def __init__(self, early: float) -> None:
        super().__init__()
        self._early = early

    def time(self) -> float:
        self._passed += STEP
        return super().time()

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, **context: Any) -> Any:
        return super().call_at(when - self._early, callback, *args, **context)


class Away:
    """A hub that is down for some attempts, and records who is notified of them."""

    def __init__(self, tries: int) -> None:
        self.tries = tries
        self.is_up = asyncio.Event()

    async def receive(self, since: Instant | None, listener: TransportListener) -> None:
        self.tries -= 1
        if self.tries < 0:
            self.is_up.set()
            listener.up()
            await asyncio.Event().wait()
        raise Unavailable("hub", "it is away")


@pytest.mark.parametrize("steps", range(16))
def test_a_lost_hub_is_tried_again_however_early_a_timer_fires(steps: int) -> None:
    async def live() -> None:
        hub = Away(10)
        way = Endpoint(Via.WEBSOCKET, "topic", ("hub",), lambda _: hub)
        keeping = asyncio.create_task(
            PushSubscription([way], PushEvents(), lambda: None, Random(steps)).run()
        )
        await asyncio.wait_for(hub.is_up.wait(), 600)
        keeping.cancel()
        await asyncio.wait({keeping})

    with asyncio.Runner(loop_factory=lambda: InexactLoop(steps * STEP / 2)) as runner:
        runner.run(live())


# Which ways there are to what a Source offers.


def test_of_very_many_hubs_only_the_first_are_used() -> None:
    kinds = "wss", "mqtts", "https"
    hubs = [f"{kind}://h{n}.example/" for n in range(5_000) for kind in kinds]
    ways = EndpointFactory(
        Via.AUTO, Sessions("http://a.example/"), Callbacks("http://b.example/"), DEFAULT_MQTT
    )
    found = ways.endpoints("http://a.example/topic", hubs)
    assert Counter(way.kind for way in found) == {
        Via.WEBSOCKET: MAX_HUBS_PER_KIND,
        Via.MQTT: MAX_HUBS_PER_KIND,
        Via.WEBSUB: 1,
    }
    assert [way.hub for way in found[:2]] == hubs[0:6:3]
    assert len(found[-1].hubs) == MAX_HUBS_PER_KIND
