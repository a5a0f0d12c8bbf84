"""Parts of topics, each published under a name of its own after a request."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rsnotify.errors import ConnectionRefused
from rsnotify.runtime.mqtt_broker import (
    DEFAULT_PREFIX,
    BrokerLogin,
    SelectionRequest,
    channel_topic,
    request_prefix,
)
from rsnotify.runtime.mqtt_connection import BrokerConnection
from rsnotify.selection import PushSelection
from rsnotify_hub import mqtt_bridge as requested_selections
from rsnotify_hub.filtering import QUIET_SECONDS
from rsnotify_hub.store.sqlite_store import SqliteStore
from tests.hub.helpers import TOPIC, Client, LogWatch, RunHub, fragment, send
from tests.hub.mqtt.listeners import (
    MAPS,
    MAPS_NAME,
    REFUSED,
    BrokerListener,
    Listen,
    begin_part,
    request_part,
)
from tests.hub.selections import BASE, named, span
from tests.mosquitto import Mosquitto
from tests.waiting import PATIENCE

REQUESTS = channel_topic(TOPIC, request_prefix(DEFAULT_PREFIX))
ACL = (Path(__file__).resolve().parents[3] / "hub/mosquitto/acl").read_text()


async def test_who_asks_for_a_part_gets_it_by_a_name_of_its_own_and_the_newest_first(
    hub: Client, listen: Listen
):
    async with listen(MAPS_NAME) as listener:
        await hub.accepted(named(0, maps_a=1, b=2), named(2, maps_a=3, b=4))
        await request_part(listener)
        message = await listener.next()
        assert (message.topic, message.channel) == (MAPS_NAME, TOPIC)
        assert span(message.payload) == (2, 4, [3])
        await hub.accepted(named(4, b=5), named(5, maps_a=6))
        reached = 4.0
        while reached < 6:
            begin, until, seconds = span((await listener.next()).payload)
            assert begin <= reached
            reached = until
        assert seconds == [6]
        async with listen(MAPS_NAME) as late:
            message = await late.next()
            assert message.retained
            assert span(message.payload)[1:] == (6, [6])


async def test_a_node_that_does_not_own_the_bridge_for_a_moment_leaves_nothing_out(
    part: BrokerListener, run_hub_with_parts: RunHub, monkeypatch: pytest.MonkeyPatch
):
    async with run_hub_with_parts(retry_seconds=0.01) as hub:
        await begin_part(hub, part)
        refusals = 2  # of the topic, and of its part
        owns = SqliteStore.owns_bridge

        def owns_again(store: SqliteStore) -> bool:
            nonlocal refusals
            refusals -= 1
            return owns(store) and refusals < 0

        monkeypatch.setattr(SqliteStore, "owns_bridge", owns_again)
        await hub.accepted(named(1, maps_a=2), named(2, maps_a=3))
        assert span((await part.next()).payload) == (1, 2, [2])


async def test_who_asks_as_well_keeps_nobody_from_hearing_that_nothing_was_left(
    part: BrokerListener, hub: Client, watch: LogWatch
):
    await begin_part(hub, part)
    await hub.accepted(named(1, b=2))
    assert span((await part.next()).payload) == (1, 2, [])
    await hub.accepted(named(2, b=3))  # is held back now
    await request_part(part)
    await request_part(part, PushSelection())
    await watch.line("selects the whole topic")  # so what came before was taken as well
    assert span((await part.next()).payload) == (2, 3, [])


async def test_a_flood_of_what_was_not_asked_for_is_hardly_heard(part: BrokerListener, hub: Client):
    await begin_part(hub, part)
    bodies = [named(second, b=second + 1) for second in range(1, 300)]
    await send(await hub.source(), *bodies)
    loop = asyncio.get_running_loop()
    frames, reached, begin_of_all = 0, 1.0, loop.time()
    while reached < 300:
        begin, until, _ = span((await part.next()).payload)
        assert begin <= reached
        frames, reached = frames + 1, until
    assert frames <= (loop.time() - begin_of_all) / QUIET_SECONDS + 2


async def test_a_part_outlives_the_hub_and_the_broker_gets_what_it_missed(
    run_hub_with_parts: RunHub,
    run_hub: RunHub,
    mosquitto: Mosquitto,
    listen: Listen,
    watch: LogWatch,
):
    async with run_hub_with_parts() as hub, listen(MAPS_NAME) as listener:
        await begin_part(hub, listener)
        await mosquitto.stop()
        await watch.line("the MQTT broker is unavailable")
        await hub.accepted(named(1, maps_a=2))
    async with run_hub() as hub:
        await hub.accepted(named(2, b=3))
    await mosquitto.start()
    async with listen(MAPS_NAME) as listener, run_hub_with_parts() as hub:
        await hub.accepted(named(3, maps_a=4))
        found: list[float] = []
        while not found or found[-1] != 4:
            found += span((await listener.next()).payload)[2]
        assert found[-2:] == [2, 4]


@pytest.mark.usefixtures("often_cleaned")
async def test_a_part_that_nobody_requests_any_more_is_deleted(
    hub: Client, listen: Listen, monkeypatch: pytest.MonkeyPatch
):
    async with listen(MAPS_NAME) as listener, listen() as whole:
        await begin_part(hub, listener)
        monkeypatch.setattr(requested_selections, "LEASE", 0)
        await request_part(listener)  # and not again
        assert (await listener.next()).payload == b""
        await hub.accepted(named(1, maps_a=2), named(2, maps_a=3))
        seen = await whole.until(named(2, maps_a=3))
        assert named(1, maps_a=2) in seen
        monkeypatch.setattr(requested_selections, "LEASE", 7_200)
        async with listen(MAPS_NAME) as late:
            await request_part(late)
            assert span((await late.next()).payload) == (2, 3, [3])
        assert span((await listener.next()).payload) == (2, 3, [3]), (
            "changes while the part was deleted were not published"
        )


@pytest.mark.usefixtures("often_cleaned")
async def test_a_part_requested_while_it_is_being_deleted_is_published_again(
    part: BrokerListener, hub: Client, watch: LogWatch, monkeypatch: pytest.MonkeyPatch
):
    publish = BrokerConnection.publish

    async def publish_late(
        self: BrokerConnection, topic: str, payload: bytes, **options: Any
    ) -> asyncio.Future[None]:
        if payload == b"":
            monkeypatch.setattr(requested_selections, "LEASE", 7_200)
            watch.lines.clear()
            await request_part(part)
            await watch.line("publishing a filtered topic")
            for _ in range(9):  # there is time to send it
                await hub.get("healthz")
        return await publish(self, topic, payload, **options)

    monkeypatch.setattr(BrokerConnection, "publish", publish_late)
    await hub.accepted(*(named(second, maps_a=second + 1) for second in range(3)))
    await request_part(part)
    assert (await part.next()).payload == named(2, maps_a=3)
    monkeypatch.setattr(requested_selections, "LEASE", 0)
    await request_part(part)
    assert (await part.next()).payload == b""
    assert (await part.next()).payload == named(2, maps_a=3)
    await hub.accepted(named(3, maps_a=4))
    assert (await part.next()).payload == named(3, maps_a=4)


@pytest.mark.parametrize(
    ("select", "topic", "of", "reason"),
    [
        (PushSelection(), TOPIC, TOPIC, "it selects the whole topic"),
        (
            PushSelection(prefixes=("maps/",)),
            TOPIC,
            TOPIC,
            "is not the beginning of an absolute URI",
        ),
        (MAPS, TOPIC, TOPIC + "2", "belongs to another channel"),
        (MAPS, TOPIC + "2", TOPIC + "2", "nothing was ever published on its topic"),
    ],
)
async def test_an_invalid_request_is_refused_and_affects_no_other(
    part: BrokerListener,
    hub: Client,
    watch: LogWatch,
    select: PushSelection,
    topic: str,
    of: str,
    reason: str,
):
    await hub.accepted(named(0, maps_a=1))
    await request_part(part, select, topic=topic, of=of)
    await watch.line(REFUSED, reason)
    deep = b'{"x":' + b"[" * 8_000
    for junk in (b"", b"{", b"[]", b"\xff", b'{"topic":"\xff"}', deep, b"x" * 20_000):
        await part.publish(REQUESTS, junk, TOPIC, "text/plain")
    await request_part(part)
    assert span((await part.next()).payload) == (0, 1, [1])
    lines = [line for line in watch.lines if REFUSED in line]
    assert len(lines) <= 2, "a request may come from anybody, who could fill the log"


async def test_a_request_cannot_inject_lines_into_the_log(
    part: BrokerListener, run_hub_with_parts: RunHub, watch: LogWatch
):
    async with run_hub_with_parts():
        junk = (
            rb'{"topic":"T","select":{"changes":["\n\u001b[2Kall is well' + b"!" * 9_000 + b'"]}}'
        )
        await part.publish(REQUESTS, junk, TOPIC, "application/json")
        line = await watch.line(REFUSED, "all is well")
        assert line.isprintable()
        assert len(line) < 500


async def test_a_topic_has_no_more_parts_than_allowed(
    part: BrokerListener, run_hub_with_parts: RunHub, watch: LogWatch
):
    other = PushSelection(prefixes=(BASE + "b",))
    async with run_hub_with_parts(max_selections=1) as hub:
        await begin_part(hub, part)
        await request_part(part, other)
        await watch.line(REFUSED, "too many filtered topics")


async def test_the_shipped_acl_lets_a_subscriber_request_parts_and_nothing_else(
    run_hub_with_parts: RunHub, tmp_path: Path, listen: Listen
):
    users = {"hub": "one", "subscriber": "three"}
    subscriber = BrokerLogin(user="subscriber", password="three")
    async with (
        Mosquitto(tmp_path / "strict", users=users, acl=ACL) as broker,
        run_hub_with_parts(broker=broker, mqtt_user="hub", mqtt_password="one") as hub,
        listen(MAPS_NAME, broker=broker, login=subscriber) as listener,
        listen("rsnotify-ask/#", broker=broker, login=subscriber) as nosy,
    ):
        await begin_part(hub, listener)
        for name in (MAPS_NAME, channel_topic(TOPIC), "rsnotify-in/x", "rsnotify-ask/x/y"):
            with pytest.raises(ConnectionRefused):
                await listener.publish(name, fragment(0, 1), TOPIC, "application/xml")
        assert nosy.messages.empty(), "requests are private"


async def test_a_part_is_sent_in_order_while_it_is_requested_again_and_again(
    part: BrokerListener, hub: Client
):
    await begin_part(hub, part)
    source = await hub.source()
    for second in range(1, 90):
        name = "maps_a" if second % 3 == 0 else "b"
        await source.send_str(named(second, **{name: second + 1}).decode())
        if second % 30 == 0:
            async with asyncio.timeout(PATIENCE):
                await request_part(part)
    found: list[float] = []
    reached = 0.0
    while reached < 90:
        _, reached, seconds = span((await part.next()).payload)
        found += seconds
    assert found == list(range(4, 90, 3))


def test_the_documentation_shows_the_encoding_of_a_request() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/mqtt.md").read_text()
    maps = PushSelection(prefixes=("https://source.example/data/maps/",))
    assert SelectionRequest(TOPIC, maps).encode().decode() in page
    assert f"`{DEFAULT_PREFIX}{maps.digest(TOPIC)}`" in page
