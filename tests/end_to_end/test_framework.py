"""A Source, a hub or broker, and a Destination that hears of the Source's documents."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from rsnotify.format.offer import Offer
from rsnotify.sync.pace import Pace
from rsnotify_subscriber import Event, FolderMirror, FollowOptions, OfferChanged, Subscriber, Via
from tests.end_to_end.open_websockets import until_websockets
from tests.end_to_end.publishing import publishing
from tests.mosquitto import Mosquitto
from tests.publisher.helpers import PATIENCE, QUICK
from tests.subscriber.websub.desk import open_desk

#: A document is read soon after a notification about it, and otherwise every ten minutes only.
PACE = Pace(poll=0.8, poll_with_push=600)
#: The Source has one for both channels, and the Destination one for each.
OPEN = 3


class Ear:
    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self.offers: list[Offer] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, OfferChanged):
            self.offers.append(event.now)
            self._changed.set()

    async def of_an_archive(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while not any(offer.resource_list_archive for offer in self.offers):
                self._changed.clear()
                await self._changed.wait()


@pytest.mark.parametrize("via", [Via.WEBSOCKET, Via.WEBSUB, Via.MQTT])
async def test_what_is_new_is_heard_of_by_every_way(
    via: Via, hub: str, mosquitto: Mosquitto, tmp_path: Path, unused_tcp_port: int
):
    where = {Via.WEBSOCKET: hub, Via.WEBSUB: hub + "websub", Via.MQTT: mosquitto.url}[via]
    ear, folder = Ear(), tmp_path / "source"
    async with open_desk() as desk:
        subscriber = Subscriber(
            f"http://127.0.0.1:{unused_tcp_port}/",
            FolderMirror(tmp_path / "mirror"),
            state=tmp_path / "state",
            options=FollowOptions(pace=PACE, via=via, callbacks=desk.callbacks),
            on_event=ear,
        )
        async with publishing(folder, unused_tcp_port, where, QUICK) as publisher:
            task = asyncio.create_task(subscriber.run())
            await publisher.acreated(publisher.source.base_url + "r1")
            assert await subscriber.until(lambda status: status.resources == 1)
            if via is Via.WEBSOCKET:
                await until_websockets(hub, OPEN)
            elif via is Via.WEBSUB:
                await desk.subscriptions_at(hub, 2)
        assert not any(offer.resource_list_archive for offer in ear.offers)
        options = replace(QUICK, resource_list_archive=True)
        async with publishing(folder, unused_tcp_port, where, options):
            await ear.of_an_archive()
        subscriber.stop()
        await task


async def test_a_rotation_disturbs_nobody_who_is_in_step(
    hub: str, tmp_path: Path, unused_tcp_port: int
):
    options = replace(QUICK, rotate="10 changes")
    async with (
        publishing(tmp_path / "source", unused_tcp_port, hub, options) as publisher,
        Subscriber(
            publisher.source.base_url,
            FolderMirror(tmp_path / "mirror"),
            state=tmp_path / "state",
            options=FollowOptions(pace=PACE),
        ) as subscriber,
    ):
        await until_websockets(hub, OPEN)
        for number in range(40):
            await publisher.acreated(f"{publisher.source.base_url}r{number}")
        async with asyncio.timeout(PATIENCE):
            await subscriber.until(lambda status: status.resources == 40 and status.level)
    assert len(list((tmp_path / "mirror").iterdir())) == 40
