"""Deliveries over a kept connection take no task, and behave like all others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rsnotify_hub.websub.callback_subscriber import CallbackSubscriber
from rsnotify_hub.websub.request_scheduler import RequestScheduler
from rsnotify_hub.websub_subscription import DeliveryState
from tests.hub.deliveries import Deliveries, opened_channel
from tests.hub.helpers import Callback, Clock, fragment
from tests.hub.posting.servers import CLOSE, OK, serving
from tests.waiting import PATIENCE


@pytest.fixture
async def deliveries(tmp_path: Path, clock: Clock) -> AsyncIterator[Deliveries]:
    async with opened_channel(tmp_path, clock, retry_seconds=600) as opened:
        yield opened


async def with_running_delivery(deliveries: Deliveries, callback: Callback) -> CallbackSubscriber:
    """A subscription with a delivery that is answered once `callback.open` is set."""
    delivery = await deliveries.delivered(callback)
    callback.open.clear()
    await deliveries.publish(2)
    assert (await callback.delivery())[1] == fragment(1, 2)
    assert delivery.slot.task is None
    return delivery


async def test_a_delivery_that_is_suspended_while_it_runs_is_made_when_it_is_resumed(
    deliveries: Deliveries, callback: Callback
):
    delivery = await with_running_delivery(deliveries, callback)
    assert await deliveries.channel.suspend(delivery.id)
    assert (delivery.slot, delivery.subscription.position) == (None, 1)
    callback.open.set()
    assert await deliveries.channel.resume(delivery.id)
    assert (await callback.delivery())[1] == fragment(1, 2)
    await deliveries.until(lambda: delivery.subscription.position == 2)


async def test_a_subscription_that_is_dropped_during_a_delivery_frees_its_capacity(
    deliveries: Deliveries, callback: Callback
):
    delivery = await with_running_delivery(deliveries, callback)
    slot = delivery.slot
    assert await deliveries.channel.drop(delivery.id, "because")
    assert slot.queue.running() == []


@pytest.mark.parametrize("with_task", [False, True])
async def test_a_delivery_of_a_subscription_that_is_released_may_end_and_none_follows(
    deliveries: Deliveries,
    callback: Callback,
    monkeypatch: pytest.MonkeyPatch,
    with_task: bool,
):
    monkeypatch.setattr("rsnotify_hub.websub.sender.CLOSE_SECONDS", PATIENCE)
    if with_task:
        delivery = await deliveries.subscribed(callback)
        callback.open.clear()
        await deliveries.publish(1)
        await callback.delivery()
        assert delivery.slot.task is not None
    else:
        delivery = await with_running_delivery(deliveries, callback)
    requests, position = callback.requests, delivery.subscription.position
    releasing = asyncio.create_task(deliveries.channel.released([delivery.id]))
    await deliveries.publish(3)
    assert not releasing.done()
    callback.open.set()
    await releasing
    assert (callback.requests, delivery.subscription.position) == (requests, position + 1)
    assert (deliveries.channel.registry.get(delivery.id), delivery.slot) == (None, None)


async def test_a_delivery_of_a_subscription_that_is_released_is_not_repeated(
    deliveries: Deliveries, callback: Callback
):
    callback.answers = [500]
    delivery = await deliveries.failing(callback)
    await deliveries.channel.released([delivery.id])
    assert (delivery.timer, delivery.retry_at, delivery.is_stopped) == (None, None, True)


async def test_a_delivery_that_is_cancelled_the_moment_it_fails_leaves_nothing_behind(
    tmp_path: Path, callback: Callback, clock: Clock
):
    scheduler = RequestScheduler(1000)
    async with opened_channel(tmp_path, clock, scheduler, retry_seconds=600) as deliveries:
        delivery = await with_running_delivery(deliveries, callback)
        slot, delivery.slot = delivery.slot, None
        slot.expire()
        scheduler.cancel(slot)  # before the task has begun that sees to the failure
        await deliveries.until(lambda: slot.queue.running() == [])
        callback.open.set()
    assert delivery.failures == 0


async def test_a_delivery_that_takes_too_long_has_failed(
    tmp_path: Path, callback: Callback, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    scheduler = RequestScheduler(1000)
    async with opened_channel(tmp_path, clock, scheduler, retry_seconds=600) as deliveries:
        delivery = await deliveries.delivered(callback)
        monkeypatch.setattr(scheduler, "seconds", 0.05)
        callback.open.clear()
        await deliveries.publish(2)
        await deliveries.until(lambda: delivery.failures == 1)
        assert delivery.last_failure.reason == "timed out"
        await deliveries.until(lambda: delivery.slot is None)
        assert (delivery.state, delivery.subscription.position) == (DeliveryState.RETRYING, 1)


async def test_a_delivery_that_fails_is_retried(deliveries: Deliveries, callback: Callback):
    delivery = await deliveries.delivered(callback)
    callback.answers = [500]
    await deliveries.publish(2)
    await deliveries.until(lambda: delivery.retry_at is not None)
    assert (delivery.state, delivery.subscription.position) == (DeliveryState.RETRYING, 1)
    await deliveries.channel.redeliver(delivery.id)
    await deliveries.until(lambda: delivery.subscription.position == 2)


async def test_a_subscription_whose_callback_is_gone_ends(
    deliveries: Deliveries, callback: Callback
):
    delivery = await deliveries.delivered(callback)
    callback.answers = [410]
    await deliveries.publish(2)
    await deliveries.until(lambda: deliveries.channel.registry.get(delivery.id) is None)


async def test_a_channel_that_closes_waits_for_running_deliveries(
    tmp_path: Path, callback: Callback, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("rsnotify_hub.websub.sender.CLOSE_SECONDS", PATIENCE)
    async with opened_channel(tmp_path, clock) as deliveries:
        delivery = await with_running_delivery(deliveries, callback)
        callback.open.set()
    assert delivery.subscription.position == 2


async def test_a_channel_that_closes_does_not_wait_forever(
    tmp_path: Path, callback: Callback, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("rsnotify_hub.websub.sender.CLOSE_SECONDS", 0)
    async with opened_channel(tmp_path, clock) as deliveries:
        await with_running_delivery(deliveries, callback)
    async with opened_channel(tmp_path, clock) as deliveries:
        callback.open.set()
        assert (await callback.delivery())[1] == fragment(1, 2)


async def test_a_kept_connection_that_has_ended_is_no_failure(deliveries: Deliveries):
    async with serving([OK, CLOSE], [OK]) as server:
        delivery = await deliveries.subscribed(server.url())
        for second in (1, 2):
            await deliveries.publish(second)
            await deliveries.until(
                lambda second=second: delivery.subscription.position == second  # type: ignore[misc]
            )
        assert [each.connection for each in server.requests] == [0, 0, 1]
        assert (delivery.failures, delivery.last_failure) == (0, None)
