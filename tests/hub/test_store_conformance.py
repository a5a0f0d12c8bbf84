"""What every store does, whatever it is made of: the conformance suite of `rsnotify.stores`.

A new store is one more row of `STORES`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from rsnotify_hub.export_file import NullLogListener
from rsnotify_hub.fragments import Fragment
from rsnotify_hub.intake import whole_content
from rsnotify_hub.store.interface import (
    Backlog,
    LogEntry,
    LogMoved,
    LogRetention,
    Store,
)
from rsnotify_hub.store.providers import NodeFacts
from rsnotify_hub.store.sqlite_store import SqliteStore
from rsnotify_hub.websub_subscription import Subscription
from rsnotify_jetstream.jetstream_store import JetStreamStore, open_jetstream
from tests.hub.helpers import TOPIC, Clock, at
from tests.hub.jetstream.hubs import PACE
from tests.hub.jetstream.nodes import Node, Notified, part_of, prefixed
from tests.hub.storing import FOREVER, Owner, made, stored_logs
from tests.waiting import until

OTHER = f"{TOPIC}?ä=1 2"
#: There is no other node that a new one has to see first.
ALONE = replace(PACE, renew_seconds=0.05, settle_seconds=0)
ONE = Subscription(TOPIC, "https://one.example/callback?a=ä", "secret", at(100), 5, client="me")
TWO = Subscription(TOPIC, "https://two.example:8443/callback", None, at(200), 6, suspended=True)

#: Opens the store of a test, again and again.
Open = Callable[[LogRetention], Awaitable[Store]]
OpenLog = Callable[..., AbstractAsyncContextManager[Node]]
OpenStore = Callable[[], AbstractAsyncContextManager[tuple[Store, Owner]]]


def sqlite(request: pytest.FixtureRequest, folder: Path, clock: Clock) -> Open:
    async def opened(retention: LogRetention) -> Store:
        return SqliteStore(folder, retention, clock)

    return opened


def nats(request: pytest.FixtureRequest, folder: Path, clock: Clock) -> Open:
    settings = prefixed(request.getfixturevalue("nats_server").url, part_of(folder))

    async def opened(retention: LogRetention) -> Store:
        return await open_jetstream(settings, retention, clock, NodeFacts(), shards=4, pace=ALONE)

    return opened


STORES = {"sqlite": sqlite, "nats": nats}


@pytest.fixture(params=STORES)
def opened(request: pytest.FixtureRequest, clock: Clock, tmp_path: Path) -> Open:
    return STORES[request.param](request, tmp_path, clock)


@pytest.fixture
def store(opened: Open) -> OpenLog:
    @asynccontextmanager
    async def node(retention: LogRetention = FOREVER) -> AsyncIterator[Node]:
        store = await opened(retention)
        try:
            listener = Notified()
            yield Node(store, await store.start(listener), listener)
        finally:
            await store.close()

    return node


@pytest.fixture
async def node(store: OpenLog) -> AsyncIterator[Node]:
    async with store() as opened:
        yield opened


@pytest.fixture
def open_store(opened: Open) -> OpenStore:
    @asynccontextmanager
    async def owned() -> AsyncIterator[tuple[Store, Owner]]:
        store = await opened(FOREVER)
        owner = Owner()
        try:
            await store.start(NullLogListener())
            for _ in range(20):
                await store.check()  # so that a log in NATS has the positions of the cursors
            await store.assign(owner)
            await store.assign_bridge(owner)
            if isinstance(store, JetStreamStore):
                names, node = set(store.node.sharding.names()), store.node
                await until(lambda: set(node.working()) == names)
            await until(lambda: owner.bridges == 1)
            yield store, owner
        finally:
            await store.close()

    return owned


# Logs.


def fragments(entries: Sequence[LogEntry]) -> list[Fragment]:
    return [entry.fragment for entry in entries]


async def read(node: Node, since: float) -> list[Fragment]:
    return fragments(await node.store.read(TOPIC, after=0, since=at(since)))


async def changes(node: Node, since: float | None) -> list[Fragment]:
    start = None if since is None else at(since)
    return fragments(await node.store.changes(TOPIC, since=start))


async def entries(node: Node) -> list[tuple[int, Fragment]]:
    found = await node.store.read(TOPIC, after=0)
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
    positions = [entry.position for entry in (*first, *second)]
    assert positions == sorted(set(positions))
    state = node.state(TOPIC)
    assert (state.first, state.position) == (positions[0], positions[-1])
    assert (state.begins, state.through, state.kept) == (at(0), at(3), 3)
    assert state.size == sum(len(made(n, n + 1).body) for n in range(3))
    assert {each.topic for each in await stored_logs(node.store)} == {TOPIC, OTHER}


async def test_logs_are_the_same_after_reopening(store: OpenLog, clock: Clock):
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
    await node.append(TOPIC, made(0, 1), made(1, 2))
    received = node.listener.entries[TOPIC]
    assert [(entry.position, entry.fragment) for entry in received] == await entries(node)
    assert [node.state(TOPIC)] == await stored_logs(node.store)


async def test_a_body_that_the_log_has_is_skipped(node: Node):
    await node.append(OTHER, made(0, 9))
    first = await node.append(TOPIC, made(0, 1))
    second = await node.append(TOPIC, made(1, 2), made(0, 1), made(1, 2), made(2, 3))
    third = await node.append(TOPIC, made(0, 1))
    assert first
    assert fragments(second) == [made(1, 2), made(2, 3)]
    assert third == []
    assert node.listener.fragments(TOPIC) == [made(0, 1), made(1, 2), made(2, 3)]
    assert (node.state(TOPIC).topic, node.state(TOPIC).kept) == (TOPIC, 3)


async def test_an_append_planned_from_an_old_log_is_refused(node: Node):
    first = await node.append(TOPIC, made(0, 1))
    await node.append(TOPIC, made(1, 2))
    for after in (0, first[-1].position):
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


async def test_a_replaced_heartbeat_is_no_longer_in_the_log(store: OpenLog):
    async with store() as node:
        await node.append(TOPIC, made(0, 1))
        (before,) = await node.append(TOPIC, made(1, until=2))
        (after,) = await node.append(TOPIC, made(1, until=3))
        assert node.listener.replaced == {after.position: before.position}
        assert await node.kept(TOPIC) == [made(0, 1), made(1, until=3)]
        state = node.state(TOPIC)
        assert (state.kept, state.heartbeat is not None) == (2, True)
        assert (await node.store.backlogs(TOPIC, [0]))[0].fragments == 2
    async with store() as node:
        await node.append(TOPIC, made(1, 9))
        assert await node.kept(TOPIC) == [made(0, 1), made(1, 9)]


async def test_a_newer_content_replaces_the_one_before_and_may_come_back(store: OpenLog):
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
        await node.append(TOPIC, content(b"one"))
        assert node.listener.order == []
        assert node.state(TOPIC) == state
        await node.append(TOPIC, made(0, 1))
        assert await node.kept(TOPIC) == [made(0, 1)]
        await node.append(TOPIC, content(b"one"))
        await node.append(TOPIC, content(b"two"))
        assert [fragment.body for fragment in await node.kept(TOPIC)] == [made(0, 1).body, b"two"]


async def test_a_log_is_trimmed_by_size_but_keeps_its_last_fragment(store: OpenLog):
    size = len(made(0, 1).body)
    async with store(LogRetention(3 * size, FOREVER.age)) as node:
        for second in range(9):
            await node.append(TOPIC, made(second, second + 1))
        assert await node.kept(TOPIC) == [made(6, 7), made(7, 8), made(8, 9)]
        state = node.state(TOPIC)
        assert (state.begins, state.kept, state.size) == (at(6), 3, 3 * size)
        await node.append(TOPIC, large := made(9, 10, padding=9 * size))
        assert await node.kept(TOPIC) == [large]


async def test_a_lower_limit_trims_no_more_of_a_log_than_it_has_to(store: OpenLog):
    size = len(made(0, 1).body)
    async with store() as node:
        for second in range(5):
            await node.append(TOPIC, made(second, second + 1))
    async with store(LogRetention(2 * size, FOREVER.age)) as node:
        state = await node.store.trim(TOPIC)
        assert (state.begins, state.kept, state.size) == (at(3), 2, 2 * size)


async def test_a_log_is_trimmed_by_age_and_goes_on_where_it_was(store: OpenLog, clock: Clock):
    retention = LogRetention(10**9, timedelta(hours=1))
    async with store(retention) as node:
        await node.append("first", made(0, 1))
        await node.append(TOPIC, made(0, 9), made(1, 2))
        clock.advance(days=1)
        state = await node.store.trim(TOPIC)
        assert (state.topic, state.whole, state.heartbeat) == (TOPIC, False, None)
        assert (state.kept, state.size, state.through) == (0, 0, at(9))
        assert (state.first, state.begins) == (state.position + 1, at(9))
        assert await node.store.trim(OTHER) is None
    async with store(retention) as node:
        assert await node.store.trim(TOPIC) == state
        await node.append(TOPIC, made(9, 10))
        assert node.state(TOPIC).through == at(10)
        assert await node.kept(TOPIC) == [made(9, 10)]


async def test_a_trimmed_fragment_can_be_appended_again(store: OpenLog, clock: Clock):
    async with store(LogRetention(10**9, timedelta(hours=1))) as node:
        await node.append(TOPIC, made(0, 1))
        clock.advance(days=1)
        await node.store.trim(TOPIC)
        await node.append(TOPIC, made(0, 1))
        assert await node.kept(TOPIC) == [made(0, 1)]


async def test_a_log_that_ends_elsewhere_than_its_deletion_says_is_kept(store: OpenLog):
    async with store() as node:
        await node.append(TOPIC, made(0, 1), made(1, 2))
        with pytest.raises(LogMoved):
            await node.store.forget(TOPIC, after=node.position(TOPIC) - 1)
        assert node.listener.forgot == []
        assert await node.kept(TOPIC) == [made(0, 1), made(1, 2)]


async def test_a_deleted_log_is_gone_and_positions_are_not_used_again(store: OpenLog):
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
    store: OpenLog, clock: Clock
):
    async with store(LogRetention(10**9, timedelta(hours=1))) as node:
        await node.append(TOPIC, made(0, 1))
        clock.advance(hours=1, microseconds=-1)
        state = await node.store.trim(TOPIC)
        assert state.kept == 1
        clock.advance(microseconds=1)
        state = await node.store.trim(TOPIC)
        assert state.kept == 0
        await node.append(TOPIC, made(1, 2))
        clock.advance(hours=1)
        await node.append(TOPIC, made(2, 3))
        assert await node.kept(TOPIC) == [made(2, 3)]


async def test_a_page_has_limited_bytes(node: Node):
    parts = [made(n, n + 1, padding=300_000) for n in range(5)]
    await node.append(TOPIC, *parts)
    assert len(await node.store.read(TOPIC, after=0)) == 4
    assert await node.kept(TOPIC) == parts


async def test_late_fragments_are_replayed_and_changes_are_in_the_order_of_their_ends(node: Node):
    await node.append(TOPIC, made(5, 9), made(0, 5), made(9, 10))
    assert await changes(node, None) == [made(0, 5), made(5, 9), made(9, 10)]
    assert await changes(node, 5) == [made(5, 9), made(9, 10)]
    assert await read(node, 2) == [made(5, 9), made(0, 5), made(9, 10)]
    assert await read(node, 5) == [made(5, 9), made(9, 10)]


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
    first, last = appended[0].position, appended[-1].position
    assert await node.store.backlogs(TOPIC, [first, 0, last, 10**9, 0]) == [
        Backlog(9, at(1)),
        Backlog(10, at(0)),
        Backlog(0, None),
        Backlog(0, None),
        Backlog(10, at(0)),
    ]
    assert await node.store.backlogs("none", [0]) == [Backlog(0, None)]


@pytest.mark.parametrize("limit", [1, 2, 9])
async def test_the_newest_logs_come_first_a_page_at_a_time(node: Node, clock: Clock, limit: int):
    async def listed() -> str:
        found, after = "", None
        while page := await node.store.newest(after=after, limit=limit):
            assert len(page) <= limit
            found += "".join(state.topic[-1] for state in page)
            assert len(found) <= 5
            after = page[-1].received, page[-1].topic
        return found

    for number in range(5):
        clock.advance(seconds=number == 3)
        await node.append(f"topic {number}", made(0, 1))
    assert await listed() == "34012"
    clock.advance(seconds=1)
    await node.append("topic 1", made(1, 2))
    await node.forget("topic 4")
    assert await listed() == "1302"


async def test_the_check_writes_and_changes_nothing(node: Node):
    await node.append(TOPIC, made(0, 1))
    before = await stored_logs(node.store)
    await node.store.check()
    await node.store.check()
    assert await stored_logs(node.store) == before
    assert node.store.queued() == 0
    assert node.listener.fragments(TOPIC) == [made(0, 1)]


# Subscriptions, and the cursors of brokers.


async def test_a_subscription_is_assigned_unchanged_after_reopening(open_store: OpenStore):
    async with open_store() as (store, owner):
        assert owner.subscriptions == []
        await store.save(ONE)
        await store.save(TWO)
    async with open_store() as (_, owner):
        assert owner.subscriptions == [ONE, TWO]
        assert owner.failure_states == [None, None]


async def test_a_renewal_replaces_the_secret_the_lease_and_the_state(open_store: OpenStore):
    renewed = replace(ONE, secret=None, expires=at(500), suspended=True)
    async with open_store() as (store, _):
        await store.save(ONE)
        await store.save(renewed)
    async with open_store() as (store, owner):
        assert owner.subscriptions == [renewed]
        await store.save(ONE)
    async with open_store() as (_, owner):
        assert owner.subscriptions == [ONE]


async def test_a_deleted_subscription_is_gone(open_store: OpenStore):
    async with open_store() as (store, _):
        await store.save(ONE)
        await store.save(TWO)
        await store.delete(ONE.topic, ONE.callback)
        await store.delete(ONE.topic, "https://never.example/")
    async with open_store() as (store, owner):
        assert owner.subscriptions == [TWO]
        await store.delete(TWO.topic, TWO.callback)
    async with open_store() as (_, owner):
        assert owner.subscriptions == []


async def test_cursors_are_kept_also_when_they_move_back(open_store: OpenStore):
    async with open_store() as (store, _):
        await store.save(ONE)
        await store.save(TWO)
        store.move_cursor(ONE.topic, ONE.callback, 16)
        store.move_cursor(ONE.topic, ONE.callback, 17)
        store.move_cursor(TWO.topic, TWO.callback, 2)
    async with open_store() as (store, owner):
        assert [each.position for each in owner.subscriptions] == [17, 2]
        store.move_cursor(ONE.topic, ONE.callback, 3)
    async with open_store() as (_, owner):
        assert [each.position for each in owner.subscriptions] == [3, 2]


async def test_subscriptions_with_the_same_callback_have_cursors_of_their_own(
    open_store: OpenStore,
):
    other = replace(ONE, topic="https://other.example/topic", position=6)
    async with open_store() as (store, _):
        await store.save(ONE)
        await store.save(other)
        store.move_cursor(ONE.topic, ONE.callback, 17)
    async with open_store() as (_, owner):
        assert {each.topic: each.position for each in owner.subscriptions} == {
            ONE.topic: 17,
            other.topic: 6,
        }


async def test_a_subscription_that_was_deleted_begins_again_where_it_says(
    open_store: OpenStore,
):
    async with open_store() as (store, _):
        await store.save(ONE)
        store.move_cursor(ONE.topic, ONE.callback, 17)
        store.save_failure_state(ONE.topic, ONE.callback, b"trouble")
        await store.delete(ONE.topic, ONE.callback)
        await store.save(replace(ONE, position=40))
    async with open_store() as (_, owner):
        assert owner.subscriptions == [replace(ONE, position=40)]
        assert owner.failure_states == [None]


async def test_trouble_is_kept_until_it_ends(open_store: OpenStore):
    async with open_store() as (store, _):
        await store.save(ONE)
        store.save_failure_state(ONE.topic, ONE.callback, b"trouble")
    async with open_store() as (store, owner):
        assert owner.failure_states == [b"trouble"]
        await store.save(replace(ONE, expires=at(300)))
    async with open_store() as (store, owner):
        assert owner.failure_states == [b"trouble"]
        store.save_failure_state(ONE.topic, ONE.callback, None)
    async with open_store() as (_, owner):
        assert owner.failure_states == [None]


async def test_a_cursor_without_a_subscription_is_ignored(open_store: OpenStore):
    async with open_store() as (store, _):
        store.move_cursor(ONE.topic, ONE.callback, 17)
        store.save_failure_state(ONE.topic, ONE.callback, b"trouble")
    async with open_store() as (_, owner):
        assert owner.subscriptions == []


async def test_the_cursors_of_a_broker_are_kept(open_store: OpenStore):
    async with open_store() as (store, _):
        assert await store.bridged("broker") == {}
        await store.bridge("broker", {"": 0, TOPIC: 4, "gone": 2})
        await store.bridge("other", {"": 0})
        store.move_bridged("broker", "gone", 3)
        await store.unbridge("broker", "gone")
        store.move_bridged("broker", TOPIC, 9)
        store.move_bridged("broker", "new", 1)
    async with open_store() as (store, _):
        assert await store.bridged("broker") == {"": 0, TOPIC: 9, "new": 1}
        assert await store.bridged("other") == {"": 0}


async def test_a_store_owns_the_callbacks_that_are_assigned(open_store: OpenStore):
    async with open_store() as (store, _):
        assert store.owns("one.example:443")
        assert store.owns("two.example:8443")
        assert store.owns_bridge()
