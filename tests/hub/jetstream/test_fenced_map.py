"""Cursors of one owner in several records: many of them, what is written, and who may write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from rsnotify.errors import StorageError
from rsnotify_hub.store.interface import NotOwner, StoredSubscription
from rsnotify_hub.websub_subscription import Subscription, subscription_id
from rsnotify_jetstream import fenced_map
from rsnotify_jetstream.bucket import Bucket, StaleAnswer
from rsnotify_jetstream.cluster_records import BridgeRecord, CursorsRecord, decode
from rsnotify_jetstream.fenced_map import (
    NO_EPOCH,
    FencedRecord,
    OwnerRights,
    read_fenced,
    store_fenced,
)
from rsnotify_jetstream.nats_connection import NatsConnection
from rsnotify_jetstream.nats_settings import NatsSettings
from rsnotify_jetstream.owned_bridge import OwnedBridge, bridge_key
from rsnotify_jetstream.owned_shard import OwnedShard, ShardBuckets
from rsnotify_jetstream.shard_ownership import Sharding
from rsnotify_jetstream.shared_subscriptions import read_records
from tests.hub.helpers import TOPIC, at
from tests.hub.jetstream.nodes import connected
from tests.waiting import until

URL = "http://callback.example/%d"
#: Rights that do not end.
RIGHTS = OwnerRights(1, lambda: True, lambda: None)
#: So few that some hundred subscriptions need several records.
SMALL = 2_000


class Shards:
    """The owners of one shard, one after the other, as far as its cursors."""

    def __init__(self, connection: NatsConnection) -> None:
        self.cursors = Bucket(connection, "cursors")
        self.subscriptions = Bucket(connection, "subscriptions")
        self._epoch = 0
        self._stack = AsyncExitStack()
        self.deposed: list[int] = []
        self.may_write = True
        self.changed: list[tuple[str, StoredSubscription | None]] = []

    async def take(self) -> OwnedShard:
        self._epoch = epoch = self._epoch + 1
        rights = OwnerRights(epoch, lambda: self.may_write, lambda: self.deposed.append(epoch))
        buckets = ShardBuckets(self.subscriptions, self.cursors, f"node {epoch}")
        shard = OwnedShard(buckets, "7", rights, lambda *it: self.changed.append(it))
        self._stack.push_async_callback(shard.close)
        await shard.load()
        shard.is_working = True
        return shard

    async def records(self) -> dict[str, CursorsRecord]:
        head = await self._record("7")
        return {"7": head} | {
            f"7.{number}": await self._record(f"7.{number}") for number in range(1, head.parts)
        }

    async def _record(self, key: str) -> CursorsRecord:
        found = await self.cursors.get(key)
        assert found is not None
        assert found.value is not None
        return decode(found.value, CursorsRecord)

    async def revisions(self) -> dict[str, int]:
        found = {key: await self.cursors.get(key) for key in await self.records()}
        return {key: each.revision for key, each in found.items() if each is not None}

    async def close(self) -> None:
        await self._stack.aclose()


@pytest.fixture
async def shards(settings: NatsSettings) -> AsyncIterator[Shards]:
    async with connected(settings) as connection:
        shards = Shards(connection)
        await shards.cursors.prepare()
        await shards.subscriptions.prepare()
        yield shards
        await shards.close()


@pytest.fixture
def small_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide the cursors of some hundred subscriptions among several records."""
    monkeypatch.setattr(fenced_map, "RECORD_BYTES", SMALL)


def id_of(number: int) -> str:
    return subscription_id(TOPIC, URL % number)


async def subscribe(shard: OwnedShard, count: int) -> None:
    limit = asyncio.Semaphore(256)

    async def save(number: int) -> None:
        async with limit:
            url = URL % number
            await shard.save(Subscription(TOPIC, url, None, at(10**6), 0))

    await asyncio.gather(*map(save, range(count)))


async def flushed(shard: OwnedShard) -> None:
    """Write everything, once there are as many records as needed."""
    await until(lambda: shard._cursors._growing is None)
    await shard.flush()


