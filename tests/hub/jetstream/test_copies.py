"""Copies of a stream that differ, of which each node has to find the right ones."""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
from collections.abc import Iterable
from pathlib import Path

import pytest

from rsnotify.errors import StorageError
from rsnotify_jetstream import stream_follower as follower
from rsnotify_jetstream.jetstream_log import JetStreamLog
from tests.hub.helpers import TOPIC, Clock
from tests.hub.jetstream.nodes import Node, prefixed, running_node
from tests.hub.storing import made
from tests.nats_servers import NatsCluster, running_nats

RIGHT = [made(number, number + 1) for number in range(20)]
WRONG = [made(number, number + 1) for number in range(100, 120)]


async def publish(cluster: NatsCluster, fragments: Iterable[object], clock: Clock) -> str:
    """Publish to a cluster, and return the name of the leader of the stream."""
    async with running_node(prefixed(cluster.url), clock) as node:
        for fragment in fragments:
            await node.append(TOPIC, fragment)  # type: ignore[arg-type]
        return await leader(node)


async def leader(node: Node) -> str:
    assert isinstance(node.store, JetStreamLog)
    return str(((await node.store.stream.info()).get("cluster") or {}).get("leader", ""))


def messages(folder: Path) -> Path:
    """Return where a server keeps the messages of the log."""
    return next(folder.rglob("streams/rsnotify-log/msgs"))


async def spoil(cluster: NatsCluster, folder: Path, names: Iterable[str], clock: Clock) -> None:
    """Replace the copies of some servers by one that has other records at the same positions."""
    with running_nats(folder / "other") as other:
        await publish(other, WRONG, clock)
    for name in names:
        server = cluster.servers[name]
        server.stop(signal.SIGTERM)
        shutil.rmtree(messages(folder / name))
        shutil.copytree(messages(folder / "other"), folder / name / "copied")
        shutil.move(folder / name / "copied", next(folder.glob(f"{name}/**/rsnotify-log")) / "msgs")
        server.start()
        await asyncio.to_thread(cluster.wait)


async def test_every_node_starts_with_the_log_that_a_majority_of_the_copies_has(
    cluster: NatsCluster, tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
):
    leading = await publish(cluster, RIGHT, clock)
    following = next(name for name in cluster.servers if name != leading)
    await spoil(cluster, tmp_path, [following], clock)
    with caplog.at_level(logging.ERROR):
        for _ in range(6):
            async with running_node(prefixed(cluster.url), clock) as node:
                assert await node.kept(TOPIC) == RIGHT
    assert f"on the NATS server {following} is wrong from record 1 on" in caplog.text


@pytest.mark.slow  # NATS takes half a minute to elect a leader
async def test_a_wrong_copy_may_lead_the_stream(cluster: NatsCluster, tmp_path: Path, clock: Clock):
    leading = await publish(cluster, RIGHT, clock)
    following = next(name for name in cluster.servers if name != leading)
    await spoil(cluster, tmp_path, [following], clock)
    async with running_node(prefixed(cluster.url), clock) as node:
        assert isinstance(node.store, JetStreamLog)
        while await leader(node) != following:
            await node.store.connection.api(
                f"STREAM.LEADER.STEPDOWN.{node.store.stream.name}", what="to change the leader"
            )
    async with running_node(prefixed(cluster.url), clock) as node:
        assert await node.kept(TOPIC) == RIGHT


@pytest.mark.slow  # NATS takes half a minute to elect a leader
async def test_a_node_does_not_start_where_no_majority_of_the_copies_agrees(
    cluster: NatsCluster, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(follower, "PATIENCE", 1)
    leading = await publish(cluster, RIGHT, clock)
    wrong, stopped = (name for name in cluster.servers if name != leading)
    await spoil(cluster, tmp_path, [wrong], clock)
    cluster.servers[stopped].stop()
    with pytest.raises(StorageError, match=r"differ from record 1 on.*no majority agrees"):
        async with running_node(prefixed(cluster.url), clock):
            pass


async def test_a_gap_is_filled_with_what_a_majority_of_the_copies_has(
    cluster: NatsCluster, tmp_path: Path, clock: Clock
):
    async with running_node(prefixed(cluster.url), clock) as cut:
        assert isinstance(cut.store, JetStreamLog)
        await cut.store._follower._live.unsubscribe()
        async with cut.store._follower._lock:
            leading = await publish(cluster, RIGHT, clock)
            following = next(name for name in cluster.servers if name != leading)
            await spoil(cluster, tmp_path, [following], clock)
        await cut.store.catch_up()
        assert cut.listener.fragments(TOPIC) == RIGHT
