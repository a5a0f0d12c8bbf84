"""Nodes of one hub, killed while a history is replayed: the Destination ends equal."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import Process
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest
from msgspec.structs import replace

from rsnotify.sync.pace import Pace
from rsnotify_subscriber import (
    Event,
    FolderMirror,
    FollowOptions,
    MqttOptions,
    Pulling,
    PushDown,
    PushState,
    Status,
    Subscriber,
    Via,
)
from rsnotify_subscriber.commands.follow_options import CallbackServer
from tests.end_to_end import history
from tests.end_to_end.cluster_stage import NODES, ClusterStage, hashes_of
from tests.end_to_end.counting import counting
from tests.end_to_end.replay import replay
from tests.end_to_end.scenes import Plan
from tests.end_to_end.stage import Stage
from tests.hub.helpers import Client
from tests.hub.jetstream.hubs import until
from tests.nats_servers import running_nats
from tests.ports import free_port
from tests.subscriber.processes import SECONDS, running, until_reported

#: One node or two at a time, so that each of them has to take over.
PLAN: Plan = ((), ("node1",), ("node1", "node2"), ("node3",), ("node2", "follow"), ())


@pytest.mark.parametrize("via", ["websocket", "websub"])
async def test_a_destination_ends_equal_though_the_nodes_of_the_hub_are_killed_in_turn(
    tmp_path: Path, via: str
):
    with running_nats(tmp_path / "nats") as nats:
        stage = Stage(tmp_path, NODES, counting("--via", via), nats.url)
        assert await replay(stage, list(history.make_up(300, seed=11)), PLAN, rate=50)


# Two hubs, or two nodes of one, as real processes, one of which is killed.


@pytest.mark.parametrize("between", ["nodes", "hubs"])
async def test_a_killed_hub_is_followed_by_the_other_within_seconds(tmp_path: Path, between: str):
    ports = [free_port(), free_port()]
    first, second = (f"ws://127.0.0.1:{port}/ws" for port in ports)
    hubs = [("hub", "--port", port, "--data", tmp_path / str(port)) for port in ports]
    data, base = tmp_path / "data", f"http://127.0.0.1:{free_port()}/"
    data.mkdir()
    (data / "one").write_text("1")
    source = ("source", data, "--base-url", base, "--port", base.split(":")[2][:-1])
    follow = ("follow", base, tmp_path / "mirror", "--json", "--poll", 600)
    async with AsyncExitStack() as stack:

        async def serves(*arguments: object) -> Process:
            process = await stack.enter_async_context(running(*arguments))
            assert process.stdout is not None
            async with asyncio.timeout(SECONDS):
                assert b"http://" in await process.stdout.readline()
            return process

        # Each serves before the next begins, or one would begin with the lesser way.
        better, _ = [await serves(*hub) for hub in hubs]
        named = [f"{first},{second}"] if between == "nodes" else [first, second]
        await serves(*source, *(part for each in named for part in ("--hub", each)))
        follower = await stack.enter_async_context(running(*follow, "--allow-private-addresses"))
        await until_reported(follower, way=[first], resources=1, level=True)
        better.kill()
        await until_reported(follower, way=[second], push="up")
        (data / "two").write_text("2")
        await until_reported(follower, resources=2, level=True)
    assert (tmp_path / "mirror/two").read_text() == "2"


# The nodes of a hub restart one after the other, and no Destination falls back to polling.


class Watched:
    """A Destination, and how often no push reached it.

    Attributes:
        lost: Why the last connection of push was lost, each time since `begin`.
        pulls: The documents that it began to read since `begin`.
    """

    def __init__(self, url: str, folder: Path, via: Via, server: CallbackServer) -> None:
        self.lost: list[str] = []
        self.pulls: list[str] = []
        self.subscriber = Subscriber(
            url,
            FolderMirror(folder),
            state=folder.with_name(folder.name + ".state"),
            options=FollowOptions(
                via=via,
                pace=Pace(poll=600),
                callbacks=server.callbacks,
                allow_private_addresses=True,
            ),
            on_event=self._happened,
        )

    def _happened(self, event: Event) -> None:
        if isinstance(event, Pulling):
            self.pulls.append(str(event.kind))
        if isinstance(event, PushDown) and not event.left:
            self.lost.append(event.reason)

    def begin(self) -> None:
        self.lost, self.pulls = [], []


@pytest.mark.slow
async def test_no_destination_falls_back_to_polling_while_the_nodes_are_restarted_in_turn(
    tmp_path: Path,
):
    url = f"http://127.0.0.1:{free_port()}/"
    with (
        running_nats(tmp_path / "nats", servers=3) as nats,
        CallbackServer(url, "127.0.0.1", None) as server,
    ):
        stage = ClusterStage(tmp_path, nats, fast=False)
        try:
            await stage.start()
            await stage.shared()
            destinations = {
                via: Watched(stage.url, tmp_path / via, via, server)
                for via in (Via.WEBSOCKET, Via.WEBSUB)
            }
            async with server.serving(), asyncio.TaskGroup() as tasks:
                for each in destinations.values():
                    tasks.create_task(each.subscriber.run())
                for each in destinations.values():
                    await each.subscriber.until(lambda s: s.push is PushState.UP and s.level)
                for each in destinations.values():
                    each.begin()
                replaying = asyncio.create_task(
                    asyncio.to_thread(
                        history.apply, list(history.make_up(900)), stage.source_folder, 20
                    )
                )
                for name in NODES:
                    await stage.restart(name)
                await replaying
                found = {via: (each.lost, each.pulls) for via, each in destinations.items()}
                print(found)
                assert await stage.in_step()
                for each in destinations.values():
                    await each.subscriber.until(lambda s: s.level and not s.pending)
                    each.subscriber.stop()
            assert not any(lost for lost, _ in found.values()), found
        finally:
            await stage.stop()


# NATS loses everything while a Source, a hub of several nodes and Destinations run.


def is_followed(status: Status) -> bool:
    return status.push is PushState.UP and status.level


@pytest.mark.slow
async def test_destinations_converge_when_nats_loses_everything_and_push_comes_back(tmp_path: Path):
    url = f"http://127.0.0.1:{free_port()}/"
    steps = list(history.make_up(90, seed=3))
    with running_nats(tmp_path / "nats") as nats, CallbackServer(url, "127.0.0.1", None) as server:
        stage = ClusterStage(tmp_path, nats, fast=True)
        options = FollowOptions(
            pace=Pace(poll=0.5),
            callbacks=server.callbacks,
            mqtt=MqttOptions(url=stage.broker.url),
            allow_private_addresses=True,
        )
        folders = {via: tmp_path / via for via in (Via.WEBSOCKET, Via.WEBSUB, Via.MQTT)}

        async def converge() -> None:
            wanted = hashes_of(stage.source_folder)
            await until(lambda: all(hashes_of(each) == wanted for each in folders.values()))

        try:
            await stage.start()
            await stage.shared()
            async with server.serving(), asyncio.TaskGroup() as tasks:
                destinations = [
                    Subscriber(
                        stage.url,
                        FolderMirror(folder),
                        state=folder.with_name(f"{via}.state"),
                        options=replace(options, via=via),
                    )
                    for via, folder in folders.items()
                ]
                for each in destinations:
                    tasks.create_task(each.run())
                    assert await each.until(is_followed)
                history.apply(steps[:30], stage.source_folder)
                await converge()

                for each in nats.servers.values():
                    each.stop()
                    each.wipe()
                    each.start()
                history.apply(steps[30:60], stage.source_folder)
                await converge()
                async with aiohttp.ClientSession() as session:
                    for node in stage.nodes:
                        assert (await Client(node, session).get("readyz"))[0] == 503

                for name in NODES:
                    await stage.kill(name)
                for name in NODES:
                    await stage.revive(name)
                await stage.shared()
                for each in destinations:
                    assert await each.until(is_followed)
                history.apply(steps[60:], stage.source_folder)
                await converge()
                for each in destinations:
                    each.stop()
        finally:
            await stage.stop()
