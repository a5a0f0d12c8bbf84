"""What every store of subscriptions does, whatever it is made of (`SubscriptionStore`)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from rsnotify_hub.store.interface import Store, StoredSubscription
from rsnotify_hub.store.sqlite_store import SqliteStore
from rsnotify_hub.subscriptions import Subscription, subscription_id
from rsnotify_hub.transfer.files import IgnoredNews
from rsnotify_jetstream.cluster_records import NodeRecord
from rsnotify_jetstream.jetstream_store import JetStreamStore, open_jetstream
from rsnotify_jetstream.membership import BRIDGE
from tests.hub.helpers import TOPIC, Clock, at
from tests.hub.jetstream.hubs import PACE, until
from tests.hub.storing import FOREVER

#: There is no other node that a new one has to see first.
ALONE = replace(PACE, renew_seconds=0.05, settle_seconds=0)
ONE = Subscription(TOPIC, "https://one.example/callback?a=ä", "secret", at(100), 5, client="me")
TWO = Subscription(TOPIC, "https://two.example:8443/callback", None, at(200), 6, suspended=True)


class Owner:
    """Remembers the subscriptions that a store has assigned to it, by id."""

    def __init__(self) -> None:
        self.owned: dict[str, StoredSubscription] = {}
        self.bridges = 0

    def acquired(self, stored: Sequence[StoredSubscription]) -> None:
        for each in stored:
            id = subscription_id(each.subscription.topic, each.subscription.callback)
            assert id not in self.owned
            self.owned[id] = each

    async def released(self, ids: Collection[str]) -> None:
        self.revoked(ids)

    def revoked(self, ids: Collection[str]) -> None:
        for id in ids:
            self.owned.pop(id, None)

    @property
    def subscriptions(self) -> list[Subscription]:
        found = (each.subscription for each in self.owned.values())
        return sorted(found, key=lambda each: each.callback)

    @property
    def troubles(self) -> list[bytes | None]:
        return [each.trouble for each in self.owned.values()]

    async def start(self) -> None:
        self.bridges += 1

    async def close(self) -> None:
        self.bridges -= 1


OpenStore = Callable[[], AbstractAsyncContextManager[tuple[Store, Owner]]]


@pytest.fixture(params=["sqlite", "jetstream"])
def open_store(request: pytest.FixtureRequest, clock: Clock, tmp_path: Path) -> OpenStore:
    """Opens the store of a test, again and again."""
    on_nats = request.param == "jetstream"
    settings = request.getfixturevalue("nats_settings") if on_nats else None

    @asynccontextmanager
    async def opened() -> AsyncIterator[tuple[Store, Owner]]:
        store: SqliteStore | JetStreamStore
        if settings is None:
            store = SqliteStore(tmp_path, FOREVER, clock)
        else:
            store = await open_jetstream(
                settings, FOREVER, clock, NodeRecord(), shards=4, pace=ALONE
            )
        owner = Owner()
        try:
            await store.start(IgnoredNews())
            for _ in range(20):
                await store.check()  # so that the log in NATS has the positions of the cursors
            await store.assign(owner)
            await store.assign_bridge(owner)
            if isinstance(store, JetStreamStore):
                names, node = set(store.node.sharding.names()), store.node
                await until(lambda: set(node.working()) == names)
                assert BRIDGE in names
            await until(lambda: owner.bridges == 1)
            yield store, owner
        finally:
            await store.close()

    return opened


async def test_a_subscription_is_assigned_unchanged_after_reopening(open_store: OpenStore):
    async with open_store() as (store, owner):
        assert owner.subscriptions == []
        await store.save(ONE)
        await store.save(TWO)
    async with open_store() as (_, owner):
        assert owner.subscriptions == [ONE, TWO]
        assert owner.troubles == [None, None]


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


async def test_a_subscription_that_was_deleted_begins_again_where_it_says(open_store: OpenStore):
    async with open_store() as (store, _):
        await store.save(ONE)
        store.move_cursor(ONE.topic, ONE.callback, 17)
        store.note_trouble(ONE.topic, ONE.callback, b"trouble")
        await store.delete(ONE.topic, ONE.callback)
        await store.save(replace(ONE, position=40))
    async with open_store() as (_, owner):
        assert owner.subscriptions == [replace(ONE, position=40)]
        assert owner.troubles == [None]


async def test_trouble_is_kept_until_it_ends(open_store: OpenStore):
    async with open_store() as (store, _):
        await store.save(ONE)
        store.note_trouble(ONE.topic, ONE.callback, b"trouble")
    async with open_store() as (store, owner):
        assert owner.troubles == [b"trouble"]
        await store.save(replace(ONE, expires=at(300)))
    async with open_store() as (store, owner):
        assert owner.troubles == [b"trouble"]
        store.note_trouble(ONE.topic, ONE.callback, None)
    async with open_store() as (_, owner):
        assert owner.troubles == [None]


async def test_a_cursor_without_a_subscription_is_ignored(open_store: OpenStore):
    async with open_store() as (store, _):
        store.move_cursor(ONE.topic, ONE.callback, 17)
        store.note_trouble(ONE.topic, ONE.callback, b"trouble")
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
