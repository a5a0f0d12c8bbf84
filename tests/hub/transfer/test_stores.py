"""An export of one store is imported into another, whatever that has already."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from rsnotify_hub.export_file import (
    Exported,
    ImportReport,
    NullLogListener,
    import_records,
    read_store,
)
from rsnotify_hub.fragments import Fragment
from rsnotify_hub.intake import whole_content
from rsnotify_hub.store.interface import LogEntry, Store, SubscriptionRecords
from rsnotify_hub.store.providers import NodeFacts
from rsnotify_hub.store.sqlite_store import SqliteStore
from rsnotify_hub.websub_subscription import Subscription
from rsnotify_jetstream.jetstream_store import open_jetstream
from rsnotify_jetstream.nats_settings import NatsSettings
from tests.hub.helpers import TOPIC, Clock, at
from tests.hub.jetstream.hubs import ClusterHub, running_hubs
from tests.hub.storing import FOREVER, made
from tests.waiting import until

PAGE = "https://source.example/page"
BROKER = "mqtts://broker.example/rsnotify"
ONE = Subscription(TOPIC, "https://one.example/callback?a=b", "secret", at(100), 0)
TWO = replace(ONE, callback="https://two.example:8443/", secret=None, suspended=True, client="me")
#: Before all leases end.
NOW = at(50)
DAY = timedelta(days=1)

#: Opens a store of the test by its name, again and again.
OpenStore = Callable[[str], AbstractAsyncContextManager[Store]]


@asynccontextmanager
async def on_sqlite(folder: Path) -> AsyncIterator[Store]:
    store = SqliteStore(folder, FOREVER, Clock())
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def on_nats(settings: NatsSettings) -> AsyncIterator[Store]:
    store = await open_jetstream(settings, FOREVER, Clock(), NodeFacts(), shards=4)
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture(params=["sqlite", "jetstream"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    if request.param == "sqlite":
        return lambda name: on_sqlite(tmp_path / name)
    settings = request.getfixturevalue("nats_settings")
    return lambda name: on_nats(replace(settings, prefix=f"{settings.prefix}-{name}"))


async def log_of(store: Store, topic: str) -> list[LogEntry]:
    entries = list[LogEntry]()
    while page := await store.read(topic, after=entries[-1].position if entries else 0):
        entries += page
    return entries


async def append(store: Store, topic: str, fragments: Sequence[Fragment]) -> list[int]:
    """Append to a log that has nothing, and return the positions."""
    await store.start(NullLogListener())
    assert await store.append(topic, fragments, after=0, replacing=None) == len(fragments)
    return [entry.position for entry in await log_of(store, topic)]


async def exported(store: Store) -> list[Exported]:
    return [record async for record in read_store(store)]


async def export_of(opening: AbstractAsyncContextManager[Store]) -> list[Exported]:
    async with opening as store:
        return await exported(store)


async def imported(store: Store, records: Sequence[Exported]) -> ImportReport:
    return await import_records(store, records, NOW)


async def pending(store: Store, subscription: Subscription) -> list[Fragment]:
    """Return what a subscription has still to receive, from its cursor in the store."""
    known = {each.callback: each for each in (await store.records()).subscriptions}
    found = known[subscription.callback]
    log = await log_of(store, found.topic)
    return [entry.fragment for entry in log if entry.position > found.position]


async def kept(store: Store, topic: str) -> list[Fragment]:
    return [entry.fragment for entry in await log_of(store, topic)]


async def test_everything_but_changes_moves_from_sqlite_to_nats_and_back(
    tmp_path: Path, nats_settings: NatsSettings
):
    page = whole_content(b"\xff\x00 any content", "image/png", at(7))
    async with on_sqlite(tmp_path / "one") as store:
        positions = await append(store, TOPIC, [made(0, 1), made(1, 2), made(2, until=3)])
        await append(store, PAGE, [page])
        subscriptions = [replace(ONE, position=positions[1]), replace(TWO, topic=PAGE)]
        cursors = {"": 0, TOPIC: positions[2], PAGE: 0}
        await store.restore(SubscriptionRecords(subscriptions, {BROKER: cursors}))
    first = await export_of(on_sqlite(tmp_path / "one"))
    for opened in (on_nats(nats_settings), on_sqlite(tmp_path / "two")):
        async with opened as store:
            assert await imported(store, first) == ImportReport(subscriptions=2, contents=1)
            assert await kept(store, TOPIC) == []
            assert await pending(store, TWO) == await kept(store, PAGE) == [page]
            records = await store.records()
            assert {*records.subscriptions} == {ONE, replace(TWO, topic=PAGE)}
            assert records.brokers == {BROKER: {"": 0, TOPIC: 0, PAGE: 0}}
            first = await exported(store)


async def test_a_repeated_import_changes_nothing(open_store: OpenStore):
    async with open_store("one") as store:
        await append(store, PAGE, [whole_content(b"any", "text/plain", at(7))])
        await store.restore(SubscriptionRecords([ONE], {BROKER: {"": 0}}))
    records = await export_of(open_store("one"))
    async with open_store("two") as store:
        await imported(store, records)
    before = await export_of(open_store("two"))
    async with open_store("two") as store:
        assert await imported(store, records) == ImportReport(newer=1, other_contents=1)
    assert await export_of(open_store("two")) == before


async def test_a_cursor_beyond_the_end_of_the_new_log_leaves_nothing_out(open_store: OpenStore):
    async with open_store("one") as store:
        positions = await append(store, TOPIC, [made(second, second + 1) for second in range(9)])
        subscriptions = [replace(ONE, position=positions[-1])]
        await store.restore(SubscriptionRecords(subscriptions, {BROKER: {TOPIC: positions[-1]}}))
    records = await export_of(open_store("one"))
    async with open_store("two") as store:
        await imported(store, records)
    async with open_store("two") as store:
        (first,) = await append(store, TOPIC, [made(9, 10)])
        assert await pending(store, ONE) == [made(9, 10)]
        assert (await store.records()).brokers[BROKER][TOPIC] < first


async def test_a_log_of_the_other_store_is_kept_and_delivered_from_its_beginning(
    open_store: OpenStore,
):
    newer = [made(5, 6), made(6, 7)]
    page = whole_content(b"any", "text/plain", at(9))
    async with open_store("one") as store:
        (position, _) = await append(store, TOPIC, [made(0, 1), made(1, 2)])
        await append(store, PAGE, [page])
        await store.restore(SubscriptionRecords([replace(ONE, position=position)], {}))
    records = await export_of(open_store("one"))
    async with open_store("two") as store:
        await append(store, TOPIC, newer)
        await store.append(PAGE, newer, after=0, replacing=None)
    async with open_store("two") as store:
        assert await imported(store, records) == ImportReport(subscriptions=1, other_contents=1)
        assert await kept(store, TOPIC) == await kept(store, PAGE) == newer
        assert await pending(store, ONE) == newer


@pytest.mark.parametrize(("received", "kept_body"), [(3, b"imported"), (9, b"stored")])
async def test_of_two_whole_contents_the_newer_is_kept_and_delivered(
    open_store: OpenStore, received: float, kept_body: bytes
):
    subscription = replace(ONE, topic=PAGE)
    async with open_store("one") as store:
        (position,) = await append(store, PAGE, [whole_content(b"imported", "text/plain", at(7))])
        subscriptions = [replace(subscription, position=position), replace(TWO, topic=PAGE)]
        await store.restore(SubscriptionRecords(subscriptions, {}))
    records = await export_of(open_store("one"))
    async with open_store("two") as store:
        await append(store, PAGE, [whole_content(b"stored", "text/plain", at(received))])
    async with open_store("two") as store:
        await imported(store, records)
        (content,) = await kept(store, PAGE)
        assert content.body == kept_body
        assert await pending(store, TWO) == await pending(store, ONE) == [content]


async def test_the_later_lease_of_a_subscription_is_kept(open_store: OpenStore):
    renewed = replace(ONE, expires=at(200), secret="another")
    for subscriptions, restored in (([ONE, TWO], 2), ([renewed, TWO], 1), ([ONE], 0)):
        async with open_store("one") as store:
            assert await store.restore(SubscriptionRecords(subscriptions, {})) == restored
    async with open_store("one") as store:
        assert {*(await store.records()).subscriptions} == {renewed, TWO}


async def test_the_cursors_of_a_broker_that_is_known_are_kept(open_store: OpenStore):
    async with open_store("one") as store:
        await store.restore(SubscriptionRecords([], {BROKER: {"": 0, TOPIC: 5}}))
    async with open_store("one") as store:
        await store.restore(SubscriptionRecords([], {BROKER: {"": 0, TOPIC: 7}, "two": {"": 0}}))
        assert (await store.records()).brokers == {BROKER: {"": 0, TOPIC: 5}, "two": {"": 0}}


async def test_a_subscription_whose_lease_has_ended_is_left_out(tmp_path: Path):
    async with on_sqlite(tmp_path / "one") as store:
        await store.restore(SubscriptionRecords([replace(ONE, expires=NOW), TWO], {}))
    records = await export_of(on_sqlite(tmp_path / "one"))
    async with on_sqlite(tmp_path / "two") as store:
        assert await imported(store, records) == ImportReport(subscriptions=1, expired=1)
        assert list((await store.records()).subscriptions) == [TWO]


async def test_nodes_that_run_deliver_to_what_is_restored_or_renewed(nats_settings: NatsSettings):
    lease = Clock()().replace(year=2030)
    async with running_hubs(nats_settings, Clock()) as hubs:
        running = [await hubs.start("one"), await hubs.start("two")]
        subscriptions = [
            replace(ONE, callback=f"https://{number}.example/", expires=lease)
            for number in range(12)
        ]
        urls = {each.callback for each in subscriptions}
        async with on_nats(nats_settings) as store:
            await store.restore(SubscriptionRecords(subscriptions, {}))
        await until(lambda: set[str]().union(*(hub.urls for hub in running)) == urls)
        assert not running[0].urls & running[1].urls
        renewed = [replace(each, secret="new", expires=lease + DAY) for each in subscriptions]
        async with on_nats(nats_settings) as store:
            assert await store.restore(SubscriptionRecords(renewed, {})) == 12
        await until(lambda: subscriptions_of(running) == {*renewed})


def subscriptions_of(hubs: Sequence[ClusterHub]) -> set[Subscription]:
    return {
        delivery.subscription for hub in hubs for delivery in hub.deliveries.channel.registry.all()
    }
