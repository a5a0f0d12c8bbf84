"""Subscriptions of a cluster: each is delivered by one hub at a time, whatever befalls the hubs."""

from __future__ import annotations

from functools import partial

import pytest
from msgspec.structs import replace

from rsnotify.errors import StorageError
from rsnotify_hub.export_file import NullLogListener
from rsnotify_hub.refusals import Code, Refusal, answer_to
from rsnotify_hub.store.interface import NotOwner
from rsnotify_hub.store.nodes import NodeCall
from rsnotify_hub.store.providers import NodeFacts
from rsnotify_jetstream import node_messages as messages
from rsnotify_jetstream.jetstream_store import JetStreamStore, open_jetstream
from rsnotify_jetstream.nats_settings import NatsSettings
from rsnotify_jetstream.shard_ownership import ShardView
from tests.hub.helpers import TOPIC, Clock
from tests.hub.jetstream.callbacks import CallbackPorts
from tests.hub.jetstream.hubs import (
    PACE,
    SHARDS,
    Hubs,
    settled,
    subscribe,
)
from tests.hub.jetstream.lossy_proxy import lossy_proxy
from tests.hub.jetstream.nodes import connected
from tests.hub.storing import FOREVER, Owner
from tests.nats_servers import NatsCluster
from tests.waiting import until


async def test_a_fragment_published_to_one_hub_reaches_the_callbacks_of_all(
    hubs: Hubs, callbacks: CallbackPorts
):
    one, two = await hubs.start_all("one", "two")
    await one.publish(1)
    await two.store.catch_up()
    await subscribe(callbacks.urls, one, two)
    for second in (2, 4):
        await one.publish(second)
        await two.publish(second + 1)
    await callbacks.all_have(5)
    callbacks.check(5, first=2)
    assert one.urls | two.urls == set(callbacks.urls)
    assert not one.urls & two.urls
    for hub in (one, two):
        for url in hub.urls:
            assert set(callbacks.hubs[url]) == {f"http://{hub.name}.example/websub"}


async def test_the_shards_of_a_hub_that_is_killed_move_and_nothing_is_lost(
    mortal_hubs: Hubs, callbacks: CallbackPorts
):
    running = await mortal_hubs.start_all("one", "two", "three")
    await subscribe(callbacks.urls, *running)
    killed, *others = running
    kept = {hub.name: hub.shards for hub in others}
    await killed.publish(1, 2, 3)
    await callbacks.all_have(3)
    await killed.kill()
    await others[0].publish(4, 5)
    await settled(others)
    await others[1].publish(6)
    await callbacks.all_have(6)
    callbacks.check(6)
    assert callbacks.overlaps == set()
    for hub in others:
        assert kept[hub.name] <= hub.shards


async def test_a_hub_that_joins_takes_only_its_shards_and_one_that_leaves_gives_them_back(
    hubs: Hubs, callbacks: CallbackPorts
):
    one, two = await hubs.start_all("one", "two")
    await subscribe(callbacks.urls, one, two)
    before = {hub.name: hub.shards for hub in (one, two)}
    await one.publish(1)
    three = await hubs.start("three")
    await settled([one, two, three])
    await three.publish(2)
    await callbacks.all_have(2)
    assert one.shards <= before["one"]
    assert two.shards <= before["two"]
    await hubs.stop(three)
    await one.publish(3)
    await callbacks.all_have(3)
    await settled([one, two])
    assert {hub.name: hub.shards for hub in (one, two)} == before
    callbacks.check(3)
    assert callbacks.overlaps == set()
    # Those that moved in order were not delivered anything twice.
    assert all(seconds == [1, 2, 3] for seconds in callbacks.received.values())


async def test_callbacks_receive_the_log_that_replaces_a_deleted_one(
    hubs: Hubs, callbacks: CallbackPorts, settings: NatsSettings
):
    (one,) = await hubs.start_all("one")
    await subscribe(callbacks.urls, one)
    for second in (1, 2, 3):
        await one.publish(second)
    await callbacks.all_have(3)
    await hubs.stop(one)
    async with connected(settings) as connection:
        await connection.client.request(f"$JS.API.STREAM.DELETE.{settings.prefix}-log", b"", 5)
    two = await hubs.start("two")
    await two.publish(4)  # at a position that the cursors have passed
    await settled([two])
    await callbacks.all_have(4)
    await two.publish(5)
    await callbacks.all_have(5)
    callbacks.check(5)


class Bridge:
    """A bridge that reads its cursors."""

    def __init__(self, store: JetStreamStore) -> None:
        self._store = store
        self.cursors: dict[str, int] | None = None

    async def start(self) -> None:
        self.cursors = await self._store.bridged("broker")

    async def close(self) -> None: ...


async def test_a_broker_receives_the_log_that_replaces_a_deleted_one(
    settings: NatsSettings, clock: Clock
):
    for expected in ({}, {"": 0, TOPIC: 0}, {"": 0, TOPIC: 0}):
        record = NodeFacts(bridges=True)
        store = await open_jetstream(settings, FOREVER, clock, record, shards=1, pace=PACE)
        try:
            await store.start(NullLogListener())
            bridge = Bridge(store)
            await store.assign(Owner())
            await store.assign_bridge(bridge)
            await until(lambda bridge=bridge: bridge.cursors is not None)
            assert bridge.cursors == expected
            if not expected:
                await store.bridge("broker", {"": 0, TOPIC: 3})  # the log has nothing
        finally:
            await store.close()


