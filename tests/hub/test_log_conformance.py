"""What every store of logs does, whatever it is made of (`LogStore`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from rsnotify_hub.fragments import Fragment
from rsnotify_hub.intake import whole_content
from rsnotify_hub.store.interface import Backlog, LogEntry, LogMoved, LogRetention
from rsnotify_hub.store.sqlite_store import SqliteStore
from tests.hub.helpers import TOPIC, Clock, at
from tests.hub.jetstream.nodes import Node, Notified, running_node
from tests.hub.storing import FOREVER, made, stored_logs

OTHER = f"{TOPIC}?ä=1 2"
#: Opens the store of a test, again and again, with a retention.
OpenStore = Callable[..., AbstractAsyncContextManager[Node]]


@pytest.fixture(params=["sqlite", "jetstream"])
def store(request: pytest.FixtureRequest, clock: Clock, tmp_path: Path) -> OpenStore:
    if request.param == "sqlite":
        return lambda retention=FOREVER: _on_sqlite(tmp_path, clock, retention)
    settings = request.getfixturevalue("nats_settings")
    return lambda retention=FOREVER: running_node(settings, clock, retention)


@pytest.fixture
async def node(store: OpenStore) -> AsyncIterator[Node]:
    async with store() as opened:
        yield opened


@asynccontextmanager
async def _on_sqlite(folder: Path, clock: Clock, retention: LogRetention) -> AsyncIterator[Node]:
    store = SqliteStore(folder, retention, clock)
    try:
        listener = Notified()
        yield Node(store, await store.start(listener), listener)
    finally:
        await store.close()


def fragments(entries: Sequence[LogEntry]) -> list[Fragment]:
    return [entry.fragment for entry in entries]


async def read(node: Node, since: float) -> list[Fragment]:
    return fragments(await node.store.read(TOPIC, after=0, since=at(since)))


async def changes(node: Node, since: float | None) -> list[Fragment]:
    start = None if since is None else at(since)
    return fragments(await node.store.changes(TOPIC, since=start))


async def entries(node: Node, topic: str = TOPIC, after: int = 0) -> list[tuple[int, Fragment]]:
    found = await node.store.read(topic, after=after)
    return [(entry.position, entry.fragment) for entry in found]


async def test_what_was_appended_is_read_unchanged_and_in_order(node: Node):
    parts = [made(0, 1), made(1, 2), made(2, until=3)]
    for part in parts:
        await node.append(TOPIC, part)
    assert await node.kept(TOPIC) == parts
    assert await node.kept(OTHER) == []


async def test_positions_increase_and_the_state_names_the_last(node: Node):
    first = await node.append(TOPIC, made(0, 1), made(1, 2))
    await node.append(OTHER, made(0, 1))
    second = await node.append(TOPIC, made(2, 3))
    positions = [entry.position for entry in (*first.entries, *second.entries)]
    assert positions == sorted(set(positions))
    state = second.state
    assert (state.first, state.position) == (positions[0], positions[-1])
    assert (state.begins, state.through, state.kept) == (at(0), at(3), 3)
    assert state.size == sum(len(made(n, n + 1).body) for n in range(3))
    assert {each.topic for each in await stored_logs(node.store)} == {TOPIC, OTHER}


async def test_logs_are_the_same_after_reopening(store: OpenStore, clock: Clock):
    async with store() as node:
        await node.append(TOPIC, made(0, 1), made(1, 2), made(2, until=3))
        clock.advance(seconds=1)
        await node.append(OTHER, made(5, 6))
        before = await node.store.newest(after=None, limit=9)
        kept = await entries(node)
    async with store() as node:
        assert await node.store.newest(after=None, limit=9) == before
        assert await entries(node) == kept
        assert not node.listener.order
        await node.append(TOPIC, made(2, 4))
        assert await node.kept(TOPIC) == [made(0, 1), made(1, 2), made(2, 4)]


async def test_an_append_returns_after_the_listener_has_its_entries(node: Node):
    appended = await node.append(TOPIC, made(0, 1), made(1, 2))
    received = node.listener.entries[TOPIC]
    assert [(entry.position, entry.fragment) for entry in received] == await entries(node)
    assert node.state(TOPIC) == appended.state


async def test_a_body_that_the_log_has_is_skipped(node: Node):
    first = await node.append(TOPIC, made(0, 1))
    second = await node.append(TOPIC, made(1, 2), made(0, 1), made(1, 2), made(2, 3))
    third = await node.append(TOPIC, made(0, 1))
    assert first
    assert fragments(second.entries) == [made(1, 2), made(2, 3)]
    assert third.entries == []
    assert third.state == second.state
    assert node.listener.fragments(TOPIC) == [made(0, 1), made(1, 2), made(2, 3)]


async def test_an_append_planned_from_an_old_log_is_refused(node: Node):
    first = await node.append(TOPIC, made(0, 1))
    await node.append(TOPIC, made(1, 2))
    for after in (0, first.state.position):
        with pytest.raises(LogMoved):
            await node.store.append(TOPIC, [made(2, 3)], after=after, replacing=None)
    assert await node.kept(TOPIC) == [made(0, 1), made(1, 2)]


async def test_of_appends_planned_from_one_log_one_succeeds(node: Node):
    results = await asyncio.gather(
        *[node.store.append(TOPIC, [made(n, n + 1)], after=0, replacing=None) for n in range(5)],
        return_exceptions=True,
    )
    assert sum(isinstance(each, LogMoved) for each in results) == 4
    assert len(await node.kept(TOPIC)) == 1


async def test_a_replaced_heartbeat_is_no_longer_in_the_log(store: OpenStore):
    async with store() as node:
        await node.append(TOPIC, made(0, 1))
        before = await node.append(TOPIC, made(1, until=2))
        after = await node.append(TOPIC, made(1, until=3))
        assert node.listener.replaced == {after.state.position: before.state.position}
        assert await node.kept(TOPIC) == [made(0, 1), made(1, until=3)]
        assert (after.state.kept, after.state.heartbeat is not None) == (2, True)
        assert (await node.store.backlogs(TOPIC, [0]))[0].fragments == 2
    async with store() as node:
        await node.append(TOPIC, made(1, 9))
        assert await node.kept(TOPIC) == [made(0, 1), made(1, 9)]


async def test_a_newer_content_replaces_the_one_before_and_may_come_back(store: OpenStore):
    def content(body: bytes) -> Fragment:
        return whole_content(body, "text/html; charset=utf-8", at(0))

    async with store() as node:
        for body in (b"one", b"two", b"one"):
            await node.append(TOPIC, content(body))
        state = node.state(TOPIC)
        assert (state.whole, state.kept, state.size) == (True, 1, 3)
        assert [fragment.body for fragment in await node.kept(TOPIC)] == [b"one"]
        bodies = [fragment.body for fragment in node.listener.fragments(TOPIC)]
        assert bodies == [b"one", b"two", b"one"]
    async with store() as node:
        await node.append(TOPIC, made(0, 1))
        assert await node.kept(TOPIC) == [made(0, 1)]


async def test_a_log_is_trimmed_by_size_but_keeps_its_last_fragment(store: OpenStore):
    size = len(made(0, 1).body)
    async with store(LogRetention(3 * size, FOREVER.age)) as node:
        for second in range(9):
            await node.append(TOPIC, made(second, second + 1))
        assert await node.kept(TOPIC) == [made(6, 7), made(7, 8), made(8, 9)]
        state = node.state(TOPIC)
        assert (state.begins, state.kept, state.size) == (at(6), 3, 3 * size)
        await node.append(TOPIC, large := made(9, 10, padding=9 * size))
        assert await node.kept(TOPIC) == [large]


async def test_a_log_is_trimmed_by_age_and_goes_on_where_it_was(store: OpenStore, clock: Clock):
    retention = LogRetention(10**9, timedelta(hours=1))
    async with store(retention) as node:
        await node.append(TOPIC, made(0, 9), made(1, 2))
        clock.advance(days=1)
        state = await node.store.trim(TOPIC)
        assert (state.kept, state.size, state.through) == (0, 0, at(9))
        assert (state.first, state.begins) == (state.position + 1, at(9))
        assert await node.store.trim(OTHER) is None
    async with store(retention) as node:
        assert await node.store.trim(TOPIC) == state
        appended = await node.append(TOPIC, made(9, 10))
        assert appended.state.through == at(10)
        assert await node.kept(TOPIC) == [made(9, 10)]


async def test_a_trimmed_fragment_can_be_appended_again(store: OpenStore, clock: Clock):
    async with store(LogRetention(10**9, timedelta(hours=1))) as node:
        await node.append(TOPIC, made(0, 1))
        clock.advance(days=1)
        await node.store.trim(TOPIC)
        await node.append(TOPIC, made(0, 1))
        assert await node.kept(TOPIC) == [made(0, 1)]


async def test_a_deleted_log_is_gone_and_positions_are_not_used_again(store: OpenStore):
    async with store() as node:
        await node.append(TOPIC, made(0, 1), made(1, 2))
        last = node.position(TOPIC)
        await node.forget(TOPIC)
        assert node.listener.forgot == [TOPIC]
        assert await node.kept(TOPIC) == []
        assert await stored_logs(node.store) == []
        await node.forget(TOPIC)
        assert node.listener.forgot == [TOPIC]
    async with store() as node:
        assert await stored_logs(node.store) == []
        await node.append(TOPIC, made(0, 1))
        assert node.position(TOPIC) > last
        assert await node.kept(TOPIC) == [made(0, 1)]


async def test_a_page_is_read_after_a_position_and_an_instant(node: Node):
    await node.append(TOPIC, *[made(n, n + 1) for n in range(300)])
    page = await node.store.read(TOPIC, after=0)
    assert 0 < len(page) < 300
    rest = await node.store.read(TOPIC, after=page[-1].position)
    assert len(page) + len(rest) == 300
    assert await read(node, 297.5) == [made(n, n + 1) for n in (297, 298, 299)]
    assert await node.store.read(TOPIC, after=rest[-1].position) == []
    assert await node.store.read(TOPIC, after=0, since=at(300)) == []


async def test_a_replay_has_late_changes_of_the_second_that_it_begins_with(node: Node):
    late, heartbeat = made(1, 1), made(1, until=1)
    await node.append(TOPIC, made(0, 1), late, made(1, 2), made(2, 3))
    for since, first in ((0, 0), (1, 1), (1.5, 2), (2, 3)):
        every = [made(0, 1), late, made(1, 2), made(2, 3)]
        assert await read(node, since) == every[first:]
    assert heartbeat.heartbeat
    await node.append("quiet", heartbeat)
    assert await node.store.read("quiet", after=0, since=at(1)) == []


async def test_a_replay_begins_with_what_ends_a_microsecond_after_its_instant(node: Node):
    parts = [made(n / 1e6, (n + 1) / 1e6) for n in range(4)]
    await node.append(TOPIC, *parts)
    for number in range(5):
        assert await read(node, number / 1e6) == parts[number:]
        assert await changes(node, number / 1e6) == parts[number:]


async def test_a_fragment_is_trimmed_once_it_has_the_age_of_the_retention(
    store: OpenStore, clock: Clock
):
    async with store(LogRetention(10**9, timedelta(hours=1))) as node:
        await node.append(TOPIC, made(0, 1))
        clock.advance(hours=1, microseconds=-1)
        state = await node.store.trim(TOPIC)
        assert state.kept == 1
        clock.advance(microseconds=1)
        state = await node.store.trim(TOPIC)
        assert state.kept == 0


async def test_a_page_has_limited_bytes(node: Node):
    parts = [made(n, n + 1, padding=300_000) for n in range(5)]
    await node.append(TOPIC, *parts)
    assert len(await node.store.read(TOPIC, after=0)) == 4
    assert await node.kept(TOPIC) == parts


async def test_changes_are_read_in_the_order_of_their_ends(node: Node):
    await node.append(TOPIC, made(5, 9), made(0, 5), made(9, 10))
    assert await changes(node, None) == [made(0, 5), made(5, 9), made(9, 10)]
    assert await changes(node, 5) == [made(5, 9), made(9, 10)]


async def test_one_fragment_across_a_gap_is_found_behind_many_others(node: Node):
    parts = [made(number, number + 0.5) for number in range(300)]
    await node.append(TOPIC, *parts, made(0, 400))
    first = await changes(node, 0)
    assert first == parts[: len(first)]
    assert await changes(node, 0.7) == [made(0, 400)]
    assert await changes(node, 400) == []


async def test_the_backlog_after_each_position_is_counted(node: Node):
    appended = await node.append(TOPIC, *[made(n, n + 1) for n in range(10)])
    await node.append(OTHER, made(0, 1))
    first, last = appended.entries[0].position, appended.entries[-1].position
    assert await node.store.backlogs(TOPIC, [first, 0, last, 10**9, 0]) == [
        Backlog(9, at(1)),
        Backlog(10, at(0)),
        Backlog(0, None),
        Backlog(0, None),
        Backlog(10, at(0)),
    ]
    assert await node.store.backlogs("none", [0]) == [Backlog(0, None)]


async def test_the_newest_logs_come_first(node: Node, clock: Clock):
    for number in range(5):
        await node.append(f"topic {number}", made(0, 1))
        clock.advance(seconds=number % 2)
    page = await node.store.newest(after=None, limit=2)
    after = (page[-1].received, page[-1].topic)
    page += await node.store.newest(after=after, limit=9)
    assert [state.topic[-1] for state in page] == ["4", "2", "3", "0", "1"]


async def test_the_check_writes_and_changes_nothing(node: Node):
    await node.append(TOPIC, made(0, 1))
    before = await stored_logs(node.store)
    await node.store.check()
    await node.store.check()
    assert await stored_logs(node.store) == before
    assert node.store.queued() == 0
    assert node.listener.fragments(TOPIC) == [made(0, 1)]
