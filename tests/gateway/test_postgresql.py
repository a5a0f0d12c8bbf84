"""A table in a real PostgreSQL, whose triggers fill an outbox."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from random import Random
from typing import Any, cast

import psycopg
import pytest

from rsnotify_gateway import OriginSettings, outbox_tables
from rsnotify_gateway.adapter import OriginBatch
from rsnotify_gateway.adapters import postgresql
from rsnotify_gateway.adapters.postgresql import PostgreSQLAdapter
from tests.gateway.checking import Reading, origin
from tests.gateway.outbox import execute, trigger_of_the_documentation, view_of_the_documentation
from tests.gateway.running import RunningGateway
from tests.postgresql import PostgreSQL
from tests.publisher.helpers import FakeHub
from tests.waiting import until

SITE = "https://source.example/items/"


@pytest.fixture
def database(postgresql: str) -> str:
    execute(postgresql, "CREATE TABLE items (id text PRIMARY KEY, version integer)")
    execute(postgresql, "INSERT INTO items VALUES ('old', 0)")
    execute(postgresql, trigger_of_the_documentation())
    return postgresql


def settings(url: str, **more: Any) -> OriginSettings:
    # Only a NOTIFY lets it read before the test has given up.
    return origin("postgresql", url, poll=600, poll_most=600, **more)


async def test_committed_changes_are_pushed_at_once_with_their_deletions(
    database: str, hub: FakeHub, tmp_path: Path
):
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
        assert found["deletions"] == "Deletions are detected immediately."
        with psycopg.connect(database, autocommit=True) as connection:
            # What was pushed leaves the outbox a moment later.
            await until(lambda: not connection.execute("SELECT 1 FROM rsnotify_outbox").fetchone())


async def test_an_outage_of_the_database_is_visible_without_its_address(
    postgresql_server: PostgreSQL, database: str, hub: FakeHub, tmp_path: Path
):
    given = origin("postgresql", database)
    async with RunningGateway(tmp_path, [given], hubs=[hub.url]) as running:
        (watch,) = running.gateway.watches
        await running.until_ready()
        await asyncio.to_thread(postgresql_server.crash)
        try:
            await until(lambda: watch.problem is not None)
            checked = watch.last_check
            assert watch.problem == "the database cannot be read; see the gateway's log"
        finally:
            await asyncio.to_thread(postgresql_server.start)
        await until(lambda: watch.problem is None)
        assert (watch.last_check or 0) > (checked or 0)
        await asyncio.to_thread(execute, database, "INSERT INTO items VALUES ('later', 1)")
        await hub.has(SITE + "later")


async def test_a_line_that_is_no_change_is_kept_with_its_reason(database: str, tmp_path: Path):
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
):
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
):
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


async def test_truncate_deletes_each_resource_at_once(database: str, hub: FakeHub, tmp_path: Path):
    execute(database, "INSERT INTO items SELECT 'r' || n, n FROM generate_series(1, 20) n")
    async with RunningGateway(tmp_path, [settings(database)], hubs=[hub.url]) as running:
        await running.until_ready()
        await asyncio.to_thread(execute, database, "TRUNCATE items")
        await hub.until(
            lambda: deleted(hub) == {SITE + "old", *(f"{SITE}r{n}" for n in range(1, 21))}
        )


def deleted(hub: FakeHub) -> set[str]:
    changes = [entry for fragment in hub.fragments for entry in fragment.resources]
    return {one.uri for one in changes if one.change == "deleted"}


REPLICA = "SET session_replication_role = replica"
NOT_ALWAYS = "ALTER TABLE items ENABLE TRIGGER items_changed, ENABLE TRIGGER items_truncated"
DISABLED = "ALTER TABLE items DISABLE TRIGGER items_changed"
ENABLED = "ALTER TABLE items ENABLE ALWAYS TRIGGER items_changed"
NO_VIEW = "DROP VIEW rsnotify_outbox_resources"


@pytest.mark.parametrize(
    ("before", "unseen"),
    [
        (["DROP TRIGGER items_truncated ON items"], ["TRUNCATE items"]),
        ([NOT_ALWAYS], [REPLICA, "DELETE FROM items"]),
        ([NOT_ALWAYS], [REPLICA, "TRUNCATE items"]),
        (
            [],
            [
                DISABLED,
                "DELETE FROM items",
                "ALTER TABLE items ENABLE ALWAYS TRIGGER items_changed",
            ],
        ),
        ([], [DISABLED, "DELETE FROM items"]),
        ([], ["DROP TABLE items CASCADE", "CREATE TABLE items (id text)"]),
        ([], ["DELETE FROM items", "TRUNCATE rsnotify_outbox"]),
        ([], ["DELETE FROM items", "DELETE FROM rsnotify_outbox"]),
    ],
    ids=[
        "TRUNCATE without a trigger",
        "rows of a replica",
        "TRUNCATE of a replica",
        "a trigger that was disabled",
        "a trigger that is disabled",
        "another table",
        "TRUNCATE of the outbox",
        "lines that were deleted",
    ],
)
async def test_a_comparison_finds_what_no_trigger_saw(
    database: str, tmp_path: Path, before: list[str], unseen: list[str]
):
    view = view_of_the_documentation()
    execute(database, *before, "INSERT INTO items VALUES ('other', 1)")
    every = settings(database, compare=1e-6)
    async with Reading(tmp_path, every) as reading:
        await reading.until_there(SITE + "old", SITE + "other")
    execute(database, *unseen)
    if "DROP TABLE" in unseen[0]:
        execute(database, view)
    execute(database, REPLICA, "INSERT INTO items (id) VALUES ('new')")
    async with Reading(tmp_path, every) as reading:
        found = await reading.until_there(SITE + "new")
    assert found[SITE + "old"] == found[SITE + "other"] == "deleted"


@pytest.mark.parametrize(
    "change",
    [
        "TRUNCATE rsnotify_outbox",
        "DROP TRIGGER items_truncated ON items",
        DISABLED,
        ENABLED,
        "VACUUM FULL items",
    ],
)
async def test_the_whole_is_compared_at_once_after_triggers_or_tables_changed(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
):
    monkeypatch.setattr(postgresql, "_TRIGGER_INTERVAL", 0.01)
    execute(database, NOT_ALWAYS)
    async with RunningGateway(tmp_path, [settings(database)]) as running:
        await running.until_ready()
        insert = "INSERT INTO items VALUES ('unseen', 1)"
        await asyncio.to_thread(execute, database, REPLICA, insert)
        # It waits for a check to end that is under way in this event loop.
        await asyncio.to_thread(execute, database, change, autocommit=True)
        with running.gateway.watches[0].publisher.source.open_journal() as journal:
            await until(lambda: journal.resource(SITE + "unseen"))


async def test_a_check_that_is_given_up_ends_its_transaction_first(database: str):
    execute(database, "INSERT INTO items VALUES ('new', 1)")
    adapter = PostgreSQLAdapter(database, "rsnotify_outbox", 600)
    batches = cast("AsyncGenerator[OriginBatch]", adapter.changes(None, Unknown()))
    assert (await anext(batches)).entries
    await batches.aclose()
    with psycopg.connect(database) as connection:
        idle = "SELECT query FROM pg_stat_activity WHERE datname = current_database()"
        idle += " AND state LIKE 'idle in transaction%'"
        assert connection.execute(idle.encode()).fetchall() == []
        assert connection.execute(b"SELECT entry FROM rsnotify_outbox").fetchall()


class Unknown:
    async def select(self, _: object) -> list[tuple[str, frozenset[str]]]:
        return []


@pytest.mark.parametrize(
    ("statements", "stated"),
    [
        ([], []),
        (
            ["DROP TRIGGER items_truncated ON items"],
            ["TRUNCATE on items is not detected: no enabled trigger fires for it."],
        ),
        (
            [NOT_ALWAYS],
            ["Writes to items with session_replication_role = replica are not detected"],
        ),
        (
            [DISABLED],
            [
                "The trigger items_changed of items is disabled",
                "INSERT, UPDATE or DELETE on items is not detected",
            ],
        ),
        ([NO_VIEW], ["There is no view rsnotify_outbox_resources to compare with"]),
    ],
    ids=["all", "no trigger for TRUNCATE", "not ALWAYS", "disabled", "no view"],
)
async def test_what_no_trigger_sees_is_stated(
    database: str, tmp_path: Path, statements: list[str], stated: list[str]
):
    execute(database, *statements)
    async with RunningGateway(tmp_path, [settings(database)]) as running:
        if NO_VIEW in statements:
            execute(database, "INSERT INTO items VALUES ('new', 1)")
        await running.until_ready()
        limits = " ".join(json.loads((await running.get("one/origin.json"))[1])["limits"])
    assert [sentence for sentence in stated if sentence not in limits] == []
    if not stated:
        assert "not detected" not in limits


async def test_a_disabled_trigger_is_a_problem_where_nothing_can_be_compared(
    database: str, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(postgresql, "_TRIGGER_INTERVAL", 0.01)
    execute(database, NO_VIEW, "INSERT INTO items VALUES ('new', 1)")
    given = origin("postgresql", database)
    async with RunningGateway(tmp_path, [given], hubs=[hub.url]) as running:
        (watch,) = running.gateway.watches
        await running.until_ready()
        await asyncio.to_thread(execute, database, DISABLED)
        await until(lambda: watch.problem is not None)
        checked = watch.last_check
        assert watch.problem.startswith("the trigger items_changed of items is disabled: enable")
        await asyncio.to_thread(execute, database, "TRUNCATE items", ENABLED)
        await hub.until(lambda: SITE + "new" in deleted(hub))
        await until(lambda: watch.problem is None)
        assert (watch.last_check or 0) > (checked or 0)
        found = json.loads((await running.get("one/origin.json"))[1])
    assert any("Changes may have been missed before" in limit for limit in found["limits"])


async def test_metadata_that_differs_is_an_update_and_equal_metadata_is_none(
    database: str, tmp_path: Path
):
    entry = "jsonb_build_object('uri', '{0}' || {1}.id, 'length', {1}.version{2})"
    written = entry.format(SITE, "NEW", ", 'change', 'updated'")
    execute(
        database,
        NO_VIEW,
        "CREATE OR REPLACE FUNCTION items_changed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"INSERT INTO rsnotify_outbox (entry) SELECT {written}; RETURN NULL; END $$",
        "CREATE VIEW rsnotify_outbox_resources AS "
        f"SELECT {entry.format(SITE, 'items', '')} AS entry FROM items",
        "INSERT INTO items VALUES ('same', 1)",
    )
    every = settings(database, compare=1e-6)
    async with Reading(tmp_path, every) as reading:
        await reading.until_there(SITE + "old", SITE + "same")
    execute(database, "UPDATE items SET version = 2 WHERE id = 'same'")
    execute(database, REPLICA, NOT_ALWAYS, "UPDATE items SET version = 2 WHERE id = 'old'")
    execute(database, REPLICA, "INSERT INTO items VALUES ('z', 1)")  # the last row of the view
    async with Reading(tmp_path, every) as reading:
        found = await reading.until_there(SITE + "old", SITE + "same", SITE + "z")
        lengths = {uri: one.length for uri, one in reading.resources().items()}
    assert found == {SITE + "old": "updated", SITE + "same": "updated", SITE + "z": "created"}
    assert lengths == {SITE + "old": 2, SITE + "same": 2, SITE + "z": 1}


async def test_a_row_that_is_no_resource_prevents_deletions_and_is_stated(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(postgresql, "_TRIGGER_INTERVAL", 0.01)
    every = settings(database, compare=1e-6)
    async with RunningGateway(tmp_path, [every]) as running:
        await running.until_ready()
        (watch,) = running.gateway.watches
        await asyncio.to_thread(
            execute,
            database,
            REPLICA,
            "CREATE OR REPLACE VIEW rsnotify_outbox_resources AS SELECT jsonb_build_object('uri', "
            f"'{SITE}' || id) AS entry FROM items UNION ALL SELECT jsonb_build_object('uri', 'no')",
        )
        await until(lambda: "Invalid rows in the view" in str(watch.adapter.terms().limits))
        await asyncio.to_thread(
            execute,
            database,
            NOT_ALWAYS,
            REPLICA,
            "DELETE FROM items",
            "INSERT INTO items VALUES ('new', 1)",
        )
        with watch.publisher.source.open_journal() as journal:
            await until(lambda: journal.resource(SITE + "new"))
            assert journal.resource(SITE + "old") is not None
            await asyncio.to_thread(
                execute,
                database,
                view_of_the_documentation().replace("CREATE", "CREATE OR REPLACE", 1),
            )
            await until(lambda: journal.resource(SITE + "old") is None)
    assert "Invalid rows" not in str(watch.adapter.terms().limits)


async def test_changes_during_comparisons_are_neither_lost_nor_undone(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(postgresql, "_TRIGGER_INTERVAL", 0.0)
    monkeypatch.setattr(outbox_tables, "_BATCH_ROWS", 3)
    random = Random(29)

    def write() -> None:
        with psycopg.connect(database) as connection:
            for _ in range(300):
                name = f"r{random.randrange(20)}"
                connection.execute("DELETE FROM items WHERE id = %s", (name,))
                if random.random() < 0.7:
                    connection.execute("INSERT INTO items VALUES (%s, 1)", (name,))
                connection.commit()
            connection.execute("INSERT INTO items VALUES ('last', 1)")

    every = settings(database, compare=1e-6)
    async with RunningGateway(tmp_path, [every]) as running:
        await running.until_ready()
        await asyncio.to_thread(write)
        with running.gateway.watches[0].publisher.source.open_journal() as journal:
            await until(lambda: journal.resource(SITE + "last"))
            found = {resource.uri for resource in journal.resources()}
            changes = [change for change in journal.changes(0) if change.uri.startswith(SITE + "r")]
    with psycopg.connect(database) as connection:
        rows = connection.execute("SELECT id FROM items").fetchall()
    assert found == {SITE + name for (name,) in rows}
    # A comparison that undid a change would make two of one type follow each other.
    last: dict[str, str] = {}
    for change in changes:
        is_here = change.change != "deleted"
        assert last.get(change.uri) != str(is_here) or is_here
        last[change.uri] = str(is_here)