async def test_a_hub_that_is_cut_off_stops_and_the_others_go_on(
    nats_server: NatsCluster, settings: NatsSettings, mortal_hubs: Hubs, callbacks: CallbackPorts
):
    (server,) = nats_server.servers.values()
    async with lossy_proxy(server.port) as (proxy, url):
        one = await mortal_hubs.start("one", replace(settings, servers=(url,)))
        two = await mortal_hubs.start("two")
        await settled([one, two])
        await subscribe(callbacks.urls, one, two)
        await one.publish(1)
        await callbacks.all_have(1)
        proxy.refusing = True
        proxy.cut()
        await until(lambda: not one.shards)
        await two.publish(2)
        await callbacks.all_have(2)
        await settled([two])
        assert {hubs[-1] for hubs in callbacks.hubs.values()} == {"http://two.example/websub"}
        proxy.refusing = False
        await settled([one, two])
        await one.publish(3)
        await callbacks.all_have(3)
        callbacks.check(3)
        assert callbacks.overlaps == set()


async def test_a_write_for_what_is_not_owned_is_refused(hubs: Hubs, callbacks: CallbackPorts):
    one, two = await hubs.start_all("one", "two")
    url = next(url for url in callbacks.urls if one.owns(url))
    with pytest.raises(NotOwner):
        await two.subscribe(url)
    with pytest.raises(NotOwner):
        await two.store.delete(TOPIC, url)
    await one.subscribe(url)
    await one.publish(1)
    await callbacks.all_have(1, [url])
    assert callbacks.received == {url: [1]}


async def test_a_delivery_that_runs_when_its_shard_moves_ends_before_the_next_begins(
    hubs: Hubs, callbacks: CallbackPorts
):
    (one,) = await hubs.start_all("one")
    await subscribe(callbacks.urls, one)
    callbacks.open.clear()
    await one.publish(1)
    await callbacks.until(lambda: callbacks.waiting == set(callbacks.urls))
    two = await hubs.start("two")
    await until(lambda: len(one.shards) < SHARDS)
    callbacks.open.set()
    await settled([one, two])
    await two.publish(2)
    await callbacks.all_have(2)
    callbacks.check(2)
    assert callbacks.overlaps == set()


async def test_a_request_is_forwarded_to_the_owner_of_its_subscription(
    hubs: Hubs, callbacks: CallbackPorts
):
    one, two = await hubs.start_all("one", "two")
    for url in callbacks.urls:
        await one.request(url)
    await until(lambda: len(one.urls) + len(two.urls) == len(callbacks.urls))
    assert all(one.owns(url) for url in one.urls)
    assert all(two.owns(url) for url in two.urls)
    for url in callbacks.urls:
        await two.request(url, "unsubscribe")
    await until(lambda: not one.urls | two.urls)


async def test_a_request_without_an_owner_is_refused_for_now(
    hubs: Hubs, callbacks: CallbackPorts, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(messages, "OWNER_SECONDS", 0.2)
    (one,) = await hubs.start_all("one")
    await one.store.leave()
    with pytest.raises(Refusal) as refused:
        await one.request(callbacks.urls[0])
    assert answer_to(refused.value, with_token=False) == (503, {"Retry-After": "5"})


async def test_every_node_answers_what_is_asked_of_all(mortal_hubs: Hubs):
    call: NodeCall[int, str] = NodeCall("test", int, str)
    running = [await mortal_hubs.start(name) for name in ("one", "two", "three")]
    for hub in running:
        hub.store.nodes.serve(call, partial(answer, hub.name))
    await settled(running)
    answers = await running[0].store.nodes.ask_all(call, 7)
    assert sorted(answers) == ["one 7", "three 7", "two 7"]
    await running[1].kill()
    await settled([running[0], running[2]])
    assert sorted(await running[0].store.nodes.ask_all(call, 8)) == ["one 8", "three 8"]


async def test_a_call_that_fails_or_that_a_node_does_not_know_fails_for_whoever_asked(hubs: Hubs):
    one, two = await hubs.start_all("one", "two")

    async def fail(error: str) -> None:
        if error == "refusal":
            raise Refusal(Code.TOO_MANY, "too many")
        if error == "store":
            raise StorageError("the disk is full")
        raise ValueError("a fault")

    fails: NodeCall[str, None] = NodeCall("fails", str, type(None))
    two.store.nodes.serve(fails, fail)
    one.store.nodes.serve(fails, succeed)
    for kind, error, reason in (
        ("refusal", Refusal, "too many"),
        ("store", StorageError, "the disk is full"),
        ("bug", StorageError, "internal error"),
    ):
        with pytest.raises(error, match=reason):
            await one.store.nodes.ask_all(fails, kind)
    unknown: NodeCall[int, str] = NodeCall("unknown", int, str)
    one.store.nodes.serve(unknown, partial(answer, "one"))
    with pytest.raises(StorageError, match="upgrade its hub"):
        await one.store.nodes.ask_all(unknown, 1)


async def succeed(_: str) -> None: ...


async def answer(name: str, number: int) -> str:
    return f"{name} {number}"


async def test_a_shard_is_taken_though_its_record_was_seen_otherwise_than_it_is_stored(hubs: Hubs):
    (one,) = await hubs.start_all("one")
    membership = one.store.node.membership
    shard, *_ = sorted(one.shards)
    # As after a server's copy of the records differed from that of the leader.
    membership._views[shard] = ShardView(None, 99, 1_000_000)
    membership.lost(shard, membership._holds[shard].epoch)
    await until(lambda: shard not in one.shards)
    await settled([one])
