"""A fragment reaches live WebSockets while the log writes it; all else waits until it is durable.

The database is locked by another connection, so a write lasts as long as the test decides.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.hub.helpers import PATIENCE, Callback, Client, fragment, heard, seconds_of
from tests.hub.processes import hub_process


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The folder of the fixture `hub`."""
    return tmp_path / "hub"


@contextmanager
def writes_waiting(data: Path) -> Iterator[None]:
    database = sqlite3.connect(data / "hub.sqlite", isolation_level=None)
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        database.close()


@asynccontextmanager
async def writes_failing(data: Path) -> AsyncIterator[None]:
    database = sqlite3.connect(data / "hub.sqlite", isolation_level=None)
    database.execute("ALTER TABLE fragment RENAME TO hidden")
    yield
    database.execute("ALTER TABLE hidden RENAME TO fragment")
    database.close()


def has_arrived(socket: aiohttp.ClientWebSocketResponse) -> bool:
    """Return whether a message waits to be read."""
    return bool(socket._reader._buffer)


async def test_a_live_subscriber_receives_a_fragment_before_it_is_durable(hub: Client, data: Path):
    listener, source = await hub.listen(), await hub.source()
    with writes_waiting(data):
        await source.send_str(fragment(0, 1).decode())
        assert await heard(listener, 1) == [1]
        assert not has_arrived(source)
    assert (await source.receive_json(timeout=PATIENCE))["type"] == "accepted"
    await source.send_str(fragment(1, 2).decode())
    assert await heard(listener, 2) == [2]


async def test_a_post_and_a_callback_wait_until_a_fragment_is_durable(
    hub: Client, callback: Callback, data: Path
):
    await hub.subscribe(callback)
    listener = await hub.listen()
    with writes_waiting(data):
        posting = asyncio.create_task(hub.publish(fragment(0, 1)))
        assert await heard(listener, 1) == [1]
        assert not posting.done()
        assert callback.deliveries.empty()
    assert await posting == (202, "")
    assert (await callback.delivery())[1] == fragment(0, 1)


async def test_a_subscriber_that_goes_live_during_a_write_receives_it_once(hub: Client, data: Path):
    await hub.accepted(fragment(0, 1))
    early, source = await hub.listen(), await hub.source()
    with writes_waiting(data):
        await source.send_str(fragment(1, 2).decode())
        assert await heard(early, 2) == [2]
        late, replaying = await hub.listen(), await hub.listen(0)
        assert await heard(late, 2) == [2]
        assert await heard(replaying, 2) == [1, 2]
    await source.receive_json(timeout=PATIENCE)
    await source.send_str(fragment(2, 3).decode())
    for listener in (early, late, replaying):
        assert await heard(listener, 3) == [3]


async def test_a_fragment_whose_write_failed_is_not_acknowledged_and_may_come_again(
    hub: Client, data: Path
):
    await hub.accepted(fragment(0, 1))
    listener = await hub.listen()
    async with writes_failing(data):
        status, _ = await hub.publish(fragment(1, 2))
        assert status == 503
        assert await heard(listener, 2) == [2]
        late = await hub.listen(0)
        assert await heard(late, 1) == [1]  # it is not in the log
    await hub.accepted(fragment(1, 2), fragment(2, 3))
    assert await heard(listener, 3) == [2, 3]
    assert [seconds_of(await late.receive_str(timeout=PATIENCE)) for _ in "23"] == [[2], [3]]
    assert await heard(await hub.listen(0), 3) == [1, 2, 3]


async def test_a_repetition_is_sent_to_nobody(hub: Client):
    listener, source = await hub.listen(), await hub.source()
    for second in (1, 2, 1, 2, 3):
        await source.send_str(fragment(second - 1, second).decode())
    assert await heard(listener, 3) == [1, 2, 3]


async def test_a_subscriber_ahead_of_a_hub_that_was_killed_gets_no_gap(tmp_path: Path):
    data = tmp_path / "hub"
    async with hub_process(data) as (hub, process):
        await hub.accepted(fragment(0, 1))
        listener, source = await hub.listen(), await hub.source()
        with writes_waiting(data):
            await source.send_str(fragment(1, 2).decode())
            assert await heard(listener, 2) == [2]
            process.kill()
            await process.wait()
    async with hub_process(data) as (hub, _):
        listener = await hub.listen(2)
        await hub.accepted(fragment(1, 2), fragment(2, 3))
        received = await listener.receive_str(timeout=PATIENCE)
        assert seconds_of(received) == [2]  # again; a Destination ignores it
        assert await heard(listener, 3) == [3]
