"""NATS loses everything while a Source, a hub of several nodes and Destinations run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest
from msgspec.structs import replace

from rsnotify.sync.pace import Pace
from rsnotify_subscriber import (
    FolderMirror,
    FollowOptions,
    MqttOptions,
    PushState,
    Status,
    Subscriber,
    Via,
)
from rsnotify_subscriber.commands.follow_options import CallbackServer
from tests.end_to_end import history
from tests.end_to_end.cluster_killing import NODES, ClusterStage, hashes_of
from tests.hub.helpers import Client
from tests.hub.jetstream.hubs import until
from tests.nats_servers import running_nats
from tests.ports import free_port


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
