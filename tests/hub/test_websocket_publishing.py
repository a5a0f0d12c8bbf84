"""`GET /ws`: publishing."""

from __future__ import annotations

import gc
import sqlite3
from pathlib import Path

import aiohttp
import pytest

from rsnotify.format.datetimes import format_datetime, parse_datetime
from tests.hub.conftest import RunHub
from tests.hub.helpers import TOPIC, Client, at, chain, fragment, heard, send

TOKEN = "a-token-of-a-source"
PUBLISH = {"type": "publish", "topic": TOPIC}


async def acknowledged(socket: aiohttp.ClientWebSocketResponse, second: float) -> int:
    """Wait until everything up to a second is acknowledged; return the number of frames."""
    count, before = 0, at(-1)
    while True:
        frame = await socket.receive_json()
        assert (frame["type"], frame["topic"]) == ("accepted", TOPIC)
        until = parse_datetime(frame["until"])
        assert until > before
        before, count = until, count + 1
        if until == at(second):
            return count


async def test_the_frames_are_exactly_those_of_the_protocol(hub: Client):
    socket = await hub.websocket()
    await socket.send_json(PUBLISH)
    assert await socket.receive_str() == f'{{"type":"publishing","topic":"{TOPIC}","through":null}}'
    await socket.send_str(fragment(0, 1, until=2).decode())
    assert await socket.receive_str() == (
        f'{{"type":"accepted","topic":"{TOPIC}","until":"2026-01-01T00:00:02.000000Z"}}'
    )
    other = await hub.websocket()
    await other.send_json(PUBLISH)
    assert (await other.receive_json())["through"] == format_datetime(at(2))


async def test_many_fragments_in_flight_are_acknowledged_together(hub: Client):
    listener = await hub.listen()
    socket = await hub.source()
    total = 1000
    await send(socket, *chain(total))
    assert await acknowledged(socket, total) < total / 4
    assert await heard(listener, total) == list(range(1, total + 1))


async def test_a_fragment_is_durable_before_it_is_acknowledged(hub: Client, tmp_path: Path):
    socket = await hub.source()
    await send(socket, *chain(20))
    until = parse_datetime((await socket.receive_json())["until"])
    database = sqlite3.connect(tmp_path / "hub" / "hub.sqlite")
    (count,) = database.execute("SELECT count(*) FROM fragment").fetchone()
    database.close()
    assert count >= (until - at(0)).total_seconds() > 0


@pytest.mark.parametrize("bad", ["", "<urlset", fragment(0, 9, 8).decode(), "{}"])
async def test_a_bad_fragment_ends_the_connection_after_the_good_ones_are_stored(
    hub: Client, bad: str
):
    socket = await hub.source()
    await socket.send_str(fragment(0, 1).decode())
    await socket.send_str(bad)
    await acknowledged(socket, 1)
    error = await socket.receive_json()
    assert (error["type"], error["code"]) == ("error", "invalid-fragment")
    assert error["message"]
    closed = await socket.receive()
    assert (closed.type, closed.data) == (aiohttp.WSMsgType.CLOSE, 1008)
    await hub.accepted(fragment(1, 2))
    assert await heard(await hub.listen(0), 2) == [1, 2]


async def test_a_fragment_beyond_the_limit_ends_the_connection(run_hub: RunHub):
    async with run_hub(max_fragment_bytes=2000) as hub:
        socket = await hub.source()
        await socket.send_str(fragment(0, 1, padding=4000).decode())
        closed = await socket.receive()
        assert (closed.type, closed.data) == (aiohttp.WSMsgType.CLOSE, 1009)


async def test_a_page_in_a_browser_cannot_publish_on_a_local_hub(hub: Client):
    socket = await hub.websocket(Origin=hub.url.rstrip("/"))  # may open it, and no more
    await socket.send_json(PUBLISH)
    assert (await socket.receive_json())["code"] == "forbidden"


async def test_a_store_failure_is_reported_and_nothing_after_it_is_acknowledged(
    run_hub: RunHub, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with run_hub() as hub:
        socket = await hub.source()
        await socket.send_str(fragment(0, 1).decode())
        await acknowledged(socket, 1)
        database = sqlite3.connect(tmp_path / "hub" / "hub.sqlite", isolation_level=None)
        listener = await hub.listen()
        database.execute("BEGIN IMMEDIATE")
        database.execute("ALTER TABLE fragment RENAME TO hidden")
        await send(socket, *chain(1, 4))
        assert await heard(listener, 4) == [2, 3, 4]  # so all of them wait to be written
        database.execute("COMMIT")
        error = await socket.receive_json()
        assert (error["type"], error["code"]) == ("error", "unavailable")
        assert (await socket.receive()).data == 1013
        database.execute("ALTER TABLE hidden RENAME TO fragment")
        database.close()
    gc.collect()
    assert "never retrieved" not in caplog.text
