"""The nodes of a hub restart one after the other, and no Destination falls back to polling."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rsnotify.sync.pace import Pace
from rsnotify_subscriber import (
    FolderMirror,
    FollowOptions,
    PushState,
    Subscriber,
    Via,
)
from rsnotify_subscriber.commands.follow_options import CallbackServer
from rsnotify_subscriber.events import Event, Pulling, PushDown
from tests.end_to_end import history
from tests.end_to_end.cluster_killing import NODES, ClusterStage
from tests.nats_servers import running_nats
from tests.ports import free_port


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
