"""Renewals and an administrator's commands, also while a delivery runs."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from rsnotify_hub.websub_subscription import DeliveryState, Subscription
from tests.hub.deliveries import EITHER_CONNECTION, Deliveries, opened_channel
from tests.hub.helpers import TOPIC, Callback, Clock, LogWatch, at, fragment, seconds_of
from tests.hub.storing import stored_subscriptions


async def test_a_renewal_does_not_wait_for_the_next_attempt(
    slow_retries: Deliveries, callback: Callback
):
    delivery = await slow_retries.failing(callback)
    await callback.delivery()
    assert await slow_retries.subscribed(callback, secret="new") is delivery
    headers, body = await callback.delivery()
    assert body == fragment(0, 1)
    assert "X-Hub-Signature" in headers


@EITHER_CONNECTION
async def test_redelivering_makes_an_attempt_at_once(
    slow_retries: Deliveries, callback: Callback, kept: bool
):
    delivery = await slow_retries.failing(callback, kept=kept)
    assert (delivery.state, delivery.subscription.position) == (DeliveryState.RETRYING, kept)
    assert await slow_retries.channel.redeliver(delivery.id)
    await slow_retries.until(lambda: delivery.state is DeliveryState.ACTIVE)
    assert delivery.subscription.position == kept + 1


async def test_redelivering_since_an_instant_repeats_what_was_delivered(
    deliveries: Deliveries, callback: Callback
):
    delivery = await deliveries.subscribed(callback)
    for second in (1, 2, 3, 4):
        await deliveries.publish(second)
        await callback.delivery()
    await deliveries.until(lambda: delivery.behind_since is None)
    assert await deliveries.channel.redeliver(delivery.id, since=at(2))
    assert seconds_of((await callback.delivery())[1]) == [3, 4]
    await deliveries.until(lambda: delivery.behind_since is None)
    end = delivery.subscription.position
    assert await deliveries.channel.redeliver(delivery.id, since=at(4))
    assert delivery.subscription.position == end
    assert callback.deliveries.empty()


async def test_redelivering_replaces_a_running_delivery(deliveries: Deliveries, callback: Callback):
    delivery = await deliveries.running(callback, kept=True)
    assert await deliveries.channel.redeliver(delivery.id, since=at(0))
    assert seconds_of((await callback.delivery())[1]) == [1, 2]
    callback.open.set()
    await deliveries.until(lambda: delivery.behind_since is None)
    assert callback.deliveries.empty()


async def test_a_suspended_subscription_waits_also_over_a_restart(
    tmp_path: Path, callback: Callback, clock: Clock
):
    async with opened_channel(tmp_path, clock) as deliveries:
        delivery = await deliveries.subscribed(callback)
        assert await deliveries.channel.suspend(delivery.id)
        await deliveries.publish(1, 2)
        assert delivery.state is DeliveryState.SUSPENDED
        assert delivery.behind_since == clock.now
        await deliveries.subscribed(callback, secret="renewed")
        assert delivery.state is DeliveryState.SUSPENDED
    async with opened_channel(tmp_path, clock) as deliveries:
        found = deliveries.channel.registry.get(delivery.id)
        assert found.state is DeliveryState.SUSPENDED
        assert await deliveries.channel.redeliver(delivery.id)
        assert callback.requests == 0
        assert await deliveries.channel.resume(delivery.id)
        assert seconds_of((await callback.delivery())[1]) == [1, 2]


@EITHER_CONNECTION
async def test_a_delivery_that_is_suspended_while_it_runs_is_made_when_it_is_resumed(
    slow_retries: Deliveries, callback: Callback, kept: bool
):
    delivery = await slow_retries.running(callback, kept=kept)
    assert await slow_retries.channel.suspend(delivery.id)
    assert (delivery.slot, delivery.subscription.position) == (None, kept)
    callback.open.set()
    assert await slow_retries.channel.resume(delivery.id)
    assert (await callback.delivery())[1] == fragment(kept, kept + 1)
    await slow_retries.until(lambda: delivery.behind_since is None)


@EITHER_CONNECTION
async def test_a_subscription_that_is_dropped_during_a_delivery_frees_its_capacity(
    slow_retries: Deliveries, callback: Callback, kept: bool
):
    delivery = await slow_retries.running(callback, kept=kept)
    slot = delivery.slot
    assert await slow_retries.channel.drop(delivery.id, "because")
    await slow_retries.until(lambda: slot.queue.running() == [])


async def test_a_dropped_subscriber_is_informed_of_the_reason(
    deliveries: Deliveries, callback: Callback
):
    delivery = await deliveries.subscribed(callback)
    assert await deliveries.channel.drop(delivery.id, "it was dropped, sorry")
    intent = await callback.intent()
    assert (intent["hub.mode"], intent["hub.topic"]) == ("denied", TOPIC)
    assert intent["hub.reason"] == "it was dropped, sorry"
    assert deliveries.channel.registry.all() == []
    assert await stored_subscriptions(deliveries.store) == []
    await deliveries.publish(1)
    assert delivery.slot is None
    assert callback.deliveries.empty()


async def test_an_unknown_subscription_cannot_be_changed(deliveries: Deliveries):
    channel = deliveries.channel
    assert not await channel.redeliver("0" * 32)
    assert not await channel.suspend("0" * 32)
    assert not await channel.resume("0" * 32)
    assert not await channel.drop("0" * 32, "why")
    assert channel.registry.get("0" * 32) is None


async def test_a_subscription_that_ends_while_it_is_changed_stays_ended(
    deliveries: Deliveries, callback: Callback
):
    delivery = await deliveries.subscribed(callback)
    dropped, suspended = await asyncio.gather(
        deliveries.channel.drop(delivery.id, "over"), deliveries.channel.suspend(delivery.id)
    )
    assert (dropped, suspended) == (True, False)
    assert await stored_subscriptions(deliveries.store) == []


async def test_a_renewal_while_its_old_lease_is_ended_keeps_the_subscription(
    deliveries: Deliveries, callback: Callback, clock: Clock
):
    delivery = await deliveries.subscribed(callback)
    clock.advance(days=11)
    renewed = replace(delivery.subscription, expires=clock.now + timedelta(days=10))
    await asyncio.gather(deliveries.channel.put(renewed), deliveries.channel.expire())
    assert deliveries.channel.registry.all() == [delivery]
    assert await stored_subscriptions(deliveries.store) == [renewed]


@pytest.mark.parametrize("gone", [False, True], ids=["lease", "410"])
async def test_a_subscription_renewed_while_a_delivery_would_end_it_continues(
    deliveries: Deliveries,
    callback: Callback,
    clock: Clock,
    watch: LogWatch,
    monkeypatch: pytest.MonkeyPatch,
    gone: bool,
):
    delivery = await deliveries.subscribed(callback)
    save, saving = deliveries.store.save, asyncio.Event()

    async def save_late(subscription: Subscription) -> None:
        await saving.wait()
        await save(subscription)

    monkeypatch.setattr(deliveries.store, "save", save_late)
    callback.answers = [410] if gone else []
    clock.advance(days=0 if gone else 11)
    renewed = replace(delivery.subscription, expires=clock.now + timedelta(days=12))
    renewing = asyncio.create_task(deliveries.channel.put(renewed))
    await deliveries.until(delivery.lock.locked)
    await deliveries.publish(1)
    await watch.line("ending a subscription to")
    saving.set()
    await renewing
    for _ in range(1 + gone):
        assert (await callback.delivery())[1] == fragment(0, 1)
    await deliveries.until(lambda: delivery.behind_since is None)
    assert deliveries.channel.registry.all() == [delivery]


async def test_subscribing_while_the_old_subscription_is_ended_twice_stays_subscribed(
    deliveries: Deliveries, callback: Callback
):
    delivery, channel = await deliveries.subscribed(callback), deliveries.channel

    async def end_and_begin() -> None:
        await channel.remove(TOPIC, callback.url)
        await channel.put(delivery.subscription)

    await asyncio.gather(end_and_begin(), channel.remove(TOPIC, callback.url))
    assert await stored_subscriptions(deliveries.store) == [delivery.subscription]
    assert [each.subscription for each in channel.registry.all()] == [delivery.subscription]


async def test_a_subscription_that_ended_before_it_could_be_redelivered_stays_ended(
    deliveries: Deliveries, callback: Callback, monkeypatch: pytest.MonkeyPatch
):
    delivery = await deliveries.delivered(callback)
    read = deliveries.topics.read

    async def read_late(*args: object, **options: object) -> object:
        await deliveries.channel.remove(TOPIC, callback.url)
        return await read(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(deliveries.topics, "read", read_late)
    assert not await deliveries.channel.redeliver(delivery.id, since=at(0))
    assert (delivery.slot, callback.requests) == (None, 1)
