"""Failures survive a restart of the hub, and attempts outside the backoff do not lengthen it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from rsnotify_hub.admin.hub_readings import lag_seconds
from rsnotify_hub.websub.callback_subscriber import CallbackSubscriber
from rsnotify_hub.websub_subscription import DeliveryState
from tests.hub.deliveries import Deliveries, opened_channel
from tests.hub.helpers import Callback, Clock, at, seconds_of
from tests.hub.storing import stored_failure_states


def found(deliveries: Deliveries, before: CallbackSubscriber) -> CallbackSubscriber:
    """Return a subscription as the restarted hub has it."""
    again = deliveries.channel.registry.get(before.id)
    assert again not in (None, before)
    return again


async def test_a_failing_subscription_keeps_its_state_over_a_restart(
    tmp_path: Path, callback: Callback, clock: Clock
):
    callback.url += "/b"
    async with opened_channel(tmp_path, clock, retry_seconds=3600) as deliveries:
        before = await deliveries.failing(callback, 500, 500)
        clock.advance(seconds=1)
        later = await deliveries.subscribed(callback.url.removesuffix("b") + "a")
        await deliveries.publish(2)
        await deliveries.until(lambda: later.retry_at is not None)
    clock.advance(seconds=59)
    async with opened_channel(tmp_path, clock, retry_seconds=3600) as deliveries:
        after = found(deliveries, before)
        assert (after.state, after.failures) == (DeliveryState.RETRYING, 1)
        assert after.last_failure == before.last_failure
        assert after.has_failed_for(60, clock.now)
        assert not after.has_failed_for(61, clock.now)
        assert lag_seconds(after, clock.now) == 60
        assert after.retry_at is not None, (
            "an attempt was made at once, although the last failed a minute ago"
        )
        recent = [delivery for delivery, _ in deliveries.channel.recent_failures]
        assert recent == [after, found(deliveries, later)]
    async with opened_channel(tmp_path, clock, retry_seconds=0.01) as deliveries:
        again = [found(deliveries, each) for each in (before, later)]
        await deliveries.until(lambda: all(each.behind_since is None for each in again))
    async with opened_channel(tmp_path, clock) as deliveries:
        assert await stored_failure_states(deliveries.store) == []


async def test_a_failure_dated_by_a_clock_that_was_ahead_does_not_postpone_the_next_attempt(
    tmp_path: Path, callback: Callback, clock: Clock
):
    async with opened_channel(tmp_path, clock, retry_seconds=0.01) as deliveries:
        before = await deliveries.failing(callback, 500, 500, 500)
    clock.advance(days=-1)
    async with opened_channel(tmp_path, clock, retry_seconds=0.01) as deliveries:
        after = found(deliveries, before)
        await deliveries.until(lambda: after.state is DeliveryState.ACTIVE)


async def test_a_delivery_that_was_given_up_stays_so_over_a_restart_until_an_update(
    tmp_path: Path, callback: Callback, clock: Clock
):
    async with opened_channel(tmp_path, clock, max_retry_seconds=0.01) as deliveries:
        before = await deliveries.given_up(callback, clock)
    tries = callback.requests
    clock.advance(hours=1)
    async with opened_channel(tmp_path, clock, max_retry_seconds=0.01) as deliveries:
        after = found(deliveries, before)
        assert after.given_up_since == before.given_up_since
        assert lag_seconds(after, clock.now) == timedelta(days=1, hours=1).total_seconds()
        assert callback.requests == tries
        callback.answers = []
        await deliveries.publish(2)
        await deliveries.until(lambda: after.behind_since is None)
        assert after.state is DeliveryState.ACTIVE
    async with opened_channel(tmp_path, clock) as deliveries:
        assert await stored_failure_states(deliveries.store) == []


async def test_a_failure_before_a_success_is_forgotten(
    tmp_path: Path, callback: Callback, clock: Clock
):
    callback.answers = [500]
    async with opened_channel(tmp_path, clock) as deliveries:
        before = await deliveries.subscribed(callback)
        await deliveries.publish(1)
        await deliveries.until(lambda: callback.requests == 2 and before.behind_since is None)
    async with opened_channel(tmp_path, clock) as deliveries:
        assert await stored_failure_states(deliveries.store) == []
        assert (found(deliveries, before).state, callback.requests) == (DeliveryState.ACTIVE, 2)


async def test_a_subscription_that_ends_leaves_no_failures_to_the_next(
    tmp_path: Path, callback: Callback, clock: Clock
):
    async with opened_channel(tmp_path, clock, retry_seconds=3600) as deliveries:
        before = await deliveries.failing(callback)
        assert await deliveries.channel.drop(before.id, "test")
        await deliveries.subscribed(callback)
    async with opened_channel(tmp_path, clock) as deliveries:
        assert await stored_failure_states(deliveries.store) == []


async def test_a_suspended_subscription_is_behind_since_the_same_instant(
    tmp_path: Path, callback: Callback, clock: Clock
):
    async with opened_channel(tmp_path, clock) as deliveries:
        before = await deliveries.subscribed(callback)
        assert await deliveries.channel.suspend(before.id)
        await deliveries.publish(1)
    clock.advance(hours=2)
    async with opened_channel(tmp_path, clock) as deliveries:
        after = found(deliveries, before)
        assert lag_seconds(after, clock.now) == 7200
        assert await deliveries.channel.resume(after.id)
        assert seconds_of((await callback.delivery())[1]) == [1]


async def test_a_failed_redelivery_leaves_the_backoff_unchanged(
    slow_retries: Deliveries, callback: Callback, clock: Clock
):
    delivery = await slow_retries.failing(callback, 500, 500, 500)
    due = delivery.retry_at
    assert due is not None
    for tries in (2, 3):
        clock.advance(seconds=10)
        assert await slow_retries.channel.redeliver(delivery.id)
        await slow_retries.until(lambda: callback.requests == tries and delivery.slot is None)  # noqa: B023
        assert delivery.failures == 1
        assert delivery.last_failure.at == clock.now, "the last failure is not reported"
        assert delivery.retry_at == due
    assert await slow_retries.channel.redeliver(delivery.id)
    await slow_retries.until(lambda: delivery.state is DeliveryState.ACTIVE)


async def test_a_failed_redelivery_may_be_the_first_failure(
    slow_retries: Deliveries, callback: Callback
):
    delivery = await slow_retries.delivered(callback)
    callback.answers = [500]
    assert await slow_retries.channel.redeliver(delivery.id, since=at(0))
    await slow_retries.until(lambda: delivery.retry_at is not None)
    assert (delivery.state, delivery.failures) == (DeliveryState.RETRYING, 1)
