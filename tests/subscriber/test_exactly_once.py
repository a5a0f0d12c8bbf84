"""T in the aggregator's own PostgreSQL: each change has its effect once, whatever crashes when."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from copy import copy
from datetime import timedelta
from random import Random
from typing import Any

import msgspec
import psycopg
import pytest
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError, StorageError
from rsnotify.format.datetimes import Instant
from rsnotify.sync.pace import Pace
from rsnotify.sync.progress import Progress
from rsnotify_subscriber import FollowOptions, PostgreSQLState, PushState, Received, Subscriber
from tests.postgresql import PostgreSQL
from tests.subscriber import aggregator
from tests.subscriber.aggregator import PACE, Aggregator
from tests.subscriber.hub import SmallHub
from tests.subscriber.lost_commit import Lost, commit_breaker
from tests.subscriber.processes import ended
from tests.subscriber.source import PATIENCE, SmallSource


class Database:
    """What the aggregator has, seen from outside."""

    def __init__(self, conninfo: str) -> None:
        self.conninfo = conninfo
        aggregator.prepare(conninfo)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            return connection.execute(query.encode()).fetchall()

    def execute(self, statements: str) -> None:
        with psycopg.connect(self.conninfo) as connection:
            connection.execute(statements.encode())

    def through_proxy(self, conninfo: str) -> Database:
        """Return the same database by another connection."""
        other = copy(self)
        other.conninfo = conninfo
        return other

    def copy(self, source: SmallSource) -> dict[str, bytes]:
        rows = self.rows("SELECT uri, content FROM copy")
        return {uri.removeprefix(source.base): content for uri, content in rows}

    def through(self) -> Instant:
        ((value,),) = self.rows("SELECT value FROM rsnotify.facts WHERE name = 'progress'")
        return msgspec.json.decode(value, type=Progress).through

    def had_no_double(self) -> bool:
        return not self.rows("SELECT uri, at FROM effects GROUP BY uri, at HAVING count(*) > 1")


@pytest.fixture
def database(postgresql: str) -> Database:
    return Database(postgresql)


@pytest.fixture
async def begun(source: SmallSource, database: Database) -> Database:
    """A database that holds the first version of a resource."""
    source.put("a", b"1")
    await catch_up(source, database)
    return database


def check_equal(source: SmallSource, database: Database) -> None:
    assert database.copy(source) == source.contents
    assert database.had_no_double()


def subscriber(
    source: SmallSource, database: Database, handler: Any = None, pace: Pace = PACE
) -> Subscriber:
    state = PostgreSQLState(database.conninfo)
    options = FollowOptions(pace=pace)
    return Subscriber(source.url, handler or Aggregator(), state=state, options=options)


async def catch_up(source: SmallSource, database: Database, handler: object = None) -> None:
    async with asyncio.timeout(PATIENCE):
        await subscriber(source, database, handler).catch_up()


async def until_equal(following: Subscriber, source: SmallSource, database: Database) -> None:
    async with asyncio.timeout(PATIENCE):
        assert await following.until(lambda _: database.copy(source) == source.contents)


async def test_the_effect_and_t_are_committed_together(
    source: SmallSource, begun: Database
) -> None:
    for number in range(5):
        source.put("a", b"%d" % number)
        source.put("b", b"b%d" % number)
    source.delete("b")
    await catch_up(source, begun)
    check_equal(source, begun)
    assert source.contents == {"a": b"4"}
    assert begun.through() >= source.last


async def test_a_restored_backup_restores_t_too(
    source: SmallSource, begun: Database, postgresql_server: PostgreSQL
) -> None:
    backup = Database(postgresql_server.database(backup_of=begun.conninfo))
    source.put("b", b"1")
    await catch_up(source, begun)
    assert backup.copy(source) == {"a": b"1"}
    await catch_up(source, backup)
    assert backup.copy(source) == source.contents


async def test_a_refused_change_leaves_no_trace_and_stops_no_other(
    source: SmallSource, database: Database
) -> None:
    class Strict(Aggregator):
        refuses = True

        def apply_within(self, connection: psycopg.Connection, changes: Sequence[Received]) -> None:
            super().apply_within(connection, changes)
            if self.refuses and any(change.uri.endswith("bad") for change in changes):
                connection.execute("SELECT 1 / 0")

    handler = Strict()
    async with subscriber(source, database, handler) as following:
        for name in ("a", "bad", "b"):
            source.put(name, name.encode())
        async with asyncio.timeout(PATIENCE):
            assert await following.until(lambda status: status.applied >= 2)
        assert set(database.copy(source)) == {"a", "b"}
        handler.refuses = False
        await until_equal(following, source, database)
    assert database.had_no_double()


async def test_a_deletion_that_is_dated_by_the_second_has_its_effect_once(
    source: SmallSource, hub: SmallHub, database: Database
) -> None:
    source.hubs = [hub.url]
    await catch_up(source, database)
    before = source.put("a", b"1").changed_at
    assert before is not None
    # So the list is read while it need not have the pushed change yet.
    pace = Pace(poll=2.0, poll_with_push=0.1)
    async with subscriber(source, database, pace=pace) as following, asyncio.timeout(PATIENCE):
        # The first list after a baseline is compared; the datetimes of others decide.
        assert await following.until(
            lambda status: status.level and status.push is PushState.UP and status.applied > 0
        )
        deleted = source.delete("a")
        second = source.last.replace(microsecond=0) + timedelta(seconds=1)
        source.changes[-1] = replace(deleted, datetime=second)
        await hub.publish(source.fragment(source.changes[-1:], before), before, second)
        # First by push, then by the Change List.
        assert await following.until(lambda status: status.through == second and status.level)
        assert await following.until(lambda one: not (one.unconfirmed or one.pending))
    assert database.copy(source) == {}
    assert database.had_no_double()


async def test_each_change_has_its_effect_once_however_often_the_process_is_killed(
    source: SmallSource, database: Database
) -> None:
    random, step = Random(1), 0
    for dies_after in (0, 2, None):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, aggregator.__file__, source.url, database.conninfo),
            *([] if dies_after is None else [str(dies_after)]),
        )
        seen = len(database.rows("SELECT FROM effects"))
        try:
            async with asyncio.timeout(PATIENCE):
                while process.returncode is None:
                    step += 1
                    change(source, random, step)
                    await asyncio.sleep(0.005)
                    if dies_after is None and len(database.rows("SELECT FROM effects")) > seen + 5:
                        process.kill()  # wherever it is
                        await process.wait()
        finally:
            await ended(process)
    await catch_up(source, database)
    check_equal(source, database)


def change(source: SmallSource, random: Random, step: int) -> None:
    name = random.choice("abcdefgh")
    if name in source.contents and random.random() < 0.2:
        source.delete(name)
    else:
        source.put(name, b"%d" % step)


BREAK = """
CREATE FUNCTION end_it() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END $$;
CREATE TRIGGER end_it BEFORE INSERT OR UPDATE ON rsnotify.facts FOR EACH ROW
    WHEN (NEW.name = 'progress') EXECUTE FUNCTION end_it();
