"""A log that one node deletes while another appends to it."""

from __future__ import annotations

import asyncio

import pytest

from rsnotify_hub.store.interface import LogMoved
from rsnotify_jetstream.nats_settings import NatsSettings
from tests.hub.helpers import TOPIC, Clock
from tests.hub.jetstream.load import nodes
from tests.hub.jetstream.nodes import Node, caught_up, running_node
from tests.hub.storing import made, stored_logs
from tests.waiting import PATIENCE


async def test_a_log_to_which_another_node_has_just_appended_is_not_deleted(
    settings: NatsSettings, clock: Clock
):
    async with nodes(settings, clock, 2) as (one, two):
        await one.append(TOPIC, made(0, 1))
        await caught_up(two)
        async with one.log._follower._lock:  # it does not see what follows
            await two.append(TOPIC, made(1, 2))
            forgetting = asyncio.create_task(one.store.forget(TOPIC, after=one.position(TOPIC)))
            await asyncio.sleep(0)
        with pytest.raises(LogMoved):
            await forgetting
        await caught_up(two)
        assert one.listener.forgot == two.listener.forgot == []
        async with running_node(settings, clock) as late:
            for node in (one, two, late):
                assert await node.kept(TOPIC) == [made(0, 1), made(1, 2)]


async def test_what_is_acknowledged_is_deleted_only_by_who_knew_of_it(
    settings: NatsSettings, clock: Clock
):
    async with nodes(settings, clock, 3) as running:
        acknowledged: list[int] = []
        forgotten: list[int] = []
        deleted = asyncio.Event()

        async def publish(node: Node, number: int) -> None:
            second = number
            while not deleted.is_set():
                appended = await node.append(TOPIC, made(second, second + 1))
                acknowledged.extend(entry.position for entry in appended)
                second += 2

        async def forget(node: Node) -> None:
            while len(forgotten) < 15:
                after = node.position(TOPIC)
                try:
                    await node.store.forget(TOPIC, after=after)
                    forgotten.append(after)
                except LogMoved:
                    await asyncio.sleep(0)
            deleted.set()

        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(publish(running[0], 0), publish(running[1], 1), forget(running[2]))
        await caught_up(*running)
        async with running_node(settings, clock) as late:
            states = [await stored_logs(node.store) for node in (*running, late)]
            assert states.count(states[0]) == 4
            entries = [entry.position for entry in await late.store.read(TOPIC, after=0)]
        last = max(forgotten)
        assert [position for position in sorted(acknowledged) if position > last] == entries


async def test_the_records_of_a_deleted_log_are_deleted_from_the_stream(
    settings: NatsSettings, clock: Clock
):
    async with running_node(settings, clock) as node:
        for number in range(5):
            await node.append(TOPIC, made(number, number + 1))
        await node.forget(TOPIC)
        stream = node.log.stream
        async with asyncio.timeout(PATIENCE):
            while (await stream.info())["state"]["messages"] > 1:  # noqa: ASYNC110 - NATS does it
                await asyncio.sleep(0.05)
    async with running_node(settings, clock) as node:
        assert await stored_logs(node.store) == []
        await node.append(TOPIC, made(0, 1))
        assert await node.kept(TOPIC) == [made(0, 1)]
