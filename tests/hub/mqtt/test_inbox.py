"""Publishing through the broker: its ACL decides who may, and the hub checks each message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rsnotify.errors import ConnectionRefused, StorageError
from rsnotify.runtime.mqtt_broker import BrokerLogin, channel_topic
from rsnotify_hub import mqtt_bridge as inbox_module
from rsnotify_hub.fragments import Fragment
from rsnotify_hub.intake import FragmentIntake
from rsnotify_hub.topic_log import TopicLogs
from tests.hub.helpers import TOPIC, Callback, Client, LogWatch, RunHub, chain, fragment
from tests.hub.mqtt.listeners import BrokerListener, Listen
from tests.mosquitto import Mosquitto

XML = "application/xml"
ACCEPTING = "accepting messages from Sources on rsnotify-in/+"
CHANNELS = ["https://source.example/data/", TOPIC]


def inbox(channel: str) -> str:
    return channel_topic(channel, "rsnotify-in/")


async def send(
    listener: BrokerListener, *bodies: bytes, channel: str = TOPIC, name: str | None = None
) -> None:
    for body in bodies:
        await listener.publish(name or inbox(channel), body, channel, XML)


@pytest.fixture
def run_accepting(run_bridged: RunHub, watch: LogWatch) -> RunHub:
    """Run a hub, and wait until it accepts what is published through the broker."""

    @asynccontextmanager
    async def run() -> AsyncIterator[Client]:
        watch.lines.clear()
        async with run_bridged(mqtt_channels=CHANNELS) as client:
            await watch.line(ACCEPTING)
            yield client

    return run


@pytest.fixture
async def hub(run_accepting: RunHub) -> AsyncIterator[Client]:
    async with run_accepting() as client:
        yield client


async def test_a_fragment_published_over_mqtt_reaches_all_transports(
    listener: BrokerListener, hub: Client, callback: Callback
):
    socket = await hub.listen()
    await hub.subscribe(callback)
    await send(listener, fragment(0, 1))
    message = await listener.next()
    assert (message.topic, message.payload) == (channel_topic(TOPIC), fragment(0, 1))
    assert (await callback.delivery())[1] == fragment(0, 1)
    assert await socket.receive_str() == fragment(0, 1).decode()


async def test_fragments_published_while_the_hub_is_down_wait_at_the_broker(
    run_accepting: RunHub, listener: BrokerListener
):
    async with run_accepting():
        await send(listener, fragment(0, 1))
        await listener.next()
    await send(listener, *chain(1, 6))
    async with run_accepting() as hub:
        assert await listener.until(fragment(5, 6))
        (row,) = await hub.topics(lambda rows: rows[0]["kept"] == 6)
    assert row["topic"] == TOPIC


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Bodies that cause an internal error, once for each time that they are in the list."""
    read, bodies = FragmentIntake.read_publication, list[bytes]()

    async def fail(self: FragmentIntake, body: bytes, content_type: str) -> Fragment:
        if body in bodies:
            bodies.remove(body)
            raise MemoryError
        return await read(self, body, content_type)

    monkeypatch.setattr(FragmentIntake, "read_publication", fail)
    monkeypatch.setattr(inbox_module, "RETRY_SECONDS", (0, 0.01, 0.02))
    return bodies


async def lost(hub: Client) -> float:
    return (await hub.metrics()).get('refused_total{code="fault"}', 0)


async def test_a_message_is_retried_after_an_internal_error(
    listener: BrokerListener, hub: Client, watch: LogWatch, failing: list[bytes]
):
    failing += [fragment(0, 1)] * len(inbox_module.RETRY_SECONDS)
    await send(listener, fragment(0, 1), fragment(1, 2))
    assert await listener.until(fragment(1, 2)) == [fragment(0, 1), fragment(1, 2)]
    assert sum("retrying a message over MQTT" in line for line in watch.lines) == 3
    assert (failing, await lost(hub)) == ([], 0)


async def test_a_message_that_always_fails_is_dropped_and_counted(
    run_accepting: RunHub, listener: BrokerListener, watch: LogWatch, failing: list[bytes]
):
    failing += [fragment(0, 1)] * (len(inbox_module.RETRY_SECONDS) + 1)
    async with run_accepting() as hub:
        await send(listener, fragment(0, 1), fragment(1, 2))
        assert (await listener.next()).payload == fragment(1, 2)
        await watch.line("internal error: discarded")
        assert (failing, await lost(hub)) == ([], 1)
    async with run_accepting():  # to which it would come again
        await send(listener, fragment(2, 3))
        assert await listener.until(fragment(2, 3)) in (
            [fragment(1, 2), fragment(2, 3)],
            [fragment(2, 3)],
        )


def fail_to_store(
    monkeypatch: pytest.MonkeyPatch, fails: Callable[[bytes], object], error: Exception
) -> None:
    publish = TopicLogs.publish

    def fail(self: TopicLogs, topic: str, fragment: Fragment) -> asyncio.Future[None]:
        if not fails(fragment.body):
            return publish(self, topic, fragment)
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        failed.set_exception(error)
        return failed

    monkeypatch.setattr(TopicLogs, "publish", fail)


