"""The leases of the parts of topics that are published over MQTT."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rsnotify.errors import ConnectionRefused, Unavailable
from rsnotify.runtime.mqtt_broker import DEFAULT_PREFIX, LEASE
from rsnotify.selection import PushSelection
from rsnotify_hub import mqtt_bridge as bridge
from rsnotify_hub.bridging import BacklogSender, BrokerCursors
from rsnotify_hub.filtering import TopicSelection
from rsnotify_hub.mqtt_bridge import FilteredTopicLeases
from tests.hub.helpers import TOPIC, Client, LogWatch, RunHub, Time
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

OTHER = PushSelection(prefixes=(BASE + "b",))
OTHER_NAME = DEFAULT_PREFIX + OTHER.digest(TOPIC)
THIRD = PushSelection(prefixes=(BASE + "c",))


@pytest.fixture
def time(often_cleaned: None, monkeypatch: pytest.MonkeyPatch) -> Time:
    """The clock of the leases."""
    found = Time()
    monkeypatch.setattr(bridge, "_now", found)
    return found


#: A hub that serves one filtered topic at a time. There are listeners to two; the first is served.
Parts = tuple[Client, BrokerListener, BrokerListener]


@pytest.fixture
async def parts(time: Time, run_hub_with_parts: RunHub, listen: Listen) -> AsyncIterator[Parts]:
    async with (
        run_hub_with_parts(max_selections=1) as hub,
        listen(MAPS_NAME) as first,
        listen(OTHER_NAME) as second,
    ):
        await hub.accepted(named(0, maps_a=1, b=1))
        await request_part(first)
        assert span((await first.next()).payload) == (0, 1, [1])
        yield hub, first, second


async def test_a_part_that_nobody_renewed_is_replaced_by_another(
    time: Time, parts: Parts, watch: LogWatch
):
    _, first, second = parts
    time.seconds = LEASE / 2  # a Destination renews its request by then
    await request_part(second, OTHER)
    await watch.line(REFUSED, "too many filtered topics")
    time.seconds = LEASE * 0.7
    await request_part(second, OTHER)
    assert span((await second.next()).payload) == (0, 1, [1])
    assert (await first.next()).payload == b""


@pytest.fixture
def never_cleaned(time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "_CLEAN_UP_SECONDS", 3_600.0)


@pytest.mark.usefixtures("never_cleaned")
async def test_a_replaced_part_counts_against_the_limit_when_requested_again(
    time: Time, parts: Parts, watch: LogWatch
):
    _, first, second = parts
    time.seconds = LEASE * 0.7
    await request_part(second, OTHER)
    await second.next()
    await request_part(first)
    await watch.line(REFUSED, "too many filtered topics")


async def test_a_renewed_part_stays_and_the_oldest_other_is_replaced(
    time: Time, run_hub_with_parts: RunHub, listen: Listen
):
    async with run_hub_with_parts(max_selections=2) as hub, listen("rsnotify/+") as listener:
        await hub.accepted(named(0, maps_a=1))
        await request_part(listener)
        await request_part(listener, OTHER)
        names = set[str]()
        while not {MAPS_NAME, OTHER_NAME} <= names:
            names.add((await listener.next()).topic)
        time.seconds = LEASE * 0.6
        await request_part(listener)
        time.seconds = LEASE * 0.7
        await request_part(listener, THIRD)
        while (message := await listener.next()).payload:
            pass
        assert message.topic == OTHER_NAME


@pytest.mark.parametrize("error", [Unavailable, ConnectionRefused])
async def test_deleting_a_part_is_retried_after_an_error(
    time: Time,
    part: BrokerListener,
    hub: Client,
    watch: LogWatch,
    monkeypatch: pytest.MonkeyPatch,
    error: type[Unavailable],
):
    suspended, tries = BacklogSender.suspended, list[TopicSelection]()

    @asynccontextmanager
    async def fail_once(self: BacklogSender, selection: TopicSelection) -> AsyncIterator[None]:
        tries.append(selection)
        if len(tries) == 1:
            raise error("mqtt://broker.example", "not now")
        async with suspended(self, selection):
            yield

    monkeypatch.setattr(BacklogSender, "suspended", fail_once)
    await begin_part(hub, part)
    time.seconds = LEASE + 1
    while (await part.next()).payload:  # again, if the connection was lost before its PUBACK
        pass
    assert tries == [TopicSelection(TOPIC, MAPS)] * 2
    was_lost = any("the MQTT broker is unavailable" in line for line in watch.lines)
    assert was_lost is (error is Unavailable), "a refusal ends no connection"


async def test_a_part_that_expired_just_before_sending_can_be_requested_again(
    time: Time, part: BrokerListener, hub: Client, monkeypatch: pytest.MonkeyPatch
):
    wake, remove, senders = BacklogSender.wake, FilteredTopicLeases.remove, list[BacklogSender]()

    def remove_later(self: FilteredTopicLeases, selection: TopicSelection) -> None:
        wake(senders[0], selection.topic)
        remove(self, selection)

    move, is_sent = BrokerCursors.move, asyncio.Event()

    def move_and_notify(self: BrokerCursors, selection: TopicSelection, position: int) -> None:
        move(self, selection, position)
        if selection.select and position > 0:  # the request sets it to 0
            is_sent.set()

    with monkeypatch.context() as patch:
        patch.setattr(BrokerCursors, "move", move_and_notify)
        await begin_part(hub, part)
        await is_sent.wait()  # otherwise, the sender may read the second fragment on its way
    with monkeypatch.context() as patch:
        patch.setattr(BacklogSender, "wake", lambda self, topic: senders.append(self))
        patch.setattr(FilteredTopicLeases, "remove", remove_later)
        await hub.accepted(named(1, maps_a=2))
        time.seconds = LEASE + 1
        assert (await part.next()).payload == b""
    await request_part(part)
    assert span((await part.next()).payload) == (1, 2, [2])
