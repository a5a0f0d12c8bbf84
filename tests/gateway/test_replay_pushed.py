"""A history through every way in that is pushed, with kills of the gateway and of the origins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from random import Random

import pytest

from rsnotify.runtime.processes import Process
from tests.gateway.event_server import EventServer
from tests.gateway.history import SITE, Pushed, Step, made_up, sweet
from tests.gateway.outbox import execute, trigger_of_the_documentation
from tests.gateway.published import Sets, until_replayed
from tests.gateway.running import configuration
from tests.ports import free_port
from tests.postgresql import PostgreSQL

KILLS = 4
ITEMS = "https://source.example/items/"


def settings(events: str, database: str, port: int, data: Path) -> str:
    event = {"uri": "/meta/uri", "datetime": "/meta/dt", "change": "/kind"}
    rarer = {"poll": 0.1, "poll_most": 0.2}
    return configuration(
        port,
        data,
        "500 changes",
        {"name": "events", "type": "events", "url": events, **rarer}
        | {f"event.{key}": value for key, value in event.items()}
        | {"event.deleted": ["delete"]},
        {"name": "items", "type": "postgresql", "url": database, **rarer},
    )


@pytest.fixture
async def events() -> AsyncIterator[EventServer]:
    async with EventServer() as server:
        yield server


@pytest.mark.parametrize("history", ["made up", pytest.param("SWEET", marks=pytest.mark.slow)])
async def test_all_sets_end_equal_though_gateway_and_origins_are_killed(
    events: EventServer, postgresql_server: PostgreSQL, tmp_path: Path, history: str
):
    steps = list(made_up(240, seed=3) if history == "made up" else sweet(8_068))
    database = postgresql_server.database()
    execute(database, "CREATE TABLE items (id text PRIMARY KEY, version integer)")
    execute(database, trigger_of_the_documentation())
    pushed = Pushed(events, database)
    port = free_port()
    file, log = tmp_path / "gateway.toml", tmp_path / "log"
    file.write_text(settings(events.url, database, port, tmp_path / "state"))
    gateway = await Process.start("gateway", str(file), log=log)
    try:
        size = -(-len(steps) // KILLS)
        for kill in range(KILLS):
            await apply(pushed, steps, kill * size, (kill + 1) * size)
            await gateway.kill()
            if kill == 1:
                await restart(events, postgresql_server, pushed, database)
            gateway = await Process.start("gateway", str(file), log=log)
            if kill == 2:
                await restart(events, postgresql_server, pushed, database)
        await gateway.url()
        await until_equal(f"http://127.0.0.1:{port}/", pushed)
    finally:
        pushed.close()
        assert await gateway.stop() == 0, log.read_text()


async def apply(pushed: Pushed, steps: Sequence[Step], start: int, end: int) -> None:
    random = Random(start)
    for number, step in enumerate(steps[start:end], start + 1):
        if step.version is not None or step.name in pushed.versions:
            await pushed.apply(step, number)
        await asyncio.sleep(random.random() * min(0.02, 5 / len(steps)))


async def restart(events: EventServer, server: PostgreSQL, pushed: Pushed, database: str) -> None:
    """Crash the origins, and start them again."""
    await events.stop()
    await asyncio.to_thread(server.crash)
    await asyncio.to_thread(server.start)
    await events.start()
    pushed.connect(database)


async def until_equal(url: str, pushed: Pushed) -> None:
    wanted = {SITE + name: pushed.lastmod(name) for name in pushed.versions}
    items = {ITEMS + name for name in pushed.versions}

    def are_right(sets: Sets) -> bool:
        return sets.get("events") == wanted and set(sets.get("items", ())) == items

    await until_replayed(url, ("events", "items"), are_right, seconds=240)
