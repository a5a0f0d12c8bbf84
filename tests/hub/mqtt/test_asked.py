"""How long a part is made for the broker, and what happens to it then."""

from __future__ import annotations

import pytest

from rsnotify.errors import Unavailable
from rsnotify.runtime.mqtt.names import PREFIX
from rsnotify.runtime.mqtt.refusals import ConnectionRefused
from rsnotify.runtime.mqtt.selection_requests import LEASE
from rsnotify.selection.push_selection import PushSelection
from rsnotify_hub.mqtt import asked, bridge
from rsnotify_hub.mqtt.asked import Asked
from rsnotify_hub.mqtt.sending import Sending
from rsnotify_hub.selecting.streams import Stream
from tests.hub.conftest import RunHub
from tests.hub.helpers import TOPIC, LogWatch
from tests.hub.mqtt.conftest import Listen
from tests.hub.mqtt.test_asking import MAPS, NAME, ask, run_asked, span
from tests.hub.selections import BASE, named

__all__ = ["run_asked"]

OTHER = PushSelection(prefixes=(BASE + "b",))
OTHER_NAME = PREFIX + OTHER.digest(TOPIC)
THIRD = PushSelection(prefixes=(BASE + "c",))


class Time:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    """Tells when leases end."""
    found = Time()
    monkeypatch.setattr(asked, "_now", found)
    monkeypatch.setattr(bridge, "_HOUSEKEEPING_SECONDS", 0.05)
    return found


async def test_a_part_that_nobody_asked_for_again_gives_way_to_another(
    run_asked: RunHub, listen: Listen, watch: LogWatch, time: Time
) -> None:
    async with (
        run_asked(max_selections=1) as hub,
        listen(NAME) as first,
        listen(OTHER_NAME) as second,
    ):
        await hub.accepted(named(0, maps_a=1, b=1))
        await ask(first)
        assert span((await first.next()).payload) == (0, 1, [1])
        time.seconds = LEASE / 2  # by when it is asked for again, if anybody wants it
        await ask(second, OTHER)
        await watch.line("refused what came over MQTT", "enough parts")
        time.seconds = LEASE * 0.7
        await ask(second, OTHER)
        assert span((await second.next()).payload) == (0, 1, [1])
        assert (await first.next()).payload == b""


async def test_a_part_that_has_given_way_needs_room_like_any_other(
    run_asked: RunHub,
    listen: Listen,
    watch: LogWatch,
    time: Time,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bridge, "_HOUSEKEEPING_SECONDS", 3_600.0)
    async with (
        run_asked(max_selections=1) as hub,
        listen(NAME) as first,
        listen(OTHER_NAME) as second,
    ):
        await hub.accepted(named(0, maps_a=1, b=1))
        await ask(first)
        await first.next()
        time.seconds = LEASE * 0.7
        await ask(second, OTHER)
        await second.next()
        await ask(first)
        await watch.line("refused what came over MQTT", "enough parts")


async def test_what_was_asked_for_again_in_time_stays_and_the_others_give_way_in_turn(
    run_asked: RunHub, listen: Listen, time: Time
) -> None:
    async with run_asked(max_selections=2) as hub, listen("rsnotify/+") as ear:
        await hub.accepted(named(0, maps_a=1))
        await ask(ear)
        await ask(ear, OTHER)
        made = set[str]()
        while not {NAME, OTHER_NAME} <= made:
            made.add((await ear.next()).topic)
        time.seconds = LEASE * 0.6
        await ask(ear)
        time.seconds = LEASE * 0.7
        await ask(ear, THIRD)
        while (message := await ear.next()).payload:
            pass
        assert message.topic == OTHER_NAME


@pytest.mark.parametrize("error", [Unavailable, ConnectionRefused])
async def test_what_the_broker_did_not_forget_it_is_told_to_forget_again(
    run_asked: RunHub,
    listen: Listen,
    watch: LogWatch,
    time: Time,
    monkeypatch: pytest.MonkeyPatch,
    error: type[Unavailable],
) -> None:
    end, tries = Sending.end, []

    async def fail_once(self: Sending, stream: Stream) -> None:
        tries.append(stream)
        if len(tries) == 1:
            raise error("mqtt://broker.example", "not now")
        await end(self, stream)

    monkeypatch.setattr(Sending, "end", fail_once)
    async with run_asked() as hub, listen(NAME) as ear:
        await hub.accepted(named(0, maps_a=1))
        await ask(ear)
        assert (await ear.next()).payload
        time.seconds = LEASE + 1
        assert (await ear.next()).payload == b""
        assert tries == [Stream(TOPIC, MAPS)] * 2
        was_lost = any("the MQTT broker is away" in line for line in watch.lines)
        assert was_lost is (error is Unavailable), "a refusal ends no connection"


async def test_a_part_that_ended_when_it_was_just_to_be_sent_can_be_asked_for_again(
    run_asked: RunHub, listen: Listen, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    wake, drop, held = Sending.wake, Asked.drop, list[Sending]()

    def drop_just_then(self: Asked, stream: Stream) -> None:
        wake(held[0], stream.topic)
        drop(self, stream)

    async with run_asked() as hub, listen(NAME) as ear:
        await hub.accepted(named(0, maps_a=1))
        await ask(ear)
        assert span((await ear.next()).payload) == (0, 1, [1])
        with monkeypatch.context() as patch:
            patch.setattr(Sending, "wake", lambda self, topic: held.append(self))
            patch.setattr(Asked, "drop", drop_just_then)
            await hub.accepted(named(1, maps_a=2))
            time.seconds = LEASE + 1
            assert (await ear.next()).payload == b""
        await ask(ear)
        assert span((await ear.next()).payload) == (1, 2, [2])
