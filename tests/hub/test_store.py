"""What the SQLite store does beyond the conformance suites, and the logs on it, without HTTP."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rsnotify.errors import ConfigurationError, StorageError
from rsnotify.format.datetimes import to_microseconds
from rsnotify_hub.fragments import Fragment, Interval
from rsnotify_hub.intake import whole_content
from rsnotify_hub.statistics import Statistics
from rsnotify_hub.store.interface import LogEntry, LogRetention, LogState
from rsnotify_hub.store.sqlite_store import SqliteStore
from rsnotify_hub.topic_log import (
    RECENT_BYTES,
    DeliveryChannel,
    RecentEntries,
    TopicLogs,
    overlaps,
    plan_append,
)
from rsnotify_hub.websub_subscription import Subscription
from tests.hub.helpers import TOPIC, Clock, at
from tests.hub.storing import (
    FOREVER,
    Counted,
    Listener,
    kept,
    logs,
    made,
    opened,
    publish,
    stored_logs,
    stored_subscriptions,
    writes_waiting,
)


async def test_concurrent_publications_are_committed_together_and_in_order(
    topics: TopicLogs, listener: Listener
):
    parts = [made(second, second + 1) for second in range(50)]
    await asyncio.gather(*[topics.publish(TOPIC, part) for part in parts])
    assert listener.fragments == parts
    assert len(listener.batches) < 5


async def test_a_heartbeat_that_does_not_extend_the_log_is_dropped(
    topics: TopicLogs, listener: Listener
):
    await publish(topics, made(0, 5), made(0, until=4))
    assert listener.fragments == [made(0, 5)]


async def test_a_heartbeat_after_a_loss_does_not_hide_it(topics: TopicLogs):
    parts = [made(0, 1), made(1, until=3), made(5, until=6)]
    await publish(topics, *parts)
    assert await kept(topics) == parts


def test_heartbeats_of_one_batch_leave_only_the_last():
    planned = plan_append(None, [made(0, 1), made(1, until=2), made(1, until=3), made(1, 4)])
    assert planned.fragments == (made(0, 1), made(1, 4))
    assert planned.replacing is None


async def test_reading_from_memory_equals_reading_from_disk(topics: TopicLogs, listener: Listener):
    padding = RECENT_BYTES // 10
    parts = [made(second, second + 1, padding=padding) for second in range(30)]
    await publish(topics, *parts)
    for number, entry in enumerate(listener.batches):
        assert await kept(topics, after=entry[-1].position) == parts[number + 1 :]
    for second in range(30):
        assert await kept(topics, since=second) == parts[second:]
    assert await kept(topics, since=second + 0.5) == parts[second:]


async def test_the_entries_in_memory_have_a_limited_size(topics: TopicLogs):
    padding = RECENT_BYTES // 10
    before = [made(n, n + 1, padding=padding) for n in range(5)]
    heartbeats = [made(5, until=end, padding=padding) for end in (6, 7)]
    await publish(topics, *before, *heartbeats)
    await publish(topics, *[made(n, n + 1, padding=padding) for n in range(7, 27)])
    reads = (topics.recent(TOPIC, after=n) for n in range(topics.position(TOPIC)))
    entries = next(found for found in reads if found is not None)
    size = sum(len(entry.fragment.body) for entry in entries)
    assert size + len(before[0].body) > RECENT_BYTES
    assert size <= RECENT_BYTES


async def test_new_and_repeated_fragments_are_counted(tmp_path: Path, clock: Clock):
    statistics = Statistics()
    parts = [made(0, 1), made(1, 2), made(2, 3)]
    async with opened(tmp_path, clock) as store:
        topics = TopicLogs(store, statistics)
        await topics.start(())
        for part in (*parts[:2], *parts[:2], *parts, made(2.5, until=3)):
            await topics.publish(TOPIC, part)
    assert (statistics.accepted, statistics.duplicates) == (3, 5)
    assert statistics.accepted_bytes == sum(len(part.body) for part in parts)


async def test_reading_from_memory_is_exact_to_the_microsecond(tmp_path: Path, clock: Clock):
    parts = [made(n / 1e6, (n + 1) / 1e6) for n in range(4)]
    async with logs(tmp_path, clock) as (topics, listener):
        await topics.publish(TOPIC, parts[0])
    async with logs(tmp_path, clock) as (topics, listener):
        await publish(topics, *parts[1:])  # the first is on the disk only
        assert len(listener.fragments) == 3
        for number in range(5):
            assert await kept(topics, since=number / 1e6) == parts[number:]


async def test_late_changes_of_a_second_are_replayed_from_memory(topics: TopicLogs):
    await publish(topics, made(0, 1), made(1, 1))
    assert await kept(topics, since=1) == [made(1, 1)]
    assert await kept(topics, since=1.5) == []


async def test_a_folder_belongs_to_one_hub(tmp_path: Path, clock: Clock):
    async with opened(tmp_path, clock):
        with pytest.raises(ConfigurationError, match="another hub"):
            SqliteStore(tmp_path, FOREVER, clock)
        assert (tmp_path / "hub.lock").exists(), "other versions look for it"
    async with opened(tmp_path, clock) as store:
        await store.check()


async def test_an_unusable_folder_is_a_clear_error(tmp_path: Path, clock: Clock):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot use the folder"):
        SqliteStore(tmp_path / "file" / "data", FOREVER, clock)


async def test_data_that_is_no_database_is_refused(tmp_path: Path, clock: Clock):
    (tmp_path / "hub.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(ConfigurationError, match="cannot use the hub's data"):
        SqliteStore(tmp_path, FOREVER, clock)


async def test_a_failing_channel_affects_neither_publishing_nor_the_others(
    tmp_path: Path, clock: Clock
):
    class Broken(Listener):
        def deliver(self, topic: str, entries: Sequence[LogEntry]) -> None:
            raise RuntimeError("a bug")

    async with opened(tmp_path, clock) as store:
        listener = Listener()
        topics = TopicLogs(store)
        await topics.start((Broken(), listener))
        await topics.publish(TOPIC, made(0, 1))
        assert listener.fragments == [made(0, 1)]


async def test_only_channels_that_count_subscribers_add_to_the_audience(
    tmp_path: Path, clock: Clock, listener: Listener
):
    class Uncounted(DeliveryChannel):
        def deliver(self, topic: str, entries: Sequence[LogEntry]) -> None:
            pass

    async with opened(tmp_path, clock) as store:
        topics = TopicLogs(store, nodes=lambda: 3)
        await topics.start((listener, Uncounted()))
        assert topics.audience(TOPIC) == 3


async def test_publishing_after_a_deletion_begins_a_new_log(tmp_path: Path, clock: Clock):
    async with logs(tmp_path, clock) as (topics, listener):
        before = [topics.publish(TOPIC, made(second, second + 1)) for second in range(3)]
        deleted = asyncio.create_task(topics.delete(TOPIC))
        await asyncio.sleep(0)
        after = topics.publish(TOPIC, made(0, 1))
        await asyncio.gather(*before, deleted, after)
        assert await kept(topics) == [made(0, 1)]
        positions = [entry.position for batch in listener.batches for entry in batch]
        assert positions == sorted(set(positions))
        await topics.delete(TOPIC)
        assert topics.states() == []
        assert topics.position(TOPIC) == 0
    async with opened(tmp_path, clock) as store:
        assert await stored_logs(store) == []


async def test_what_is_still_to_be_delivered_is_not_read(tmp_path: Path, clock: Clock):
    class LateLogs(TopicLogs):
        def appended(self, *entries: Any) -> None:
            self.report = partial(super().appended, *entries)

    async with logs(tmp_path, clock) as (topics, _):
        await topics.publish(TOPIC, made(0, 1))
    async with opened(tmp_path, clock) as store:
        late = LateLogs(store)
        await late.start(())
        await late.publish(TOPIC, made(1, 2))
        assert [each.fragment for each in await late.read(TOPIC, after=0)] == [made(0, 1)]
        late.report()
        assert await kept(late) == [made(0, 1), made(1, 2)]


async def test_all_pages_of_what_another_has_appended_are_delivered(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("rsnotify_hub.store.sqlite_store._PAGE_ROWS", 1)
    parts = [made(n, n + 1) for n in range(4)]
    async with opened(tmp_path, clock) as store:
        listener, topics, other = Listener(), TopicLogs(store), TopicLogs(store)
        await topics.start((listener,))
        await other.start(())  # the store reports to this one
        await publish(other, *parts[:3])
        await store.start(topics)
        await publish(topics, parts[3])
    assert listener.fragments == parts


async def test_a_log_may_be_deleted_twice_at_once(topics: TopicLogs):
    await topics.publish(TOPIC, made(0, 1))
    await asyncio.gather(topics.delete(TOPIC), topics.delete(TOPIC))
    assert topics.states() == []


async def test_only_the_owner_of_the_data_reads_it(tmp_path: Path, clock: Clock):
    folder = tmp_path / "data"
    async with opened(folder, clock) as store:
        await store.save(Subscription("t", "https://a.example/", "secret", at(9), 1))
        modes = {file.name: file.stat().st_mode & 0o777 for file in folder.glob("hub.sqlite*")}
        assert modes == dict.fromkeys(["hub.sqlite", "hub.sqlite-wal", "hub.sqlite-shm"], 0o600)
        assert folder.stat().st_mode & 0o777 == 0o700


FORMAT_1 = """
CREATE TABLE topic (id INTEGER PRIMARY KEY, uri TEXT NOT NULL UNIQUE, position INTEGER NOT NULL,
    through INTEGER NOT NULL, received INTEGER NOT NULL, kept INTEGER NOT NULL,
    size INTEGER NOT NULL);
