"""Requesting only the selection from a hub, and not everything at once from a Source."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from rsnotify.format.model import ChangeType
from rsnotify.selection import Selection
from rsnotify.sync import pace
from tests.subscriber.destination import PACE, Destination
from tests.subscriber.hub import SmallHub, push
from tests.subscriber.source import SmallSource, status


@pytest.fixture(autouse=True)
def offered(source: SmallSource, hub: SmallHub) -> None:
    source.hubs = [hub.url]
    source.put("maps/a.ttl", b"a map", type="text/turtle")
    source.put("b", b"no map")


async def test_a_hub_is_asked_for_the_selection(
    source: SmallSource, hub: SmallHub, destination: Destination
) -> None:
    selection = Selection(
        only=(source.base + "maps/*.ttl",), types=("text/turtle",), changes=(ChangeType.UPDATED,)
    )
    async with destination.following(selection=selection):
        assert hub.subscriptions[0]["select"] == {
            "prefixes": [source.base + "maps/"],
            "types": ["text/turtle"],
            "changes": ["updated"],
        }


async def test_a_hub_is_asked_for_everything_where_it_could_not_choose(
    hub: SmallHub, destination: Destination
) -> None:
    async with destination.following(selection=Selection(excluded=("b",))):
        assert "select" not in hub.subscriptions[0]


async def test_the_next_poll_supplies_changes_that_a_hub_left_out_wrongly(
    source: SmallSource, hub: SmallHub, destination: Destination
) -> None:
    async with destination.following(selection=Selection(types=("text/turtle",))) as subscriber:
        assert set(destination.files()) == {"maps/a.ttl", "b"}
        before = source.last
        # It is no Turtle any more, so that the hub leaves it out; the copy is to give it up.
        source.put("maps/a.ttl", b"<html>", type="text/html")
        await hub.publish(source.fragment([], before, source.last), before, source.last)
        await destination.until(
            lambda: subscriber.status.resources == 1 and set(destination.files()) == {"b"}
        )


@pytest.mark.parametrize(
    "frame", ["{", '{"type":7}', '{"type":"subscribed","audience":"all"}', '{"type":"news"}']
)
async def test_an_unknown_frame_of_a_hub_does_not_end_following(
    source: SmallSource, hub: SmallHub, destination: Destination, frame: str
) -> None:
    async with destination.following() as subscriber:
        for socket in list(hub.sockets):
            await socket.send_str(frame)
        source.put("c", b"c")
        await push(source, hub)
        await destination.until(lambda: subscriber.status.resources == 3)


@pytest.mark.parametrize("many", [True, False])
async def test_many_destinations_spread_their_requests_and_few_do_not(
    many: bool,
    source: SmallSource,
    hub: SmallHub,
    destination: Destination,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not many:
        # If they waited, it would be for hours.
        monkeypatch.setattr(pace, "_SUBSCRIBERS_PER_SECOND", 0.01)
        monkeypatch.setattr(pace, "_MAX_SPREAD_SECONDS", 10_000.0)
    hub.audience = 200 if many else 100  # many: within a second
    async with destination.following():
        source.answers["/data/changelist.xml"] = status(503)
        began = asyncio.get_running_loop().time()
        for number in range(40):
            source.put(f"r{number}", b"%d" % number)
            await push(source, hub)
        await destination.until_equal()
        assert not many or asyncio.get_running_loop().time() - began > 0.5


async def test_the_rate_of_requests_is_limited(
    source: SmallSource, hub: SmallHub, destination: Destination
) -> None:
    for number in range(20):
        source.put(f"r{number}", b"%d" % number)
    began = asyncio.get_running_loop().time()
    bounded = replace(PACE, rate=50.0)
    async with destination.following(pace=bounded):
        assert destination.equals_source()
        assert asyncio.get_running_loop().time() - began >= 21 / 50