"""


async def test_an_effect_without_its_t_is_undone(source: SmallSource, begun: Database) -> None:
    begun.execute(BREAK)
    source.put("a", b"2")
    with pytest.raises(StorageError):
        await catch_up(source, begun)
    assert begun.copy(source) == {"a": b"1"}
    begun.execute("DROP TRIGGER end_it ON rsnotify.facts")
    await catch_up(source, begun)
    check_equal(source, begun)


@pytest.mark.parametrize("lost", [Lost.REQUEST, Lost.REPLY])
async def test_a_change_has_its_effect_once_whichever_commit_a_broken_connection_leaves_in_doubt(
    source: SmallSource, begun: Database, lost: Lost
) -> None:
    undone = done = 0
    with commit_breaker(begun.conninfo) as (breaker, conninfo):
        unsure = begun.through_proxy(conninfo)
        while True:
            source.put("a", b"%d" % (undone + done + 2))
            breaker.lost, breaker.skipped = lost, undone + done
            try:
                await catch_up(source, unsure)
            except StorageError:
                is_done = begun.copy(source) == source.contents
                done, undone = done + is_done, undone + (not is_done)
                await catch_up(source, begun)
                assert begun.copy(source) == source.contents
            else:
                break
    assert done if lost is Lost.REPLY else undone
    assert begun.had_no_double()


SLOW_COMMIT = """
CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    PERFORM set_config('lock_timeout', '20s', true);
    PERFORM pg_advisory_xact_lock(1); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION wait();
"""


async def test_no_other_follower_begins_while_a_commit_without_a_client_may_still_succeed(
    source: SmallSource, begun: Database
) -> None:
    source.put("a", b"2")
    with psycopg.connect(begun.conninfo, autocommit=True) as connection:
        connection.execute(SLOW_COMMIT)
        connection.execute("SELECT pg_advisory_lock(1)")
        with commit_breaker(begun.conninfo) as (breaker, conninfo):
            breaker.lost, breaker.skipped = Lost.CLIENT, 1
            with pytest.raises(StorageError):
                await catch_up(source, begun.through_proxy(conninfo))
            with pytest.raises(ConfigurationError, match="in use by another follower"):
                await catch_up(source, begun)
            assert begun.copy(source) == {"a": b"1"}
            connection.execute("SELECT pg_advisory_unlock(1)")
        await catch_up(source, begun)
    check_equal(source, begun)


async def test_following_continues_from_the_last_commit_after_a_crash_of_the_database(
    source: SmallSource, database: Database, postgresql_server: PostgreSQL
) -> None:
    source.put("a", b"1")
    following = subscriber(source, database)
    running = asyncio.create_task(following.run())
    await until_equal(following, source, database)
    await asyncio.to_thread(postgresql_server.crash)
    try:
        source.put("a", b"2")
        with pytest.raises(StorageError, match="state in PostgreSQL"):
            async with asyncio.timeout(PATIENCE):
                await running
        with pytest.raises(StorageError, match="state in PostgreSQL"):
            await catch_up(source, database)
    finally:
        await asyncio.to_thread(postgresql_server.start)
    await catch_up(source, database)
    check_equal(source, database)


async def test_an_async_handler_may_have_its_state_in_the_database_too(
    source: SmallSource, database: Database
) -> None:
    seen = []

    async def note(change: Received) -> None:
        seen.append(change.uri)

    source.put("a", b"1")
    await catch_up(source, database, note)
    assert seen == [source.base + "a"]
    assert database.through() >= source.last


async def test_a_schema_belongs_to_one_source(begun: Database, other_source: SmallSource) -> None:
    with pytest.raises(ConfigurationError, match="the schema rsnotify holds the state of"):
        await catch_up(other_source, begun)


@pytest.mark.parametrize("schema", ["", "a.b", 'a"b', "a b", "x" * 64])
def test_an_invalid_name_of_a_schema_is_refused(schema: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be the schema"):
        PostgreSQLState(schema=schema)
