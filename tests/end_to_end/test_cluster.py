"""Nodes of one hub, killed while a history is replayed: the Destination ends equal."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.end_to_end import history
from tests.end_to_end.cluster_killing import killing
from tests.end_to_end.counting import counting
from tests.end_to_end.replay import replay
from tests.end_to_end.scenes import Plan
from tests.end_to_end.stage import Stage
from tests.nats_servers import running_nats

NODES = ("node1", "node2", "node3")
#: One node or two at a time, so that each of them has to take over.
PLAN: Plan = ((), ("node1",), ("node1", "node2"), ("node3",), ("node2", "follow"), ())


@pytest.mark.parametrize("via", ["websocket", "websub"])
async def test_a_destination_ends_equal_though_the_nodes_of_the_hub_are_killed_in_turn(
    tmp_path: Path, via: str
) -> None:
    with running_nats(tmp_path / "nats") as nats:
        stage = Stage(tmp_path, NODES, counting("--via", via), nats.url)
        assert await replay(stage, list(history.make_up(300, seed=11)), PLAN, rate=50)


@pytest.mark.slow
async def test_nothing_is_lost_when_nodes_and_nats_servers_are_killed_at_random(
    tmp_path: Path,
) -> None:
    with running_nats(tmp_path / "nats", servers=3) as nats:
        await killing(
            tmp_path,
            nats,
            list(history.make_up(150, seed=12)),
            chance=random.Random(5),
            callbacks=6,
            sockets=9,
            clients=1,
            rate=50,
            rounds=4,
            pause=1.5,
            fast=True,
        )