async def test_an_internal_error_while_storing_loses_only_that_message(
    listener: BrokerListener, hub: Client, watch: LogWatch, monkeypatch: pytest.MonkeyPatch
):
    fail_to_store(monkeypatch, lambda body: body == fragment(0, 1), ValueError("a fault of ours"))
    await send(listener, fragment(0, 1), fragment(1, 2))
    assert (await listener.next()).payload == fragment(1, 2)
    await watch.line("internal error: discarded")
    assert await lost(hub) == 1


async def test_a_message_that_could_not_be_stored_is_not_acknowledged_and_comes_again(
    listener: BrokerListener, hub: Client, monkeypatch: pytest.MonkeyPatch
):
    failing = [True]
    fail_to_store(
        monkeypatch, lambda _: failing and failing.pop(), StorageError("the disk is full")
    )
    await send(listener, fragment(0, 1))
    assert (await listener.next()).payload == fragment(0, 1)
    assert failing == []


async def test_a_message_without_changes_is_refused_on_a_topic_with_changes(
    listener: BrokerListener, hub: Client, watch: LogWatch
):
    await send(listener, fragment(0, 1))
    await listener.next()
    await listener.publish(inbox(TOPIC), b"an error page", TOPIC, "text/plain")
    await send(listener, fragment(1, 2))
    assert (await listener.next()).payload == fragment(1, 2)
    await watch.line("refused a message over MQTT", "publish Change Notifications on it")


async def test_with_mqtt_3_1_1_a_channel_is_identified_by_its_mqtt_topic(
    hub: Client, listen: Listen
):
    async with listen(version="3.1.1") as listener:
        await listener.publish(inbox(TOPIC), fragment(0, 1), "", "")
        assert (await listener.next()).payload == fragment(0, 1)


async def test_an_invalid_fragment_is_refused_and_the_next_is_accepted(
    listener: BrokerListener, hub: Client, watch: LogWatch
):
    for body in (b"<urlset", fragment(1, 0.5), b"\xff" * 100):
        await send(listener, body)
    await send(listener, fragment(0, 1))
    assert (await listener.next()).payload == fragment(0, 1)
    refusals = [line for line in watch.lines if "refused a message over MQTT" in line]
    assert len(refusals) == 3
    assert (await hub.metrics())['refused_total{code="invalid-fragment"}'] == 3


@pytest.mark.parametrize(
    ("channel", "name", "reason"),
    [
        (TOPIC, inbox(TOPIC + "x"), "belongs to another channel"),
        ("https://source.example/data", None, "mqtt_channels"),
        ("https://source.example/data/../x", None, "mqtt_channels"),
        ("javascript:alert(1)", None, "its channel"),
        ("", "rsnotify-in/unknown", "name its channel"),
    ],
)
async def test_a_message_on_the_topic_of_another_channel_is_refused(
    listener: BrokerListener,
    hub: Client,
    watch: LogWatch,
    channel: str,
    name: str | None,
    reason: str,
):
    await send(listener, fragment(0, 1), channel=channel, name=name)
    await watch.line("refused a message over MQTT", reason)
    assert await hub.topics() == []


async def test_a_message_with_qos_0_is_refused(
    listener: BrokerListener, hub: Client, watch: LogWatch
):
    listener.connection._client.publish(inbox(TOPIC), fragment(0, 1), qos=0)
    await watch.line("refused a message over MQTT", "QoS 0")
    await send(listener, fragment(1, 2))
    assert (await listener.next()).payload == fragment(1, 2)


async def test_without_channels_the_hub_accepts_nothing_over_mqtt(
    run_bridged: RunHub, listener: BrokerListener
):
    async with run_bridged() as hub:
        await send(listener, fragment(0, 1))
        await hub.accepted(fragment(1, 2))
        assert await listener.until(fragment(1, 2)) == [fragment(1, 2)]


async def test_a_callback_may_subscribe_to_a_topic_published_only_over_mqtt(
    run_bridged: RunHub, callback: Callback
):
    async with run_bridged(mqtt_channels=CHANNELS, publishers=[]) as hub:
        await hub.subscribe(callback)


async def test_the_acl_of_the_broker_decides_which_source_may_publish_what(
    run_hub: RunHub, tmp_path: Path, listen: Listen, watch: LogWatch
):
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
        await watch.line(ACCEPTING)
        await send(source, fragment(0, 1))
        assert (await subscriber.next()).payload == fragment(0, 1)
        for listener, channel, name in (
            (source, "https://source.example/of-another", None),
            (source, TOPIC, channel_topic(TOPIC)),
            (subscriber, TOPIC, None),
            (subscriber, TOPIC, channel_topic(TOPIC)),
        ):
            with pytest.raises(ConnectionRefused):
                await send(listener, b"a lie", channel=channel, name=name)
        await send(source, fragment(1, 2))
        assert (await subscriber.next()).payload == fragment(1, 2)
        assert source.messages.empty(), "a Source reads nothing"
