"""Sources publish at the broker; its ACL says who, and the hub takes what it may."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rsnotify.runtime.mqtt.login import BrokerLogin
from rsnotify.runtime.mqtt.refusals import ConnectionRefused
from rsnotify.runtime.mqtt.topics import channel_topic
from rsnotify_hub.intake import Intake
from rsnotify_hub.log.fragments import Fragment
from rsnotify_hub.log.topics import Topics
from rsnotify_hub.mqtt import inbox as taking
from tests.hub.conftest import RunHub
from tests.hub.helpers import PATIENCE, TOPIC, Callback, Client, LogWatch, fragment
from tests.hub.mqtt.conftest import Ear, Listen
from tests.mosquitto import Mosquitto

XML = "application/xml"
TAKING = "taking what Sources publish as rsnotify-in/+"
CHANNELS = ["https://source.example/data/", TOPIC]


def inbox(channel: str) -> str:
    return channel_topic(channel, "rsnotify-in/")


async def say(ear: Ear, body: bytes, channel: str = TOPIC, name: str | None = None) -> None:
    await ear.say(name or inbox(channel), body, channel, XML)


@pytest.fixture
async def hub(run_hub: RunHub, mosquitto: Mosquitto, watch: LogWatch) -> AsyncIterator[Client]:
    async with run_hub(mqtt_url=mosquitto.url, mqtt_channels=CHANNELS) as client:
        await watch.line(TAKING)
        yield client


async def test_what_is_published_there_goes_to_everybody(
    hub: Client, listen: Listen, callback: Callback
) -> None:
    socket = await hub.listen()
    await hub.subscribe(callback)
    async with listen() as ear:
        await say(ear, fragment(0, 1))
        message = await ear.next()
    assert (message.topic, message.payload) == (channel_topic(TOPIC), fragment(0, 1))
    assert (await callback.delivery())[1] == fragment(0, 1)
    assert await socket.receive_str(timeout=PATIENCE) == fragment(0, 1).decode()


async def test_what_is_published_while_the_hub_is_away_waits_at_the_broker(
    run_hub: RunHub, mosquitto: Mosquitto, listen: Listen, watch: LogWatch
) -> None:
    settings = {"mqtt_url": mosquitto.url, "mqtt_channels": CHANNELS}
    async with listen() as ear:
        async with run_hub(**settings):
            await watch.line(TAKING)
            await say(ear, fragment(0, 1))
            await ear.next()
        for second in range(1, 6):
            await say(ear, fragment(second, second + 1))
        async with run_hub(**settings) as hub:
            assert await ear.until(fragment(5, 6))
            (row,) = await hub.topics(lambda rows: rows[0]["kept"] == 6)
    assert row["topic"] == TOPIC


@pytest.fixture
def stumbles(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the hub stumbles over, as often as it stands there."""
    read, over = Intake.read_content, list[bytes]()

    async def stumble(self: Intake, body: bytes, content_type: str) -> Fragment:
        if body in over:
            over.remove(body)
            raise MemoryError
        return await read(self, body, content_type)

    monkeypatch.setattr(Intake, "read_content", stumble)
    monkeypatch.setattr(taking, "PAUSES", (0, 0.01, 0.02))
    return over


async def lost(hub: Client) -> float:
    _, metrics = await hub.get("metrics")
    found = [line for line in metrics.splitlines() if 'refused_total{code="fault"}' in line]
    return float(found[0].split()[-1]) if found else 0


async def test_what_the_hub_stumbles_over_is_tried_again_and_not_lost(
    hub: Client, listen: Listen, watch: LogWatch, stumbles: list[bytes]
) -> None:
    stumbles += [fragment(0, 1)] * len(taking.PAUSES)
    async with listen() as ear:
        await say(ear, fragment(0, 1))
        await say(ear, fragment(1, 2))
        assert await ear.until(fragment(1, 2)) == [fragment(0, 1), fragment(1, 2)]
    assert sum("is tried again: MemoryError" in line for line in watch.lines) == 3
    assert (stumbles, await lost(hub)) == ([], 0)


async def test_what_the_hub_always_stumbles_over_does_not_come_again_and_again(
    run_hub: RunHub, mosquitto: Mosquitto, listen: Listen, watch: LogWatch, stumbles: list[bytes]
) -> None:
    settings = {"mqtt_url": mosquitto.url, "mqtt_channels": CHANNELS}
    stumbles += [fragment(0, 1)] * (len(taking.PAUSES) + 1)
    async with listen() as ear:
        async with run_hub(**settings) as hub:
            await watch.line(TAKING)
            await say(ear, fragment(0, 1))
            await say(ear, fragment(1, 2))
            assert (await ear.next()).payload == fragment(1, 2)
            await watch.line("could not be taken")
            assert (stumbles, await lost(hub)) == ([], 1)
        async with run_hub(**settings):  # to which it would come again
            await say(ear, fragment(2, 3))
            assert await ear.until(fragment(2, 3)) in (
                [fragment(1, 2), fragment(2, 3)],
                [fragment(2, 3)],
            )


