"""A table in a real PostgreSQL, whose triggers fill an outbox."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from rsnotify_gateway import OriginSettings
from rsnotify_publisher.outbox import Outbox
from tests.gateway.checking import origin
from tests.gateway.running import RunningGateway
from tests.postgresql import PostgreSQL, running_postgresql
from tests.publisher.helpers import FakeHub
from tests.reader import ROOT, fences_of

SITE = "https://source.example/items/"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSQL]:
    with running_postgresql() as server:
        yield server


@pytest.fixture
def database(server: PostgreSQL) -> str:
    url = server.database()
    execute(url, "CREATE TABLE items (id text PRIMARY KEY, version integer)")
    execute(url, "INSERT INTO items VALUES ('old', 0)")
    execute(url, trigger_of_the_documentation())
    return url


@pytest.fixture
async def hub() -> AsyncIterator[FakeHub]:
    hub = FakeHub()
    await hub.start()
    yield hub
    await hub.stop()


def trigger_of_the_documentation() -> str:
    page = (ROOT / "gateway/README.md").read_text()
    (found,) = [body for name, body in fences_of(page) if name == "sql"]
    return Outbox().ddl + found


def execute(url: str, *statements: str) -> None:
    with psycopg.connect(url) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def settings(url: str) -> OriginSettings:
    # Only a NOTIFY lets it read before the test has given up.
    return origin("postgresql", url, poll=600, poll_most=600)


async def until(happened: Callable[[], object]) -> None:
    while not happened():  # noqa: ASYNC110 - another thread does it
        await asyncio.sleep(0.01)


async def test_committed_changes_are_pushed_at_once_with_their_deletions(
    database: str, hub: FakeHub, tmp_path: Path
) -> None:
    async with RunningGateway(tmp_path, [settings(database)], hubs=[hub.url]) as running:
        await running.until_ready()
        listed = await running.document("one/resourcelist.xml")
        assert [one.uri for one in listed.resources] == [SITE + "old"]
        await asyncio.to_thread(execute, database, "INSERT INTO items VALUES ('new', 1)")
        await hub.has(SITE + "new")
        await asyncio.to_thread(execute, database, "DELETE FROM items WHERE id = 'old'")
        await hub.has(SITE + "old")
        last = hub.fragments[-1].resources[-1]
        assert (last.uri, last.change) == (SITE + "old", "deleted")
        found = json.loads((await running.get("one/origin.json"))[1])
        assert found["origin"] == "postgresql:rsnotify_outbox"
        assert found["deletions"] == "A deletion is seen at once."
        with psycopg.connect(database, autocommit=True) as connection:
            # What was pushed leaves the outbox a moment later.
            await until(lambda: not connection.execute("SELECT 1 FROM rsnotify_outbox").fetchone())


async def test_an_outage_of_the_database_is_visible_without_its_address(
    server: PostgreSQL, database: str, hub: FakeHub, tmp_path: Path
) -> None:
    given = origin("postgresql", database)
    async with RunningGateway(tmp_path, [given], hubs=[hub.url]) as running:
        (watch,) = running.gateway.watches
        await running.until_ready()
        await asyncio.to_thread(server.crash)
        try:
            await until(lambda: watch.problem is not None)
            checked = watch.last_check
            assert watch.problem == "the database cannot be read; see the log of the gateway"
        finally:
            await asyncio.to_thread(server.start)
        await until(lambda: watch.problem is None)
        assert (watch.last_check or 0) > (checked or 0)
        await asyncio.to_thread(execute, database, "INSERT INTO items VALUES ('later', 1)")
        await hub.has(SITE + "later")


async def test_a_line_that_is_no_change_is_kept_with_its_reason(
    database: str, tmp_path: Path
) -> None:
    execute(
        database,
        "INSERT INTO rsnotify_outbox (entry) VALUES ('{}'), ('no JSON')",
        "INSERT INTO items VALUES ('new', 1)",
    )
    async with RunningGateway(tmp_path, [settings(database)]) as running:
        await running.until_ready()
        listed = await running.document("one/resourcelist.xml")
    assert [one.uri for one in listed.resources] == [SITE + "new", SITE + "old"]
    with psycopg.connect(database) as connection:
        rows = connection.execute("SELECT refused FROM rsnotify_outbox").fetchall()
    assert len(rows) == 2
    assert all(reason for (reason,) in rows)


async def test_nothing_is_claimed_while_another_process_forwards_the_outbox(
    database: str, tmp_path: Path
) -> None:
    lock = "SELECT pg_advisory_lock(hashtextextended('rsnotify rsnotify_outbox', 0))"
    with psycopg.connect(database) as connection:
        connection.execute(lock.encode())
        async with RunningGateway(tmp_path, [origin("postgresql", database)]) as running:
            (watch,) = running.gateway.watches
            await until(lambda: watch.problem is not None)
            assert watch.last_check is None
            connection.execute(b"SELECT pg_advisory_unlock_all()")
            await running.until_ready()


async def test_a_line_counts_though_an_earlier_one_of_its_resource_had_its_number(
    database: str, hub: FakeHub, tmp_path: Path
) -> None:
    execute(
        database, "DELETE FROM rsnotify_outbox", "ALTER SEQUENCE rsnotify_outbox_id_seq RESTART"
    )
    execute(database, "UPDATE items SET version = 1")
    async with RunningGateway(tmp_path, [settings(database)], hubs=[hub.url]) as running:
        await running.until_ready()
        # As after the database was restored from a backup.
        execute(database, "ALTER SEQUENCE rsnotify_outbox_id_seq RESTART")
        await asyncio.to_thread(execute, database, "UPDATE items SET version = 2")
        await hub.has(SITE + "old")