async def filled(shards: Shards, count: int) -> OwnedShard:
    """Return an owner that has stored subscriptions."""
    shard = await shards.take()
    await subscribe(shard, count)
    await flushed(shard)
    return shard


def move_all(shard: OwnedShard, count: int) -> None:
    """Move each cursor to a position of its own."""
    for number in range(count):
        shard.move(id_of(number), number + 1)


def moved_all(count: int) -> dict[str, int]:
    return {URL % number: number + 1 for number in range(count)}


def positions(shard: OwnedShard) -> dict[str, int]:
    return {each.subscription.callback: each.subscription.position for each in shard.stored()}


@pytest.mark.usefixtures("small_records")
async def test_what_moves_while_the_lease_is_over_is_written_once_it_is_confirmed(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(fenced_map, "WRITE_DELAY_SECONDS", 0)
    monkeypatch.setattr(fenced_map, "RETRY_SECONDS", 0.01)
    one = await filled(shards, 200)
    before = await shards.revisions()
    shards.may_write = False
    for number in range(200):
        one.save_failure_state(
            id_of(number), b"trouble" * 9
        )  # so large that more records are needed
        one.move(id_of(number), number + 1)
    assert one._cursors._growing is not None
    with pytest.raises(NotOwner):
        await one._cursors._records[0].write()
    found = await shards.revisions()
    assert {key: found[key] for key in before} == before
    shards.may_write = True
    await flushed(one)
    assert shards.deposed == []
    again = await shards.take()
    assert positions(again) == moved_all(200)


async def test_a_subscription_that_the_previous_owner_wrote_late_is_deleted(shards: Shards):
    await subscribe(await shards.take(), 1)
    two = await shards.take()
    assert two._watch is not None
    await two._watch.unsubscribe()  # the deletion is sent before the late write is received
    key = f"7.{id_of(0)}"
    value, revision = await shards.subscriptions.latest(key)
    assert value is not None
    await shards.subscriptions.replace(key, value, revision, node="node 1", epoch="1")
    await two.delete(id_of(0))
    assert (await shards.subscriptions.latest(key))[0] is None
    assert (await shards.take()).stored() == []


async def test_what_was_stored_as_the_lease_ended_is_reported_once_it_is_confirmed(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
):
    one = await shards.take()
    await subscribe(one, 2)
    replace, delete = Bucket.replace, Bucket.delete

    async def ends(self: Bucket, *rest: Any, **headers: str) -> int | None:
        revision = await replace(self, *rest, **headers)
        shards.may_write = False
        return revision

    async def end(self: Bucket, *rest: Any, **headers: str) -> bool:
        deleted = await delete(self, *rest, **headers)
        shards.may_write = False
        return deleted

    with monkeypatch.context() as patched:
        patched.setattr(Bucket, "replace", ends)
        patched.setattr(Bucket, "delete", end)
        renewed = Subscription(TOPIC, URL % 0, "secret", at(10**6), 0)
        with pytest.raises(NotOwner):
            await one.save(renewed)
        await asyncio.sleep(0)
        shards.may_write = True
        with pytest.raises(NotOwner):
            await one.delete(id_of(1))
    await asyncio.sleep(0)
    shards.may_write = True
    assert shards.changed == []
    for _ in range(2):
        one.resume()
    changed = dict(shards.changed)
    assert len(shards.changed) == len(changed) == 2
    assert changed[id_of(0)] == StoredSubscription(renewed, None)
    assert changed[id_of(1)] is None
    await subscribe(one, 3)
    await asyncio.sleep(0)
    one.resume()
    assert len(shards.changed) == 2


async def moved(shards: Shards, count: int) -> None:
    """Move each cursor of some subscriptions, and take the shard again."""
    one = await shards.take()
    await subscribe(one, count)
    move_all(one, count)
    one.save_failure_state(id_of(0), b"trouble")
    await flushed(one)
    two = await shards.take()
    assert positions(two) == moved_all(count)
    assert [each.failure_state for each in two.stored() if each.failure_state] == [b"trouble"]
    one.move(id_of(0), 10**6)
    with pytest.raises(NotOwner):
        await one.flush()
    assert shards.deposed == [1]


@pytest.mark.usefixtures("small_records")
async def test_the_cursors_of_many_subscriptions_are_in_several_records(shards: Shards):
    await moved(shards, 500)
    records = await shards.records()
    assert len(records) > 4
    assert {record.epoch for record in records.values()} == {2}


@pytest.mark.slow  # half a minute
async def test_a_shard_has_100_000_subscriptions(shards: Shards):
    await moved(shards, 100_000)


async def test_few_cursors_are_in_one_record(shards: Shards):
    await moved(shards, 20)
    assert list(await shards.records()) == ["7"]


@pytest.mark.usefixtures("small_records")
async def test_only_the_records_in_which_a_cursor_has_moved_are_written(shards: Shards):
    one = await filled(shards, 300)
    before = await shards.revisions()
    one.move(id_of(5), 9)
    await one.flush()
    after = await shards.revisions()
    assert before.keys() == after.keys()
    assert len([key for key in before if before[key] != after[key]]) == 1


@pytest.mark.usefixtures("small_records")
async def test_every_record_refuses_the_owner_before(shards: Shards):
    one = await filled(shards, 300)
    await shards.take()
    before = await shards.revisions()
    for number in range(300):
        one.move(id_of(number), 9)
    for part in one._cursors._records:
        with pytest.raises(NotOwner):
            await part.flush()
    assert await shards.revisions() == before


@pytest.mark.parametrize("failing", range(1, 11))
async def test_an_owner_that_ends_while_it_divides_its_records_loses_no_cursor(
    shards: Shards, monkeypatch: pytest.MonkeyPatch, failing: int
):
    one = await shards.take()
    await subscribe(one, 100)
    move_all(one, 100)
    await one.flush()
    monkeypatch.setattr(fenced_map, "RECORD_BYTES", 500)
    replace = shards.cursors.replace
    left = failing

    async def failing_replace(*arguments: Any) -> int | None:
        nonlocal left
        left -= 1
        if left <= 0:
            raise StorageError("NATS is away")
        return await replace(*arguments)

    monkeypatch.setattr(shards.cursors, "replace", failing_replace)
    one.move(id_of(0), 1)  # it has this position already
    await until(lambda: left <= 0 or one._cursors._growing is None)
    await one.close()
    monkeypatch.setattr(shards.cursors, "replace", replace)
    two = await shards.take()
    expected = moved_all(100)
    assert positions(two) == expected
    two.move(id_of(1), 2)
    await flushed(two)
    assert len(await shards.records()) > 2
    assert positions(await shards.take()) == expected


async def test_a_later_owner_is_not_written_over(shards: Shards):
    await shards.take()
    shards._epoch = 5
    await shards.take()
    shards._epoch = 2
    with pytest.raises(NotOwner, match="a later owner"):
        await shards.take()


async def test_the_bridge_has_a_cursor_in_each_of_20_000_logs(shards: Shards):
    cursors = {f"https://source.example/channels/{number:060}": number for number in range(20_000)}
    one = OwnedBridge(shards.cursors, RIGHTS)
    await one.store("mqtt://broker", cursors)
    one.move("mqtt://broker", "another", 7)
    await one.flush()
    two = OwnedBridge(shards.cursors, OwnerRights(2, lambda: True, lambda: None))
    assert await two.read("mqtt://broker") == cursors | {"another": 7}
    one.close()
    two.close()


@pytest.mark.parametrize("count", [0, 3, 200])
@pytest.mark.usefixtures("small_records")
async def test_cursors_are_read_and_stored_without_owning_them(shards: Shards, count: int):
    broker = "mqtt://broker"
    key, empty = bridge_key(broker), BridgeRecord(epoch=NO_EPOCH, broker=broker)
    cursors = {f"https://source.example/channels/{number:060}": number for number in range(count)}
    await store_fenced(shards.cursors, key, empty, cursors)
    await store_fenced(shards.cursors, key, empty, {"other": 1})
    assert await read_fenced(shards.cursors, key, empty) == cursors
    bridge = OwnedBridge(shards.cursors, RIGHTS)
    assert await bridge.read(broker) == cursors
    bridge.move(broker, "another", 7)
    await bridge.flush()
    bridge.close()
    assert await read_fenced(shards.cursors, key, empty) == cursors | {"another": 7}


@pytest.mark.usefixtures("small_records")
async def test_all_subscriptions_of_a_large_shard_are_exported_with_their_cursors(shards: Shards):
    one = await shards.take()
    await subscribe(one, 300)
    move_all(one, 300)
    await flushed(one)
    buckets = ShardBuckets(shards.subscriptions, shards.cursors, "reader")
    found = await read_records(buckets, Sharding(8))
    assert {each.callback: each.position for each in found.subscriptions} == positions(one)


async def test_an_owner_that_is_fenced_by_its_own_clock_writes_nothing(shards: Shards) -> None:
    rights = [True]
    record = FencedRecord(
        shards.cursors,
        "7",
        lambda _: b"mine",
        OwnerRights(1, lambda: rights[0], lambda: None),
    )
    await record.read()
    await record.claim()
    claimed = await shards.cursors.get("7")
    rights[0] = False  # no other owner has written yet
    with pytest.raises(NotOwner):
        await record.write()
    assert await shards.cursors.get("7") == claimed


async def test_an_owner_replaces_what_it_has_stored_without_an_answer(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    values, lost = [b"first"], []
    rights = OwnerRights(1, lambda: True, lambda: lost.append("lost"))
    record = FencedRecord(shards.cursors, "7", lambda _: values[-1], rights)
    await record.claim()
    connection = shards.cursors.connection
    request = connection.request

    async def unanswered(*arguments: Any, **options: Any) -> NoReturn:
        await request(*arguments, **options)
        raise StorageError("the store does not answer")

    for value in (b"second", b"third"):
        values.append(value)
        record.changed()
        monkeypatch.setattr(connection, "request", unanswered)
        with pytest.raises(StorageError):
            await record.write()
        monkeypatch.setattr(connection, "request", request)
        values.append(value + b", again")
        await record.write()
        assert (await shards.cursors.latest("7"))[0] == value + b", again"
    assert not lost


async def test_a_server_with_an_older_state_does_not_end_the_rights_of_an_owner(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str] = []
    rights = OwnerRights(1, lambda: True, lambda: lost.append("lost"))
    record = FencedRecord(shards.cursors, "7", lambda _: b"mine", rights)
    await record.claim()
    connection = shards.cursors.connection
    request = connection.request

    async def stale(subject: str, *arguments: Any, **options: Any) -> Any:
        """Refuse each write, as a server does that was the leader before it was suspended."""
        if not subject.startswith("$KV."):
            return await request(subject, *arguments, **options)
        return SimpleNamespace(data=b'{"error": {"code": 400, "err_code": 10071}}')

    for _ in range(2):
        record.changed()
        monkeypatch.setattr(connection, "request", stale)
        for _ in range(fenced_map.MAX_STALE_ANSWERS):
            with pytest.raises(StorageError) as caught:
                await record.write()
            assert isinstance(caught.value, StaleAnswer)
        monkeypatch.setattr(connection, "request", request)
        await record.write()
    assert not lost
    record.changed()
    monkeypatch.setattr(connection, "request", stale)
    for _ in range(fenced_map.MAX_STALE_ANSWERS):
        with pytest.raises(StaleAnswer):
            await record.write()
    with pytest.raises(NotOwner):
        await record.write()
    assert lost


@pytest.mark.parametrize("steps", range(5))
async def test_nothing_is_written_after_an_owner_has_written_for_the_last_time(
    shards: Shards, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    monkeypatch.setattr(fenced_map, "WRITE_DELAY_SECONDS", 0)
    record = FencedRecord(shards.cursors, "7", lambda _: b"mine", RIGHTS)
    await record.claim()
    record.changed()
    for _ in range(steps):  # until the write that is due has been scheduled, or has begun
        await asyncio.sleep(0)
    await record.flush()
    last = record._revision
    if record._writing is not None:
        await asyncio.wait([record._writing])
    assert record._revision == last
