"""A part of a topic, by a name of its own, for who asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rsnotify.format.model import Document
from rsnotify.format.reader import read_document
from rsnotify.runtime.mqtt.connection import BrokerConnection
from rsnotify.runtime.mqtt.login import BrokerLogin
from rsnotify.runtime.mqtt.names import PREFIX, asking, channel_name
from rsnotify.runtime.mqtt.refusals import ConnectionRefused
from rsnotify.runtime.mqtt.selection_requests import SelectionRequest
from rsnotify.selection.push_selection import PushSelection
from rsnotify_hub.mqtt import asked, bridge
from rsnotify_hub.selecting.cutting import QUIET_SECONDS
from tests.hub.conftest import RunHub
from tests.hub.helpers import PATIENCE, START, TOPIC, Client, LogWatch, fragment, seconds_of
from tests.hub.mqtt.conftest import Ear, Listen
from tests.hub.selections import BASE, named
from tests.mosquitto import Mosquitto

MAPS = PushSelection(prefixes=(BASE + "maps/",))
NAME = PREFIX + MAPS.digest(TOPIC)
ACL = (Path(__file__).resolve().parents[3] / "hub/mosquitto/acl").read_text()


@pytest.fixture
def run_asked(run_hub: RunHub, mosquitto: Mosquitto, watch: LogWatch) -> RunHub:
    """Run a hub that can be asked: what comes before that to the broker reaches nobody."""

    @asynccontextmanager
    async def run(*, broker: Mosquitto = mosquitto, **settings: Any) -> AsyncIterator[Client]:
        watch.lines.clear()
        async with run_hub(mqtt_url=broker.url, **settings) as hub:
            await watch.line("parts of topics can be asked for")
            yield hub

    return run


async def ask(
    ear: Ear, select: PushSelection = MAPS, *, topic: str = TOPIC, of: str = TOPIC
) -> None:
    body = SelectionRequest(topic, select).encode()
    await ear.say(channel_name(of, asking(PREFIX)), body, of, "application/json")


def span(body: bytes) -> tuple[float, float, list[float]]:
    found: Document = read_document(body)
    assert found.from_ is not None
    assert found.until is not None
    begin, until = ((each - START).total_seconds() for each in (found.from_, found.until))
    return begin, until, seconds_of(body)


async def test_who_asks_for_a_part_gets_it_by_a_name_of_its_own_and_the_newest_first(
    run_asked: RunHub, listen: Listen
) -> None:
    async with run_asked() as hub, listen(NAME) as ear:
        await hub.accepted(named(0, maps_a=1, b=2))
        await hub.accepted(named(2, maps_a=3, b=4))
        await ask(ear)
        message = await ear.next()
        assert (message.topic, message.channel) == (NAME, TOPIC)
        assert span(message.payload) == (2, 4, [3])
        await hub.accepted(named(4, b=5))
        await hub.accepted(named(5, maps_a=6))
        reached = 4.0
        while reached < 6:
            begin, until, seconds = span((await ear.next()).payload)
            assert begin <= reached
            reached = until
        assert seconds == [6]
        async with listen(NAME) as late:
            message = await late.next()
            assert message.retained
            assert span(message.payload)[1:] == (6, [6])


async def test_who_asks_as_well_changes_nothing_for_the_others(
    run_asked: RunHub, listen: Listen
) -> None:
    async with run_asked() as hub, listen(NAME) as ear, listen(NAME) as other:
        await hub.accepted(named(0, maps_a=1))
        await ask(ear)
        assert span((await ear.next()).payload) == (0, 1, [1])
        await ask(other)
        await hub.accepted(named(1, maps_a=2))
        assert span((await ear.next()).payload) == (1, 2, [2])


async def test_who_asks_as_well_keeps_nobody_from_hearing_that_nothing_was_left(
    run_asked: RunHub, listen: Listen, watch: LogWatch
) -> None:
    async with run_asked() as hub, listen(NAME) as ear:
        await hub.accepted(named(0, maps_a=1))
        await ask(ear)
        await ear.next()
        await hub.accepted(named(1, b=2))
        assert span((await ear.next()).payload) == (1, 2, [])
        await hub.accepted(named(2, b=3))  # is held back now
        await ask(ear)
        await ask(ear, PushSelection())
        await watch.line("asks for all of its topic")  # so what came before was taken as well
        assert span((await ear.next()).payload) == (2, 3, [])


async def test_a_flood_of_what_was_not_asked_for_is_hardly_heard(
    run_asked: RunHub, listen: Listen
) -> None:
    async with run_asked() as hub, listen(NAME) as ear:
        await hub.accepted(named(0, maps_a=1))
        await ask(ear)
        await ear.next()
        source = await hub.source()
        for second in range(1, 300):
            await source.send_str(named(second, b=second + 1).decode())
        loop = asyncio.get_running_loop()
        frames, reached, begin_of_all = 0, 1.0, loop.time()
        while reached < 300:
            begin, until, _ = span((await ear.next()).payload)
            assert begin <= reached
            frames, reached = frames + 1, until
        assert frames <= (loop.time() - begin_of_all) / QUIET_SECONDS + 2


async def test_a_part_outlives_the_hub_and_the_broker_gets_what_it_missed(
    run_asked: RunHub, run_hub: RunHub, mosquitto: Mosquitto, listen: Listen, watch: LogWatch
) -> None:
    async with run_asked() as hub, listen(NAME) as ear:
        await hub.accepted(named(0, maps_a=1))
        await ask(ear)
        await ear.next()
        await mosquitto.stop()
        await watch.line("the MQTT broker is away")
        await hub.accepted(named(1, maps_a=2))
    async with run_hub() as hub:
        await hub.accepted(named(2, b=3))
    await mosquitto.start()
    async with listen(NAME) as ear, run_asked() as hub:
        await hub.accepted(named(3, maps_a=4))
        found: list[float] = []
        while not found or found[-1] != 4:
            found += span((await ear.next()).payload)[2]
        assert found[-2:] == [2, 4]


async def test_a_part_that_nobody_asks_for_any_more_is_taken_away(
    run_asked: RunHub, listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge, "_HOUSEKEEPING_SECONDS", 0.05)
    async with run_asked() as hub, listen(NAME) as ear, listen() as whole:
        await hub.accepted(named(0, maps_a=1))
        await ask(ear)
        assert (await ear.next()).payload
        monkeypatch.setattr(asked, "LEASE", 0)
        await ask(ear)  # and not again
        assert (await ear.next()).payload == b""
        await hub.accepted(named(1, maps_a=2))
        await hub.accepted(named(2, maps_a=3))
        seen = await whole.until(named(2, maps_a=3))
        assert named(1, maps_a=2) in seen
        monkeypatch.setattr(asked, "LEASE", 7_200)
        async with listen(NAME) as late:
            await ask(late)
            assert span((await late.next()).payload) == (2, 3, [3])
        assert span((await ear.next()).payload) == (2, 3, [3]), "what came meanwhile went to nobody"


async def test_who_asks_for_a_part_just_as_it_is_taken_away_is_sent_the_newest_after_that(
    run_asked: RunHub, listen: Listen, watch: LogWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = BrokerConnection.publish

    async def publish_late(
        self: BrokerConnection, topic: str, payload: bytes, **options: Any
    ) -> asyncio.Future[None]:
        if payload == b"":
            monkeypatch.setattr(asked, "LEASE", 7_200)
            watch.lines.clear()
            await ask(ear)
            await watch.line("is made for the MQTT broker")
            for _ in range(9):  # there is time to send it
                await hub.get("healthz")
        return await publish(self, topic, payload, **options)

    monkeypatch.setattr(bridge, "_HOUSEKEEPING_SECONDS", 0.05)
    monkeypatch.setattr(BrokerConnection, "publish", publish_late)
    async with run_asked() as hub, listen(NAME) as ear:
        for second in range(3):
            await hub.accepted(named(second, maps_a=second + 1))
        await ask(ear)
        assert (await ear.next()).payload == named(2, maps_a=3)
        monkeypatch.setattr(asked, "LEASE", 0)
        await ask(ear)
        assert (await ear.next()).payload == b""
        assert (await ear.next()).payload == named(2, maps_a=3)
        await hub.accepted(named(3, maps_a=4))
        assert (await ear.next()).payload == named(3, maps_a=4)


@pytest.mark.parametrize(
    ("select", "topic", "of", "reason"),
    [
        (PushSelection(), TOPIC, TOPIC, "it asks for all of its topic"),
        (PushSelection(prefixes=("maps/",)), TOPIC, TOPIC, "is no beginning of an absolute URI"),
        (MAPS, TOPIC, TOPIC + "2", "about a channel of another name"),
        (MAPS, TOPIC + "2", TOPIC + "2", "nothing was ever published on its topic"),
    ],
)
async def test_what_cannot_be_asked_for_is_left_and_hurts_nobody(
    run_asked: RunHub,
    listen: Listen,
    watch: LogWatch,
    select: PushSelection,
    topic: str,
    of: str,
    reason: str,
) -> None:
    async with run_asked() as hub, listen(NAME) as ear:
        await hub.accepted(named(0, maps_a=1))
        await ask(ear, select, topic=topic, of=of)
        await watch.line("refused what came over MQTT", reason)
        deep = b'{"x":' + b"[" * 8_000
        for junk in (b"", b"{", b"[]", b"\xff", b'{"topic":"\xff"}', deep, b"x" * 20_000):
            await ear.say(channel_name(TOPIC, asking(PREFIX)), junk, TOPIC, "text/plain")
        await ask(ear)
        assert span((await ear.next()).payload) == (0, 1, [1])
        told = [line for line in watch.lines if "refused what came over MQTT" in line]
        assert len(told) <= 2, "anybody may ask, and fill the log"


async def test_who_asks_writes_no_lines_of_its_own_into_the_log(
    run_asked: RunHub, listen: Listen, watch: LogWatch
) -> None:
    async with run_asked(), listen(NAME) as ear:
        junk = (
            rb'{"topic":"T","select":{"changes":["\n\u001b[2Kall is well' + b"!" * 9_000 + b'"]}}'
        )
        await ear.say(channel_name(TOPIC, asking(PREFIX)), junk, TOPIC, "application/json")
        line = await watch.line("refused what came over MQTT", "all is well")
        assert line.isprintable()
        assert len(line) < 500


async def test_no_more_parts_are_made_than_are_allowed(
    run_asked: RunHub, listen: Listen, watch: LogWatch
) -> None:
    other = PushSelection(prefixes=(BASE + "b",))
    async with run_asked(max_selections=1) as hub, listen(NAME) as ear:
        await hub.accepted(named(0, maps_a=1))
        await ask(ear)
        await ear.next()
        await ask(ear, other)
        await watch.line("refused what came over MQTT", "enough parts")


async def test_the_rights_that_we_ship_let_a_subscriber_ask_and_do_nothing_else(
    run_asked: RunHub, tmp_path: Path, listen: Listen
) -> None:
    users = {"hub": "one", "subscriber": "three"}
    subscriber = BrokerLogin(user="subscriber", password="three")
    async with (
        Mosquitto(tmp_path / "strict", users=users, acl=ACL) as broker,
        run_asked(broker=broker, mqtt_user="hub", mqtt_password="one") as hub,
        listen(NAME, broker=broker, login=subscriber) as ear,
        listen("rsnotify-ask/#", broker=broker, login=subscriber) as nosy,
    ):
        await hub.accepted(named(0, maps_a=1))
        await ask(ear)
        assert span((await ear.next()).payload) == (0, 1, [1])
        for name in (NAME, channel_name(TOPIC), "rsnotify-in/x", "rsnotify-ask/x/y"):
            with pytest.raises(ConnectionRefused):
                await ear.say(name, fragment(0, 1), TOPIC, "application/xml")
        assert nosy.messages.empty(), "who asks for what is nobody's business"


async def test_a_part_is_sent_in_order_while_it_is_asked_for_again_and_again(
    run_asked: RunHub, listen: Listen
) -> None:
    async with run_asked() as hub, listen(NAME) as ear:
        await hub.accepted(named(0, maps_a=1))
        await ask(ear)
        await ear.next()
        source = await hub.source()
        for second in range(1, 90):
            name = "maps_a" if second % 3 == 0 else "b"
            await source.send_str(named(second, **{name: second + 1}).decode())
            if second % 30 == 0:
                async with asyncio.timeout(PATIENCE):
                    await ask(ear)
        found: list[float] = []
        reached = 0.0
        while reached < 90:
            _, reached, seconds = span((await ear.next()).payload)
            found += seconds
        assert found == list(range(4, 90, 3))


def test_an_ask_is_written_as_the_page_has_it() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/mqtt.md").read_text()
    maps = PushSelection(prefixes=("https://source.example/data/maps/",))
    assert SelectionRequest(TOPIC, maps).encode().decode() in page
    assert f"`{PREFIX}{maps.digest(TOPIC)}`" in page
