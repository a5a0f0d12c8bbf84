"""What an admin sees and changes at one node is that of all nodes."""

from __future__ import annotations

from typing import Any, cast

import pytest

from rsnotify_hub.admin.hub_operations import ChangeOperations, ReadOperations, UnknownId
from rsnotify_hub.admin.schema_conversion import topic_id
from rsnotify_hub.admin.schemas import PageQuery, PayloadQuery, SubscriptionQuery
from rsnotify_hub.websub_subscription import DeliveryState, subscription_id
from tests.hub.helpers import TOPIC, Clock, at
from tests.hub.jetstream.callbacks import callback_ports
from tests.hub.jetstream.hubs import ClusterHub, Hubs, subscribe
from tests.waiting import until


def admin_of(hub: ClusterHub, clock: Clock) -> ChangeOperations:
    deliveries = hub.deliveries
    unused = cast(Any, None)
    reads = ReadOperations(
        deliveries.topics,
        unused,
        deliveries.channel,
        unused,
        unused,
        unused,
        clock,
        hub.store.nodes,
        unused,
    )
    return ChangeOperations(reads, unused)


async def test_lists_and_changes_are_about_the_subscriptions_of_all_nodes(hubs: Hubs, clock: Clock):
    async with callback_ports(9) as callbacks:
        running = await hubs.start_all("one", "two", "three")
        admins = [admin_of(hub, clock) for hub in running]
        await subscribe(callbacks.urls, *running)
        await running[0].publish(1)
        await callbacks.all_have(1)
        ids = sorted(subscription_id(TOPIC, url) for url in callbacks.urls)
        for admin in admins:
            rows = []
            after = ""
            while True:
                page = await admin.reads.subscriptions(SubscriptionQuery(limit=4, after=after))
                assert page.total == 9
                rows += page.subscriptions
                if page.next is None:
                    break
                assert len(page.subscriptions) == 4
                after = page.next
            assert [row.id for row in rows] == ids
            for id in ids:
                details = await admin.reads.details(id)
                assert details.callback in callbacks.urls
                (attempt,) = details.attempts
                payload = await admin.reads.payload(id, PayloadQuery(through=attempt.through))
                assert payload.size == attempt.size == len(payload.text or "")
        for id in ids:
            assert (await admins[0].change("suspend", id)).state is DeliveryState.SUSPENDED
        query = SubscriptionQuery(state=DeliveryState.SUSPENDED)
        assert (await admins[1].reads.subscriptions(query)).total == 9
        await running[1].publish(2)
        for id in ids:
            assert (await admins[1].change("resume", id)).id == id
        await callbacks.all_have(2)
        assert (await admins[2].change("redeliver", ids[0], at(0))).id == ids[0]
        await callbacks.until(lambda: sorted(map(len, callbacks.received.values()))[-1] == 4)
        await admins[2].drop(ids[0])
        with pytest.raises(UnknownId):
            await admins[0].drop(ids[0])
        assert (await admins[0].reads.dead_letters(PageQuery())).total == 0
        assert (await admins[0].reads.failures()).failures == ()
        await admins[0].drop_topic(topic_id(TOPIC))
        assert not any(hub.urls for hub in running)
        await until(lambda: all(hub.deliveries.topics.state(TOPIC) is None for hub in running))