CREATE TABLE fragment (position INTEGER PRIMARY KEY AUTOINCREMENT,
    topic INTEGER NOT NULL REFERENCES topic, digest BLOB NOT NULL, begins INTEGER NOT NULL,
    from_ INTEGER, until INTEGER NOT NULL, received INTEGER NOT NULL, heartbeat INTEGER NOT NULL,
    content_type TEXT NOT NULL, body BLOB NOT NULL);
CREATE TABLE subscription (topic TEXT NOT NULL, callback TEXT NOT NULL, secret TEXT,
    expires INTEGER NOT NULL, position INTEGER NOT NULL, PRIMARY KEY (topic, callback));
PRAGMA user_version = 1;
"""


async def test_data_of_format_1_is_migrated(tmp_path: Path, clock: Clock):
    part = made(0, 1)
    database = sqlite3.connect(tmp_path / "hub.sqlite")
    database.executescript(FORMAT_1)
    until, received = to_microseconds(part.until), to_microseconds(clock())
    database.execute(
        "INSERT INTO topic VALUES (1, ?, 7, ?, ?, 1, ?)", (TOPIC, until, received, len(part.body))
    )
    database.execute(
        "INSERT INTO fragment VALUES (7, 1, ?, ?, ?, ?, ?, 0, 'application/xml', ?)",
        (
            hashlib.sha256(part.body).digest(),
            *(to_microseconds(at(0)), to_microseconds(at(0)), until, received, part.body),
        ),
    )
    database.execute("INSERT INTO subscription VALUES (?, 'c', 's', ?, 7)", (TOPIC, until))
    database.commit()
    database.close()
    for _ in range(2):
        async with logs(tmp_path, clock) as (topics, listener):
            await topics.publish(TOPIC, part)
            assert listener.fragments == []
            assert await kept(topics) == [part]
    async with opened(tmp_path, clock) as store:
        assert await stored_subscriptions(store) == [Subscription(TOPIC, "c", "s", at(1), 7)]


async def test_a_content_that_was_stored_before_is_known_by_its_digest(
    tmp_path: Path, clock: Clock
):
    async with logs(tmp_path, clock) as (topics, _):
        await topics.publish(TOPIC, whole_content(b"one", "text/plain", at(0)))
    with closing(sqlite3.connect(tmp_path / "hub.sqlite")) as database:
        stored = database.execute("SELECT digest FROM fragment").fetchall()
    assert stored == [(hashlib.sha256(b"whole one").digest(),)]


async def test_deleting_a_log_deletes_its_cursors(tmp_path: Path, clock: Clock):
    async with logs(tmp_path, clock) as (topics, _):
        await topics.publish(TOPIC, made(0, 1))
    async with opened(tmp_path, clock) as store:
        await store.bridge("mqtt://a", {"": 0, TOPIC: 1, f"{TOPIC} {{}}": 1, TOPIC + "2": 1})
        await store.forget(TOPIC, after=1)
        assert await store.bridged("mqtt://a") == {"": 0, TOPIC + "2": 1}


@pytest.mark.parametrize(
    ("version", "undo"), [(2, "DROP TABLE bridged"), (3, "DROP INDEX topic_received")]
)
async def test_data_of_format_2_and_3_is_migrated(
    tmp_path: Path, clock: Clock, version: int, undo: str
):
    async with logs(tmp_path, clock) as (topics, _):
        await topics.publish(TOPIC, made(0, 1))
    with closing(sqlite3.connect(tmp_path / "hub.sqlite")) as database:
        database.executescript(f"{undo}; PRAGMA user_version = {version};")
    async with opened(tmp_path, clock) as store:
        assert [state.topic for state in await stored_logs(store)] == [TOPIC]
        await store.bridge("mqtt://a", {TOPIC: 1})
        assert await store.bridged("mqtt://a") == {TOPIC: 1}
    with closing(sqlite3.connect(tmp_path / "hub.sqlite")) as database:
        plan = "EXPLAIN QUERY PLAN SELECT uri FROM topic ORDER BY received DESC, uri LIMIT 1"
        assert "topic_received" in str(database.execute(plan).fetchall())


async def fill(store: SqliteStore, numbers: range) -> None:
    """Begin a topic with each number, all in the same microsecond."""
    topics = map("https://a.example/{}".format, numbers)
    await asyncio.gather(
        *(store.append(topic, [made(0, 1)], after=0, replacing=None) for topic in topics)
    )


async def test_a_page_of_two_thousand_topics_takes_no_more_steps_than_of_a_hundred(
    tmp_path: Path, clock: Clock
):
    taken = []
    for count in (100, 2_000):
        async with opened(tmp_path / str(count), clock) as store:
            await fill(store, range(count // 2))
            clock.advance(microseconds=1)
            await fill(store, range(count // 2, count))
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


async def test_all_logs_are_trimmed_even_if_one_of_them_is_being_written(
    tmp_path: Path, clock: Clock
):
    retention = LogRetention(10**9, timedelta(hours=1))
    async with logs(tmp_path, clock, retention) as (topics, _):
        await topics.publish(TOPIC, made(0, 1))
        await topics.publish(TOPIC + "2", made(0, 1))
        clock.advance(days=1)
        writing = topics.publish(TOPIC, made(1, 2))
        await topics.trim()
        await writing
        state = topics.state(TOPIC + "2")
        assert state is not None
        assert state.kept == 0
        assert topics.recent(TOPIC + "2", after=0) is None


async def test_a_heartbeat_replaces_the_one_before_it_in_memory_too(tmp_path: Path, clock: Clock):
    async with logs(tmp_path, clock) as (topics, _):
        for fragment in (made(0, 1), made(1, until=5), made(1, until=9)):
            await topics.publish(TOPIC, fragment)
        recent = topics.recent(TOPIC, after=0)
        assert recent is not None
        assert [entry.fragment for entry in recent] == [made(0, 1), made(1, until=9)]


async def test_a_publication_fails_once_the_store_takes_too_long(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    async with logs(tmp_path, clock) as (topics, _):
        monkeypatch.setattr(topics.store, "answer_seconds", 0.01)
        with (
            writes_waiting(tmp_path),
            pytest.raises(StorageError, match="storing a publication on"),
        ):
            await topics.publish_in_time(TOPIC, made(0, 1))


async def test_a_deleted_topic_is_not_known_any_more(tmp_path: Path, clock: Clock):
    async with logs(tmp_path, clock) as (topics, _):
        await topics.publish(TOPIC, made(0, 1))
        await topics.delete(TOPIC)
        assert not topics.knows(TOPIC)


async def test_a_topic_that_another_node_deleted_is_not_known_any_more(topics: TopicLogs):
    await topics.publish(TOPIC, made(0, 1))
    await topics.store.forget(TOPIC, after=topics.position(TOPIC))
    assert not topics.knows(TOPIC)


def test_a_heartbeat_within_the_log_or_the_batch_is_not_appended():
    batch = [made(0, 5), made(1, 3), made(3, until=4), made(4, until=5), made(5, 6)]
    assert plan_append(None, batch).fragments == (made(0, 5), made(1, 3), made(5, 6))


def log_state(*, heartbeat: Interval | None = None, whole: bool = False) -> LogState:
    return LogState(TOPIC, 1, 3, at(0), at(9), at(9), 3, 9, heartbeat, whole)


@pytest.mark.parametrize(
    ("state", "fragment", "expected"),
    [
        (log_state(), made(8, 10), True),
        (log_state(), made(9, 10), False),
        (log_state(heartbeat=Interval(at(5), at(9))), made(4, 10), True),
        (log_state(heartbeat=Interval(at(5), at(9))), made(5, 10), False),
        (log_state(whole=True), made(8, 10), False),
        (log_state(), whole_content(b"one", "text/plain", at(1)), False),
    ],
)
def test_a_fragment_overlaps_the_log_if_it_begins_before_the_last_change(
    state: LogState, fragment: Fragment, expected: bool
):
    assert overlaps(state, fragment) is expected


async def test_a_change_at_the_beginning_of_a_fragment_is_not_missing_in_it(topics: TopicLogs):
    await publish(topics, made(0, 1, 3), made(1, 3))
    assert await kept(topics) == [made(0, 1, 3), made(1, 3)]


@pytest.mark.parametrize(
    ("since", "numbers"),
    [(None, None), (0.5, None), (1, None), (1.5, [2]), (2, [2]), (2.5, [2])],
)
def test_entries_are_read_from_memory_if_none_after_that_instant_is_only_on_disk(
    since: float | None, numbers: list[int] | None
):
    for through in (1, 1.5):
        recent = RecentEntries(None)
        entries = [LogEntry(1, made(0, through)), LogEntry(2, made(through, 3))]
        recent.extend(entries, replacing=None, first=1)
        recent.shrink(2)
        found = recent.after(0, None if since is None else at(since))
        is_known = numbers is not None and since is not None and since >= through
        assert (found and [entry.position for entry in found]) == (numbers if is_known else None)


def test_a_whole_content_replaces_the_one_before_it_in_memory():
    recent = RecentEntries(None)
    for position in (1, 2):
        content = whole_content(b"%d" % position, "text/plain", at(position))
        recent.extend([LogEntry(position, content)], replacing=None, first=1)
    found = recent.after(0, None)
    assert found is not None
    assert [entry.position for entry in found] == [2]


class EarlyListener(Listener):
    """Remembers what is delivered before it is durable, too."""

    def __init__(self) -> None:
        super().__init__()
        self.early: list[Fragment] = []

    def deliver_early(self, topic: str, fragments: Sequence[Fragment]) -> None:
        self.early += fragments


async def test_nothing_is_delivered_early_that_may_be_a_duplicate_or_replaced(
    tmp_path: Path, clock: Clock
):
    listener = EarlyListener()
    async with logs(tmp_path, clock, listener=listener) as (topics, _):
        await publish(topics, made(0, 2), made(1, 2), made(0, 1), made(2, 3))
        assert listener.early == [made(0, 2), made(2, 3)]
        await topics.publish(TOPIC + "2", whole_content(b"one", "text/plain", at(0)))
        assert len(listener.early) == 2
