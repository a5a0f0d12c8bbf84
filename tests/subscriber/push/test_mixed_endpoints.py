"""Four endpoints that come and go in a `PushSubscription` lead to the state of a single one."""

from __future__ import annotations

import asyncio
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rsnotify.errors import Unavailable
from rsnotify.format.datetimes import Instant
from rsnotify.format.reader import read_document
from rsnotify.format.writer import write_document
from rsnotify_subscriber import TransportListener, Via
from rsnotify_subscriber.push.endpoint_failover import HOLD_TIME, MAX_HOLD_TIME
from rsnotify_subscriber.push.endpoints import Endpoint
from rsnotify_subscriber.push.push_subscription import PushEvents, PushSubscription
from tests.core.mixed import HISTORIES, Mixed, deliver_perfectly, through
from tests.core.mixed import Connection as Line
from tests.core.world import OFFER, PATIENT, Destination, Source
from tests.examples_count import examples
from tests.subscriber.push.virtual import run


class Transport:
    """A way that can be had or not."""

    def __init__(self, line: Line, destination: Destination) -> None:
        self._line = line
        self._destination = destination
        self._lost = asyncio.Event()
        self._listener: TransportListener | None = None
        self.can = True

    async def receive(self, since: Instant | None, listener: TransportListener) -> None:
        assert since == self._destination.follower.known
        self._lost.clear()
        if self.can:
            gap = self._line.join(since)
            self._listener = listener
            listener.up()
            if gap:
                listener.gap()
            try:
                await self._lost.wait()
            finally:
                self._listener = None
                self._line.lose()
        raise Unavailable("hub", "it is away")

    def lose(self) -> None:
        self.can = False
        self._lost.set()

    def deliver(self, place: int, *, take: bool) -> None:
        """Deliver one message that is in flight."""
        wire = self._line.wire
        if wire and self._listener is not None:
            number = place % len(wire)
            self._listener.fragment(write_document(wire.pop(number) if take else wire[number]))


class Kept(Mixed, PushEvents):
    """A Destination with a `PushSubscription`, which must call it in the right order."""

    def __init__(self, source: Source, destination: Destination, random: Random, most: int) -> None:
        super().__init__(source, destination)
        self._random = random
        self._most = most
        self.transports = [Transport(line, destination) for line in self.connections]
        kinds = (Via.WEBSOCKET, Via.MQTT, Via.XMPP, Via.WEBSUB)
        self.kept = [
            Endpoint(kind, "topic", (kind.value,), lambda _, one=one: one)
            for kind, one in zip(kinds, self.transports, strict=True)
        ]
        self.is_up = False

    def _join(self, way: Line) -> None:
        """Join nothing by itself."""

    def begin(self) -> None:
        self.push = PushSubscription(
            self.kept, self, lambda: self.destination.follower.known, self._random, most=self._most
        )
        self._keeping = asyncio.create_task(self.push.run())

    async def end(self) -> None:
        self._keeping.cancel()
        await asyncio.wait({self._keeping})
        assert not self.is_up

    # What the `PushSubscription` tells

    def up(self, hub: str | None = None) -> None:
        assert not self.is_up
        self.is_up = True
        self.destination.push_up()

    def down(self) -> None:
        assert self.is_up
        self.is_up = False
        self.destination.push_down()

    def gap(self) -> None:
        self.destination.push_gap()

    def fragment(self, document: bytes) -> None:
        read = read_document(document)
        self.destination.push(read)
        self.covered_until = read.until

    # What happens

    async def live(self, step: tuple) -> None:
        match step:
            case "wait", seconds:
                self.destination.tick(seconds)
                await asyncio.sleep(seconds)
            case ("crash",):
                await self.end()
                self.destination.restart()
                self.begin()
            case ("change" | "publish" | "work", *_):
                self.play(step)
            case what, number, *place:
                self._happens(self.transports[number], what, place[0] if place else 0)
        for _ in range(5):
            await asyncio.sleep(0)

    def _happens(self, transport: Transport, what: str, place: int) -> None:
        match what:
            case "lose":
                transport.lose()
            case "regain":
                transport.can = True
            case "deliver" | "double":
                transport.deliver(place, take=what == "deliver")

    async def let_all_come(self) -> None:
        """Deliver all messages that are in flight."""
        for transport in self.transports:
            for _ in range(len(self.source.history) + 10):
                transport.deliver(0, take=True)
        await asyncio.sleep(0)


async def live_through(kept: Kept, single: Destination, steps: list[tuple]) -> None:
    source, destination = kept.source, kept.destination
    kept.begin()
    single.settle()
    for step in steps:
        if step[0] == "emit":
            deliver_perfectly(source, single, kept.emit(step[1]))
        else:
            await kept.live(step)
    destination.broken = 0.0
    for transport in kept.transports:
        transport.can = True
    await asyncio.sleep(2 * MAX_HOLD_TIME)
    assert kept.push.up == kept.kept[: len(kept.push.up)]
    assert len(kept.push.up) == min(kept._most, len(kept.kept))
    source.finish(OFFER)
    for _ in range(2):  # what is left, then a heartbeat
        deliver_perfectly(source, single, kept.emit(len(source.history) + 1))
    await kept.let_all_come()
    destination.settle()
    destination.poll()
    kept.transports[0].lose()
    await asyncio.sleep(HOLD_TIME)
    assert kept.is_up, "it fell over to the next"
    await kept.end()
    single.settle()
    single.poll()


@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.too_slow])
@given(
    source=st.builds(Source, per_list=st.integers(1, 5), kept=st.sampled_from([0, 3, 100])),
    steps=HISTORIES,
    most=st.integers(1, 4),
    broken=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 2**16),
)
def test_any_endpoints_that_come_and_go_lead_to_the_same_state_as_one_endpoint(
    source: Source, steps: list[tuple], most: int, broken: float, seed: int
) -> None:
    single = Destination(source, Random(seed))
    destination = Destination(source, Random(seed), pace=PATIENT)
    destination.broken = broken
    run(live_through(Kept(source, destination, Random(seed), most), single, steps))
    assert destination.content == single.content == source.state
    assert through(destination) == through(single)
