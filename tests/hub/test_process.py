"""A real `rsnotify hub` process: killed, suspended, stopped, and started with wrong options."""

from __future__ import annotations

import asyncio
import signal
import socket
import sqlite3
from pathlib import Path

import aiohttp
import pytest

from rsnotify.format.datetimes import parse_datetime
from tests.hub.helpers import (
    START,
    Callback,
    Client,
    Rows,
    chain,
    fragment,
    heard,
    seconds_of,
    send,
)
from tests.hub.processes import COMMAND, Process, hub_process
from tests.waiting import PATIENCE


async def ended(process: Process, number: signal.Signals) -> int:
    process.send_signal(number)
    async with asyncio.timeout(PATIENCE):
        return await process.wait()


async def acknowledged(source: aiohttp.ClientWebSocketResponse) -> float:
    """Read acknowledgements to the end of the connection; return the last second."""
    last = 0.0
    async for message in source:
        frame = message.json()
        assert frame["type"] == "accepted"
        last = (parse_datetime(frame["until"]) - START).total_seconds()
    return last


async def test_acknowledged_fragments_survive_kill_9(tmp_path: Path):
    total = 0
    for _ in range(3):
        async with hub_process(tmp_path) as (hub, process):
            source = await hub.source()
            await send(source, *chain(total, total + 300))
            reading = asyncio.create_task(acknowledged(source))
            await hub.topics(lambda rows, total=total: kept(rows) > total)
            assert await ended(process, signal.SIGKILL) == -signal.SIGKILL
            durable = await reading
        async with hub_process(tmp_path) as (hub, process):
            total = kept(await hub.topics())
            assert total >= durable
            listener = await hub.listen(0)
            assert await heard(listener, total) == list(range(1, total + 1))
            await listener.close()  # otherwise the stopping hub waits for its close frame
            assert await ended(process, signal.SIGTERM) == 0


def kept(topics: Rows) -> int:
    return sum(row["kept"] for row in topics)


async def test_subscriptions_and_cursors_survive_kill_9(tmp_path: Path, callback: Callback):
    async with hub_process(tmp_path) as (hub, process):
        await hub.subscribe(callback, secret="s")
        for body in chain(3):
            await hub.accepted(body)
            assert (await callback.delivery())[1] == body
        await moved(hub, tmp_path, 3)
        callback.open.clear()
        await hub.accepted(fragment(3, 4))
        await callback.delivery()  # not answered before the hub is killed
        await ended(process, signal.SIGKILL)
    callback.open.set()
    async with hub_process(tmp_path) as (hub, process):
        headers, body = await callback.delivery()
        assert seconds_of(body) == [4]
        assert "X-Hub-Signature" in headers
        assert len(await hub.level()) == 1
    assert callback.deliveries.empty()


async def moved(hub: Client, data: Path, position: int) -> None:
    """Wait until the cursor is durable."""
    database = sqlite3.connect(data / "hub.sqlite")
    async with asyncio.timeout(PATIENCE):
        while database.execute("SELECT position FROM subscription").fetchall() != [(position,)]:
            await hub.get("healthz")
    database.close()


async def test_a_stopping_hub_closes_its_websockets(tmp_path: Path):
    async with hub_process(tmp_path) as (hub, process):
        socket = await hub.listen()
        leaving = asyncio.create_task(socket.receive())
        assert await ended(process, signal.SIGINT) == 0
        assert (await leaving).data == 1001


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--port", "99999"), "port"),
        (("--data", "/dev/null/hub"), "cannot use the folder"),
        (("--config", "/nowhere.toml"), "it does not exist"),
        (("--host", "192.0.2.1"), "cannot listen on 192.0.2.1"),
        (("--public-url", "hub"), "not an absolute http"),
        (("--frobnicate",), "has no option --frobnicate"),
    ],
)
async def test_a_wrong_start_is_one_sentence(tmp_path: Path, options: tuple[str, ...], reason: str):
    assert reason in await refused("--port", "0", "--data", str(tmp_path), *options)


async def test_a_port_in_use_is_one_sentence(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = f"cannot listen on 127.0.0.1 port {port}: another program uses it; choose another"
        assert said in await refused("--port", port, "--data", str(tmp_path))


async def refused(*options: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *options, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(PATIENCE):
        output, errors = await process.communicate()
    assert process.returncode == 2
    assert output == b""
    assert b"Traceback" not in errors
    return errors.decode()
