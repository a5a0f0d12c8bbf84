"""The list of topics, a page at a time, however many there are."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

from rsnotify_hub.store.interface import LogState
from rsnotify_hub.store.sqlite_store import SqliteStore
from tests.hub.helpers import Clock
from tests.hub.storing import FOREVER, Counted, made, opened, stored_logs


async def fill(store: SqliteStore, clock: Clock, count: int, *, at_once: int = 1) -> None:
    """Append to so many topics, some of them in the same microsecond."""
    for first in range(0, count, at_once):
        clock.advance(microseconds=1)
        topics = [f"https://a.example/{number}" for number in range(first, first + at_once)]
        await asyncio.gather(
            *(store.append(topic, [made(0, 1)], after=0, replacing=None) for topic in topics)
        )


async def pages(store: SqliteStore, limit: int) -> list[LogState]:
    found: list[LogState] = []
    after = None
    while page := await store.newest(after=after, limit=limit):
        assert len(page) <= limit
        found += page
        after = page[-1].received, page[-1].topic
    return found


async def test_a_page_of_two_thousand_topics_takes_no_more_steps_than_of_a_hundred(
    tmp_path: Path, clock: Clock
):
    taken = []
    for count in (100, 2_000):
        async with opened(tmp_path / str(count), clock) as store:
            await fill(store, clock, count, at_once=min(count, 1000))
            middle = (await stored_logs(store))[count // 2]
        store = SqliteStore(tmp_path / str(count), FOREVER, clock, connection=Counted)
        for after in (None, (middle.received, middle.topic)):
            Counted.steps = 0
            assert len(await store.newest(after=after, limit=20)) == 20
            taken.append(Counted.steps)
        await store.close()
    first, from_the_middle, first_of_many, from_the_middle_of_many = taken
    assert 0 < first_of_many <= first * 1.1
    assert 0 < from_the_middle_of_many <= from_the_middle * 1.1


async def test_data_of_format_3_is_migrated(tmp_path: Path, clock: Clock):
    async with opened(tmp_path, clock) as store:
        await fill(store, clock, 3)
    with closing(sqlite3.connect(tmp_path / "hub.sqlite")) as database:
        database.executescript("DROP INDEX topic_received; PRAGMA user_version = 3;")
    async with opened(tmp_path, clock) as store:
        assert [state.topic[-1] for state in await pages(store, 2)] == ["2", "1", "0"]
    with closing(sqlite3.connect(tmp_path / "hub.sqlite")) as database:
        plan = "EXPLAIN QUERY PLAN SELECT uri FROM topic ORDER BY received DESC, uri LIMIT 1"
        assert "topic_received" in str(database.execute(plan).fetchall())
