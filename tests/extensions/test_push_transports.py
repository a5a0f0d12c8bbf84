"""What the cores expect of each transport to a broker (`rsnotify.transports`), MQTT included."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError, FetchError
from rsnotify.format.model import Document
from rsnotify.format.reader import read_document
from rsnotify.runtime import extensions
from rsnotify.runtime.mqtt_broker import BrokerLogin, parse_broker
from rsnotify.runtime.transport_extensions import (
    ChannelPlace,
    offered_schemes,
    offered_transport,
    place_of,
    transport_of,
)
from rsnotify_hub.config.loading import load_configuration
from rsnotify_publisher import Hub, Publisher, parse_hub
from rsnotify_publisher.hubs import parse_hubs
from rsnotify_subscriber import FollowOptions, Via
from rsnotify_subscriber.push.mqtt_transport import MqttOptions, MqttTransport
from rsnotify_subscriber.push.transport import Transport
from tests.mosquitto import Mosquitto
from tests.prosody import Prosody
from tests.publisher.helpers import BASE, PATIENCE, QUICK, chain_of
from tests.subscriber.hub import anywhere
from tests.subscriber.recording import RecordingListener

CHANNEL = BASE + "channel.xml"
OTHER = BASE + "other/channel.xml"


class Case(Struct, frozen=True):
    """A transport with a server.

    Args:
        url: The URL of its broker.
        wrong: URLs of its scheme that name no broker.
        login: The type of its login.
        hub: Returns the broker as a hub that a Source may use.
        receive: Returns what receives a topic.
    """

    url: str
    wrong: tuple[str, ...]
    login: type[Any]
    hub: Callable[[], Hub]
    receive: Callable[[str], Transport]


def mqtt_case(server: Mosquitto) -> Case:
    def receive(topic: str) -> Transport:
        return MqttTransport(
            parse_broker(server.url), topic, MqttOptions(), allows_any_address=anywhere
        )

    return Case(
        server.url, ("mqtt:", "mqtt://"), BrokerLogin, lambda: parse_hub(server.url), receive
    )


def xmpp_case(server: Prosody) -> Case:
    transport = transport_of("xmpp")
    return Case(
        server.url,
        ("xmpp:", "xmpp://pubsub.example"),
        transport.login,
        lambda: parse_hub(server.url, logins={"xmpp": server.login("hub")}),
        lambda topic: transport.receive_from(server.url, topic, server.login("reader")),
    )


CASES: dict[str, tuple[str, Callable[[Any], Case]]] = {
    "mqtt": ("mosquitto", mqtt_case),
    "xmpp": ("prosody", xmpp_case),
}


@pytest.fixture(params=sorted({"mqtt", *offered_schemes()}))
def case(request: pytest.FixtureRequest) -> Case:
    server, make = CASES[request.param]
    return make(request.getfixturevalue(server))


@pytest.fixture
def place(case: Case) -> ChannelPlace:
    found = place_of(case.url)
    assert found is not None
    return found


async def test_each_channel_has_a_url_of_its_own(place: ChannelPlace) -> None:
    assert place.has_prefix
    urls = [place.url_for(channel) for channel in (CHANNEL, OTHER)]
    assert len({*urls}) == 2
    for url in urls:
        named = place_of(url)
        assert named is not None
        assert (named.url, named.has_prefix) == (place.url, False)
        assert named.url_for(CHANNEL) == url, "it names the channel already"


async def test_the_url_of_no_channel_stays(place: ChannelPlace) -> None:
    # Hubs keep their cursors by it.
    expected = {
        "xmpp": "?;node=rsnotify/e3b0c44298fc1c149afbf4c8996fb924",
        "mqtt": "/rsnotify/e3b0c44298fc1c149afbf4c8996fb924",
    }
    assert place.url_for("") == place.url + expected[place.url.partition(":")[0]]


async def test_a_url_that_names_no_broker_is_refused(case: Case) -> None:
    for url in case.wrong:
        with pytest.raises(ConfigurationError):
            place_of(url)


async def test_a_login_without_values_can_be_checked(case: Case) -> None:
    login = case.login()
    login.check()
    assert "canary" not in repr(case.login(password="canary"))


async def test_a_channel_without_anything_is_a_gap_or_an_error(case: Case) -> None:
    recorder = RecordingListener()
    task = asyncio.create_task(case.receive(CHANNEL).receive(None, recorder))
    knows = asyncio.create_task(recorder.more_than(0))
    await asyncio.wait({task, knows}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        with pytest.raises(FetchError):
            task.result()
    else:
        assert recorder.events[0] in ("up", "gap")
    for one in (task, knows):
        one.cancel()
    await asyncio.gather(task, knows, return_exceptions=True)


@asynccontextmanager
async def receiving(case: Case, topic: str = CHANNEL) -> AsyncIterator[RecordingListener]:
    """Receive, and connect again, as there may be no such channel at first."""
    recorder = RecordingListener()

    async def receive() -> None:
        while True:
            with suppress(FetchError):
                await case.receive(topic).receive(None, recorder)
            await asyncio.sleep(0.05)

    task = asyncio.create_task(receive())
    try:
        yield recorder
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_what_a_source_feeds_arrives_in_a_chain(case: Case, tmp_path: Path) -> None:
    options = replace(QUICK, fragment_entries=7, heartbeat=0.2)
    async with Publisher(tmp_path, BASE, hubs=[case.hub()], options=options) as publisher:
        await publisher.aupdated(BASE + "first")
        async with receiving(case) as recorder:
            await recorder.until_recorded("up")
            for number in range(50):
                await publisher.aupdated(BASE + str(number))
            async with asyncio.timeout(PATIENCE):
                # Heartbeats follow.
                while BASE + "49" not in uris(recorder) or documents(recorder)[-1].resources:
                    await recorder.more_than(len(recorder.events))
    found = documents(recorder)
    assert [uri for uri in uris(recorder) if uri != BASE + "first"] == [
        BASE + str(number) for number in range(50)
    ]
    chain_of(found)


async def test_another_channel_is_not_received(case: Case, tmp_path: Path) -> None:
    async with (
        Publisher(tmp_path / "one", BASE, hubs=[case.hub()], options=QUICK) as one,
        Publisher(tmp_path / "two", BASE + "other/", hubs=[case.hub()], options=QUICK) as two,
    ):
        for publisher, uri in ((one, BASE + "a"), (two, BASE + "other/b")):
            await publisher.aupdated(uri)
        async with receiving(case) as recorder:
            await recorder.until_recorded("up")
            await two.aupdated(BASE + "other/c")
            await one.aupdated(BASE + "d")
            async with asyncio.timeout(PATIENCE):
                while BASE + "d" not in uris(recorder):
                    await recorder.more_than(len(recorder.events))
    assert {*uris(recorder)} <= {BASE + "a", BASE + "d"}


def documents(recorder: RecordingListener) -> list[Document]:
    return [read_document(one) for one in recorder.events if isinstance(one, bytes)]


def uris(recorder: RecordingListener) -> list[str]:
    return [entry.uri for document in documents(recorder) for entry in document.resources]


@pytest.mark.parametrize("scheme", offered_schemes())
def test_an_offered_transport_has_a_login_that_is_not_given_by_default(scheme: str) -> None:
    transport = transport_of(scheme)
    assert transport.name
    assert not transport.login().is_given
    assert Via(scheme).value == scheme
    with pytest.raises(ConfigurationError, match=transport.needs):
        FollowOptions(via=Via(scheme))


def test_a_transport_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "offered", lambda _group: {})
    expected = "pip install 'rsnotify[xmpp]'"
    for use in (
        lambda: parse_hubs(["xmpp:pubsub.example"]),
        lambda: FollowOptions(via=Via.XMPP),
        lambda: load_configuration(None, xmpp_url="xmpp:pubsub.example"),
        lambda: offered_transport("xmpp:pubsub.example"),
    ):
        with pytest.raises(ConfigurationError) as caught:
            use()
        assert expected in str(caught.value)
    with pytest.raises(ConfigurationError, match="is not the URL of a hub"):
        parse_hub("stomp://broker.example")
