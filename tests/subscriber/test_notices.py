"""A Destination hears of the Source's documents, and looks at what may help."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from rsnotify.format.datetimes import MICROSECOND, Instant
from rsnotify.format.model import Capability, ChangeType, Document, Link, Rel, Resource
from rsnotify.format.offer import Offer
from rsnotify.format.writer import write_document
from rsnotify_subscriber import MqttOptions, OfferChanged, PushUp, Subscriber, Via
from rsnotify_subscriber.fetching.sessions import Sessions
from rsnotify_subscriber.push.endpoints import EndpointFactory
from rsnotify_subscriber.push.mqtt_transport import DEFAULT_MQTT, MqttTransport
from tests.subscriber.destination import PACE, Destination
from tests.subscriber.hub import SmallHub, push
from tests.subscriber.source import SmallSource

#: While push works the lists are read by themselves so rarely that it never happens here.
PUSHED = replace(PACE, poll_with_push=600)
LIST = "/data/changelist.xml"


@pytest.fixture
async def herald(source: SmallSource) -> AsyncIterator[SmallHub]:
    """A hub that tells of documents; the Source Description names it."""
    async with SmallHub() as hub:
        topic = source.base + "framework.xml"
        source.describe(source.url, links=[Link(Rel.MONITOR_GROUP, topic), Link(Rel.HUB, hub.url)])
        yield hub


@pytest.fixture(autouse=True)
def offered(source: SmallSource, hub: SmallHub) -> None:
    source.hubs = [hub.url]
    source.put_some()


@asynccontextmanager
async def hearing(destination: Destination, herald: SmallHub) -> AsyncIterator[Subscriber]:
    """Follow, from the moment changes and documents are told of."""
    async with destination.subscriber(pace=PUSHED) as subscriber:
        await destination.until_pushed(relaxed=True)
        await herald.subscribed()
        yield subscriber


async def tell(herald: SmallHub, source: SmallSource, *documents: Resource) -> None:
    before: Instant = herald.log[-1][1] if herald.log else source.begins
    at = max(source.last, before) + MICROSECOND
    dated = tuple(replace(one, datetime=at, change=ChangeType.UPDATED) for one in documents)
    notice = Document(Capability.FRAMEWORK_NOTIFICATION, dated, from_=before, until=at)
    await herald.publish(write_document(notice), before, at)


def capability_list(source: SmallSource) -> Resource:
    return Resource(source.url, capability=Capability.CAPABILITY_LIST)


async def offered_again(destination: Destination) -> Offer:
    """Wait until it is known that the Source has no archive any more."""

    def found() -> list[Offer]:
        offers = (event.now for event in destination.events_of(OfferChanged))
        return [offer for offer in offers if offer.change_list_archive is None]

    await destination.until(lambda: bool(found()))
    return found()[0]


async def test_what_is_offered_is_read_again_after_a_notice(
    source: SmallSource, herald: SmallHub, destination: Destination
) -> None:
    async with hearing(destination, herald):
        source.archive = False
        await tell(herald, source, capability_list(source))
        offer = await offered_again(destination)
    assert offer.framework == source.base + "framework.xml"


async def test_who_was_away_is_told_what_it_missed(
    source: SmallSource, herald: SmallHub, destination: Destination
) -> None:
    async with hearing(destination, herald):
        looked = source.gets["/data/capabilitylist.xml"]
        await tell(herald, source, capability_list(source))
        await source.requested("/data/capabilitylist.xml", looked + 1)
        await herald.stop()
        source.archive = False
        await tell(herald, source, capability_list(source))
        await herald.server.start()
        await offered_again(destination)
    assert herald.subscriptions[-1]["since"] is not None


async def test_nonsense_on_that_channel_is_passed_over(
    source: SmallSource,
    hub: SmallHub,
    herald: SmallHub,
    destination: Destination,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with hearing(destination, herald):
        at = source.last + MICROSECOND
        await herald.publish(b"<html/>", at, at)
        uri = source.base + "liar"
        lie = Resource(uri, change=ChangeType.CREATED, datetime=at)
        await herald.publish(source.fragment([lie], source.last), at, at)
        source.put("r1", b"told as it should be")
        await push(source, hub)
        await destination.until(lambda: destination.files()["r1"] == b"told as it should be")
    assert "liar" not in destination.files()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_herald_that_is_away_is_no_reason_to_warn_or_to_poll(
    herald: SmallHub, destination: Destination, caplog: pytest.LogCaptureFixture
) -> None:
    await herald.stop()
    async with destination.subscriber(pace=PUSHED):
        await destination.until_pushed(relaxed=True)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    await herald.server.start()


@pytest.mark.parametrize("via", [Via.POLL, Via.MQTT])
async def test_who_polls_does_not_listen_to_it(
    via: Via, source: SmallSource, herald: SmallHub, destination: Destination
) -> None:
    if via is Via.MQTT:
        source.hubs = ["mqtt://127.0.0.1:9"]
    async with destination.subscriber(via=via) as subscriber:
        await destination.until(lambda: subscriber.status.level)
    assert herald.subscriptions == []


async def test_a_source_without_a_hub_for_changes_may_have_one_for_documents(
    source: SmallSource, herald: SmallHub, destination: Destination
) -> None:
    source.hubs = []
    async with destination.subscriber(pace=replace(PACE, poll=2)):
        await herald.subscribed()
        await destination.until_equal()
        source.put("r0", b"another")
        changed = Resource(source.base + "changelist.xml", capability=Capability.CHANGE_LIST)
        await tell(herald, source, changed)
        await destination.until_equal()
    assert not destination.events_of(PushUp)


# By which ways

OFFER = Offer(
    channel="http://a/channel.xml",
    hubs=("mqtt://broker.example/rsnotify/one", "wss://hub.example/ws"),
    framework="http://a/framework.xml",
    framework_hubs=("mqtt://broker.example/rsnotify/two", "wss://hub.example/ws"),
)


def ways(mqtt: MqttOptions = DEFAULT_MQTT, via: Via = Via.AUTO) -> EndpointFactory:
    return EndpointFactory(via, Sessions("http://a/"), None, mqtt)


async def test_documents_are_heard_of_by_the_ways_of_changes() -> None:
    found = ways().notice_endpoints(OFFER)
    assert [(way.kind, way.hub) for way in found] == [
        (Via.WEBSOCKET, "wss://hub.example/ws"),
        (Via.MQTT, "mqtt://broker.example/rsnotify/two"),
    ]
    assert {way.topic for way in found} == {OFFER.framework}


async def test_the_same_offer_gives_the_same_ways_so_that_none_is_opened_again() -> None:
    usable = ways()
    assert usable.notice_endpoints(OFFER) == usable.notice_endpoints(
        replace(OFFER, change_list="http://a/x")
    )


async def test_a_broker_with_one_name_for_all_tells_of_changes_alone() -> None:
    one = MqttOptions(url="mqtt://broker.example/any/name")
    assert ways(one, Via.MQTT).notice_endpoints(OFFER) == []
    many = MqttOptions(url="mqtt://broker.example/any/")
    assert len(ways(many, Via.MQTT).notice_endpoints(OFFER)) == 1


async def test_a_session_that_a_broker_keeps_stays_with_the_changes() -> None:
    usable = ways(MqttOptions(url="mqtt://broker.example/", session="mine"), Via.MQTT)
    (way,) = usable.notice_endpoints(OFFER)
    transport = way.make_transport(way)
    assert isinstance(transport, MqttTransport)
    assert transport.options.session == ""
