"""All fragments reach the broker, also after it or the hub was stopped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from itertools import islice
from pathlib import Path

import pytest

from rsnotify.runtime.mqtt_broker import channel_topic
from rsnotify.runtime.mqtt_connection import BrokerSession
from tests.hub.helpers import (
    TOPIC,
    Client,
    LogWatch,
    RunHub,
    chain,
    fragment,
)
from tests.hub.mqtt.listeners import BrokerListener, Listen
from tests.mosquitto import Mosquitto

MAPS_NAME = channel_topic(TOPIC)
#: Sessions outlive the broker, as their subscriptions do.
AWAY = BrokerSession("a-destination", 3600)


@pytest.fixture
async def hub(run_bridged: RunHub) -> AsyncIterator[Client]:
    async with run_bridged() as client:
        yield client


async def test_a_login_that_is_refused_is_a_warning_also_after_the_broker_was_away(
    run_hub: RunHub, tmp_path: Path, caplog: pytest.LogCaptureFixture, watch: LogWatch
):
    strict = Mosquitto(tmp_path / "strict", users={"hub": "secret"})
    options = {"mqtt_user": "hub", "mqtt_password": "wrong"}
    async with run_hub(mqtt_url=strict.url, **options):
        await watch.line("the MQTT broker is unavailable")
        async with strict:
            await watch.line("the MQTT broker refuses this hub")
    warnings = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    (refused,) = [line for line in warnings if "refuses this hub" in line]
    assert "it refuses the login of 'hub'" in refused
    assert "correct the MQTT user and password" in refused


async def test_the_newest_fragment_is_retained(hub: Client, listen: Listen):
    bodies = chain(5)
    async with listen() as listener:
        await hub.accepted(*bodies)
        assert await listener.until(bodies[-1]) == bodies
        async with listen() as late:
            message = await late.next()
    assert (message.payload, message.retained) == (bodies[-1], True)


async def test_any_content_reaches_the_broker_as_it_is(hub: Client, listener: BrokerListener):
    for topic, body, kind in (
        (TOPIC, fragment(0, 1).replace(b"<urlset", b"\n<urlset "), "text/xml; charset=utf-8"),
        ("https://a.example/x", bytes(range(256)), "image/png"),
    ):
        await hub.publish(body, topic=topic, Content_Type=kind)
        message = await listener.next()
        assert (message.payload, message.content_type) == (body, kind)
        assert (message.topic, message.channel) == (channel_topic(topic), topic)


async def test_it_supports_mqtt_3_1_1(run_bridged: RunHub, listener: BrokerListener):
    async with run_bridged(mqtt_version="3.1.1") as hub:
        await hub.accepted(fragment(0, 1))
        assert (await listener.next()).payload == fragment(0, 1)


async def test_a_restarted_hub_sends_what_the_broker_has_not_received(
    run_bridged: RunHub, mosquitto: Mosquitto, listen: Listen
):
    one, two, three = chain(3)
    async with run_bridged() as hub, listen() as listener:
        await hub.accepted(one)
        await listener.next()
    await mosquitto.stop()
    async with run_bridged() as hub:
        await hub.accepted(two)
        await hub.accepted(two, topic=TOPIC + "?of=another")
    await mosquitto.start()
    async with (
        listen(MAPS_NAME) as listener,
        listen(channel_topic(TOPIC + "?of=another")) as other,
        run_bridged() as hub,
    ):
        await hub.accepted(three)
        seen = await listener.until(three)
        assert seen[-2:] == [two, three]
        assert (await other.next()).payload == two, "a topic that the broker never saw"


async def test_nothing_is_lost_while_broker_and_hub_restart(
    run_bridged: RunHub, mosquitto: Mosquitto, listen: Listen
):
    bodies = chain(90)
    async with listen(session=AWAY):
        pass
    rest = iter(bodies)
    for _ in range(3):
        async with run_bridged() as hub:
            await hub.accepted(*islice(rest, 10))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(mosquitto.stop())
                await hub.accepted(*islice(rest, 10))
            await mosquitto.start()
            await hub.accepted(*islice(rest, 10))
    async with run_bridged(), listen(session=AWAY) as listener:
        seen = await listener.until(bodies[-1])
    assert set(bodies) <= set(seen)


async def test_a_new_broker_begins_with_the_newest_fragment(
    run_hub: RunHub, run_bridged: RunHub, listener: BrokerListener
):
    async with run_hub() as hub:
        await hub.accepted(*chain(3))
    async with run_bridged() as hub:
        await hub.accepted(fragment(3, 4))
        assert await listener.until(fragment(3, 4)) == [fragment(2, 3), fragment(3, 4)]


async def test_a_topic_that_the_broker_refuses_delays_no_other_and_is_retried(
    run_hub: RunHub, tmp_path: Path, watch: LogWatch, listen: Listen
):
    other = "https://source.example/other"
    acl = f"topic read #\ntopic write {channel_topic(other)}\n"
    async with (
        Mosquitto(tmp_path / "strict", acl=acl) as broker,
        listen(broker=broker) as listener,
        run_hub(mqtt_url=broker.url) as hub,
    ):
        await hub.accepted(fragment(0, 1))
        await watch.line(TOPIC, "to the broker; retrying", "Not authorized")
        await hub.accepted(fragment(0, 1), topic=other)
        assert (await listener.next()).channel == other
        (tmp_path / "strict/acl").write_text("topic readwrite #\n")
        broker.reload()
        await hub.accepted(fragment(1, 2))
        await listener.until(fragment(0, 1))
        await listener.until(fragment(1, 2))


async def test_a_fragment_too_large_for_the_broker_is_left_out(
    run_hub: RunHub, tmp_path: Path, watch: LogWatch, listen: Listen
):
    async with (
        Mosquitto(tmp_path / "small", settings="max_packet_size 3000") as broker,
        listen(broker=broker) as listener,
        run_hub(mqtt_url=broker.url) as hub,
    ):
        await hub.accepted(fragment(0, 1, padding=5000))
        await watch.line("skipped a fragment")
        await hub.accepted(fragment(1, 2))
        assert (await listener.next()).payload == fragment(1, 2)


async def test_the_topic_list_names_the_mqtt_topic(run_bridged: RunHub):
    public = "wss+mqtt://broker.example"
    async with run_bridged(mqtt_public_url=public) as hub:
        await hub.accepted(fragment(0, 1))
        async with hub.session.get(hub.url + "topics") as response:
            (row,) = (await response.json())["topics"]
    assert row["mqtt"] == f"{public}/{MAPS_NAME}"


async def test_deliveries_over_mqtt_are_counted(hub: Client, listener: BrokerListener):
    await hub.accepted(fragment(0, 1), fragment(1, 2))
    await listener.until(fragment(1, 2))
    await hub.admin_until("status", lambda status: status["deliveries"]["mqtt"]["delivered"] == 2)
    metrics = await hub.metrics()
    size = len(fragment(0, 1) + fragment(1, 2))
    assert metrics['delivered_bytes_total{way="mqtt"}'] == size
    assert (metrics["mqtt_connected"], metrics["mqtt_topics_behind"]) == (1, 0)


async def test_topics_that_a_broker_has_not_received_are_counted(
    hub: Client, mosquitto: Mosquitto, watch: LogWatch
):
    await mosquitto.stop()
    await watch.line("the MQTT broker is unavailable")
    for topic in (TOPIC, TOPIC + "?of=another"):
        await hub.accepted(fragment(0, 1), topic=topic)
    metrics = await hub.metrics()
    assert (metrics["mqtt_connected"], metrics["mqtt_topics_behind"]) == (0, 2)