async def test_what_the_store_stumbles_over_ends_the_way_in_for_nobody(
    hub: Client, listen: Listen, watch: LogWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = Topics.publish

    def stumble(self: Topics, topic: str, fragment_: Fragment) -> asyncio.Future[None]:
        if fragment_.body != fragment(0, 1):
            return publish(self, topic, fragment_)
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        failed.set_exception(ValueError("a fault of ours"))
        return failed

    monkeypatch.setattr(Topics, "publish", stumble)
    async with listen() as ear:
        await say(ear, fragment(0, 1))
        await say(ear, fragment(1, 2))
        assert (await ear.next()).payload == fragment(1, 2)
    await watch.line("could not be taken")
    assert await lost(hub) == 1


async def test_what_is_no_change_is_refused_where_the_log_has_changes(
    hub: Client, listen: Listen, watch: LogWatch
) -> None:
    async with listen() as ear:
        await say(ear, fragment(0, 1))
        await ear.next()
        await ear.say(inbox(TOPIC), b"an error page", TOPIC, "text/plain")
        await say(ear, fragment(1, 2))
        assert (await ear.next()).payload == fragment(1, 2)
    await watch.line("refused what came over MQTT", "a Change Notification was expected")


async def test_with_the_older_version_a_channel_is_known_by_its_name(
    hub: Client, listen: Listen
) -> None:
    async with listen(version="3.1.1") as ear:
        await ear.say(inbox(TOPIC), fragment(0, 1), "", "")
        assert (await ear.next()).payload == fragment(0, 1)


async def test_what_is_no_fragment_is_refused_and_what_follows_is_taken(
    hub: Client, listen: Listen, watch: LogWatch
) -> None:
    async with listen() as ear:
        for body in (b"<urlset", fragment(1, 0.5), b"\xff" * 100):
            await say(ear, body)
        await say(ear, fragment(0, 1))
        assert (await ear.next()).payload == fragment(0, 1)
    refusals = [line for line in watch.lines if "refused what came over MQTT" in line]
    assert len(refusals) == 3
    _, metrics = await hub.get("metrics")
    assert 'rsnotify_hub_refused_total{code="invalid-fragment"} 3.0' in metrics


@pytest.mark.parametrize(
    ("channel", "name", "reason"),
    [
        (TOPIC, inbox(TOPIC + "x"), "another name"),
        ("https://source.example/data", None, "mqtt_channels"),
        ("https://source.example/data/../x", None, "mqtt_channels"),
        ("javascript:alert(1)", None, "its channel"),
        ("", "rsnotify-in/unknown", "which channel"),
    ],
)
async def test_what_is_not_of_its_channel_is_refused(
    hub: Client, listen: Listen, watch: LogWatch, channel: str, name: str | None, reason: str
) -> None:
    async with listen() as ear:
        await say(ear, fragment(0, 1), channel, name)
        await watch.line("refused what came over MQTT", reason)
    assert await hub.topics() == []


async def test_what_nobody_would_acknowledge_is_refused(
    hub: Client, listen: Listen, watch: LogWatch
) -> None:
    async with listen() as ear:
        ear.connection._client.publish(inbox(TOPIC), fragment(0, 1), qos=0)
        await watch.line("refused what came over MQTT", "QoS 0")
        await say(ear, fragment(1, 2))
        assert (await ear.next()).payload == fragment(1, 2)


async def test_without_channels_the_hub_takes_nothing(
    run_hub: RunHub, mosquitto: Mosquitto, listen: Listen
) -> None:
    async with run_hub(mqtt_url=mosquitto.url) as hub, listen() as ear:
        await say(ear, fragment(0, 1))
        await hub.accepted(fragment(1, 2))
        assert await ear.until(fragment(1, 2)) == [fragment(1, 2)]


async def test_a_callback_may_subscribe_to_what_comes_over_mqtt_only(
    run_hub: RunHub, mosquitto: Mosquitto, callback: Callback
) -> None:
    settings = {"mqtt_url": mosquitto.url, "mqtt_channels": CHANNELS, "publishers": []}
    async with run_hub(**settings) as hub:
        await hub.subscribe(callback)


async def test_the_acl_of_the_broker_says_which_source_may_publish_what(
    run_hub: RunHub, tmp_path: Path, listen: Listen, watch: LogWatch
) -> None:
    acl = (
        "user hub\ntopic write rsnotify/#\ntopic read rsnotify-in/#\n"
        f"user source\ntopic write {inbox(TOPIC)}\n"
        "user subscriber\ntopic read rsnotify/#\n"
    )
    users = {"hub": "one", "source": "two", "subscriber": "three"}
    async with (
        Mosquitto(tmp_path / "strict", users=users, acl=acl) as broker,
        run_hub(
            mqtt_url=broker.url,
            mqtt_user="hub",
            mqtt_password="one",
            mqtt_channels=["https://source.example/"],
        ),
        listen(broker=broker, login=BrokerLogin(user="source", password="two")) as source,
        listen(broker=broker, login=BrokerLogin(user="subscriber", password="three")) as subscriber,
    ):
        await watch.line(TAKING)
        await say(source, fragment(0, 1))
        assert (await subscriber.next()).payload == fragment(0, 1)
        for ear, channel, name in (
            (source, "https://source.example/of-another", None),
            (source, TOPIC, channel_topic(TOPIC)),
            (subscriber, TOPIC, None),
            (subscriber, TOPIC, channel_topic(TOPIC)),
        ):
            with pytest.raises(ConnectionRefused):
                await say(ear, b"a lie", channel, name)
        await say(source, fragment(1, 2))
        assert (await subscriber.next()).payload == fragment(1, 2)
        assert source.messages.empty(), "a Source reads nothing"


async def test_many_fragments_of_many_channels_are_all_taken(hub: Client, listen: Listen) -> None:
    topics = [f"https://source.example/data/{number}" for number in range(20)]
    async with listen() as ear, asyncio.TaskGroup() as tasks:
        for topic in topics:
            for second in range(10):
                tasks.create_task(say(ear, fragment(second, second + 1), topic))
    rows = await hub.topics(lambda rows: sum(row["kept"] for row in rows) == 200)
    assert {row["topic"] for row in rows} == set(topics)
