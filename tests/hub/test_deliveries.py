"""Deliveries that fail, wait, are given up and are resumed, and those that run at the end."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from email.utils import format_datetime
from pathlib import Path
from urllib.parse import unquote

import pytest

from rsnotify.errors import StorageError
from rsnotify.sync.retry import Retry
from rsnotify_hub.statistics import DeliveryOutcome, DeliveryTransport, Statistics
from rsnotify_hub.websub.callback_requests import redacted
from rsnotify_hub.websub.callback_subscriber import CallbackSubscriber, DeliveryAttempt
from rsnotify_hub.websub.request_scheduler import RequestScheduler
from rsnotify_hub.websub.sender import RetryPolicy
from rsnotify_hub.websub_subscription import DeliveryState, Subscription
from tests.hub.deliveries import EITHER_CONNECTION, Deliveries, opened_channel
from tests.hub.helpers import (
    START,
    TOPIC,
    Callback,
    Clock,
    LogWatch,
    callback_server,
    fragment,
    seconds_of,
)
from tests.hub.posting.servers import CLOSE, OK, serving
from tests.waiting import PATIENCE


async def test_a_failure_says_what_the_callback_answered(
    deliveries: Deliveries, callback: Callback, clock: Clock
):
    callback.answers, callback.words = [500], "x" * 2000
    delivery = await deliveries.subscribed(callback)
    await deliveries.publish(1)
    await callback.delivery()
    await callback.delivery()
    await deliveries.until(lambda: delivery.state is DeliveryState.ACTIVE)
    failure = delivery.last_failure
    assert (failure.at, failure.status, failure.reason) == (clock.now, 500, "returned 500")
    assert failure.excerpt == b"x" * 512
    assert 0 <= failure.seconds <= asyncio.get_running_loop().time()
    assert list(deliveries.channel.recent_failures) == [(delivery, failure)]
    assert deliveries.statistics.retries == 1
    assert deliveries.statistics.deliveries == {
        (DeliveryTransport.WEBSUB, DeliveryOutcome.FAILED): 1,
        (DeliveryTransport.WEBSUB, DeliveryOutcome.DELIVERED): 1,
    }


@pytest.mark.parametrize(
    "query", ["?canary2", "?x=1&canary2", "?x=canary%32", "/can%61ry2", "/c/canary2?a"]
)
def test_an_excerpt_hides_a_callback_as_a_server_decodes_it(query: str):
    callback = "https://a.example/cb" + query
    subscription = Subscription(TOPIC, callback, "canary3", START, 0)
    said = f"No {callback}, no {unquote(callback)}: canary2, canary3, {{'canary2': '1'}}"
    assert b"canary" not in redacted(said.encode(), subscription)


async def test_a_delivery_that_fails_for_a_day_waits_for_an_update_and_loses_nothing(
    tmp_path: Path,
    callback: Callback,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    caplog.set_level(logging.INFO, "rsnotify.hub.websub")
    monkeypatch.setattr("rsnotify_hub.websub.sender.RECENT_FAILURES", 2)
    async with opened_channel(tmp_path, clock, max_retry_seconds=0.01) as deliveries:
        delivery = await deliveries.given_up(callback, clock)
        assert (delivery.given_up_since, delivery.retry_at) == (clock.now, None)
        assert (
            deliveries.statistics.deliveries[DeliveryTransport.WEBSUB, DeliveryOutcome.GIVEN_UP]
            == 1
        )
        assert callback.requests == delivery.failures
        assert len(deliveries.channel.recent_failures) == min(2, delivery.failures)
        first, *others = [each for each in caplog.records if "returned 500" in each.getMessage()]
        assert {each.levelno for each in others} <= {logging.INFO}
        assert first.levelno == logging.WARNING
        facts = {"id": delivery.id, "topic": TOPIC, "host": "127.0.0.1", "failures": 1}
        facts |= {"status": 500, "reason": "returned 500"}
        assert facts.items() <= vars(first).items()
        callback.answers, callback.deliveries = [500], asyncio.Queue()
        clock.advance(days=1)
        await deliveries.publish(2)
        assert seconds_of((await callback.delivery())[1]) == [1, 2]
        assert delivery.state is DeliveryState.RETRYING
        assert seconds_of((await callback.delivery())[1]) == [1, 2]
        await deliveries.until(lambda: delivery.state is DeliveryState.ACTIVE)
        assert delivery.behind_since is None


async def test_a_dead_callback_of_a_busy_topic_is_not_requested_at_each_update(
    tmp_path: Path, callback: Callback, clock: Clock
):
    async with opened_channel(tmp_path, clock, max_retry_seconds=600) as deliveries:
        delivery = await deliveries.given_up(callback, clock)
        tries, delivery.failures = callback.requests, 50
        for second in range(2, 10):
            await deliveries.publish(second)
        assert delivery.state is DeliveryState.RETRYING
        assert delivery.retry_at is not None
        assert timedelta(seconds=300) <= delivery.retry_at - clock.now <= timedelta(seconds=600)
    assert callback.requests == tries


@pytest.mark.parametrize(("status", "days", "wait"), [(429, 0, 120), (503, 0, 120), (503, 1, 600)])
async def test_the_retry_after_of_a_callback_is_honoured_up_to_the_longest_wait(
    tmp_path: Path, callback: Callback, clock: Clock, status: int, days: int, wait: int
):
    date = format_datetime(clock.now + timedelta(days=days), usegmt=True)
    callback.headers = {"Retry-After": date if days else "120"}
    async with opened_channel(tmp_path, clock, max_retry_seconds=600) as deliveries:
        delivery = await deliveries.failing(callback, status)
        assert delivery.retry_at == clock.now + timedelta(seconds=wait)


@pytest.mark.parametrize(
    ("failures", "retry_after", "least", "most"),
    [
        (0, None, 0.005, 0.01),
        (1, None, 0.01, 0.02),
        (0, 120.0, 120.0, 120.0),
        (0, 900.0, 600.0, 600.0),
        (50, None, 300.0, 600.0),
    ],
)
async def test_the_wait_after_a_failure_doubles_and_may_be_longer_if_the_callback_says_so(
    failures: int, retry_after: float | None, least: float, most: float
):
    delivery = CallbackSubscriber(Subscription(TOPIC, "https://a.example/", None, START, 0))
    delivery.failures = failures
    handling = RetryPolicy(Retry(0.01, 600), 3600, Statistics())
    attempt = DeliveryAttempt(START, 500, "returned 500")
    wait = handling.record(delivery, attempt, retry_after)
    assert wait is not None
    assert least <= wait <= most
    late = DeliveryAttempt(START + timedelta(hours=1), 500, "returned 500")
    assert handling.record(delivery, late, retry_after) is None, "it has failed for an hour"
    delivery.resume_trying(late.at)
    assert delivery.has_failed_for(0, late.at)
    assert not delivery.has_failed_for(1, late.at)
    delivery.record_success()
    delivery.resume_trying(late.at)
    assert not delivery.has_failed_for(0, late.at)


async def test_a_log_that_cannot_be_read_is_no_failure_of_the_callback(
    deliveries: Deliveries, callback: Callback, watch: LogWatch, monkeypatch: pytest.MonkeyPatch
):
    delivery = await deliveries.subscribed(callback)
    read, failures = deliveries.topics.read, [StorageError("the disk is gone")]

    async def failing(*args: object, **options: object) -> object:
        if failures:
            raise failures.pop()
        return await read(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(deliveries.topics, "read", failing)
    monkeypatch.setattr(deliveries.topics, "recent", lambda *_, **__: None)
    await deliveries.publish(1)
    await watch.line("cannot read the next delivery", "the disk is gone")
    assert (await callback.delivery())[1] == fragment(0, 1)
    await deliveries.until(lambda: delivery.behind_since is None)
    assert (delivery.failures, delivery.last_failure) == (0, None)


async def test_a_fault_of_the_hub_does_not_end_a_subscription(
    tmp_path: Path,
    callback: Callback,
    clock: Clock,
    watch: LogWatch,
    monkeypatch: pytest.MonkeyPatch,
):
    async with opened_channel(tmp_path, clock, max_retry_seconds=0.01) as deliveries:
        await deliveries.subscribed(callback)
        move, faults = deliveries.store.move_cursor, [ValueError("a fault")]

        def failing(topic: str, url: str, position: int) -> None:
            if faults:
                raise faults.pop()
            move(topic, url, position)

        monkeypatch.setattr(deliveries.store, "move_cursor", failing)
        await deliveries.publish(1)
        await callback.delivery()
        await watch.line("internal error: a delivery")
        await deliveries.publish(2)
        assert (await callback.delivery())[1] == fragment(1, 2)


async def test_deliveries_are_signed_with_each_configured_method(
    tmp_path: Path, callback: Callback, clock: Clock
):
    for number, (method, digits) in enumerate(
        [("sha1", 40), ("sha256", 64), ("sha384", 96), ("sha512", 128)]
    ):
        folder = tmp_path / method
        async with opened_channel(folder, clock, signature=method) as deliveries:
            await deliveries.subscribed(callback, secret="key")
            await deliveries.publish(number + 1)
            headers, _ = await callback.delivery()
            name, _, value = headers["X-Hub-Signature"].partition("=")
            assert (name, len(value)) == (method, digits)


@EITHER_CONNECTION
async def test_a_subscription_whose_callback_is_gone_ends_and_no_other_of_its_host(
    deliveries: Deliveries, callback: Callback, kept: bool
):
    async with callback_server() as other:
        gone = await deliveries.connected(other, kept=kept)
        other.answers = [410]
        good = await deliveries.subscribed(callback)
        await deliveries.publish_next()
        await callback.delivery()
        await deliveries.until(lambda: deliveries.channel.registry.get(gone.id) is None)
        assert deliveries.channel.registry.all() == [good]
        assert deliveries.channel.registry.hosts["127.0.0.1"] == 1
        assert deliveries.statistics.deliveries[DeliveryTransport.WEBSUB, DeliveryOutcome.GONE] == 1


async def test_a_delivery_that_a_lease_delays_is_made_when_the_lease_is_renewed(
    deliveries: Deliveries, callback: Callback, monkeypatch: pytest.MonkeyPatch
):
    await deliveries.subscribed(callback)
    asked = asyncio.Event()

    def owns(authority: str) -> bool:
        asked.set()
        return False

    with monkeypatch.context() as patch:
        patch.setattr(deliveries.store, "owns", owns)
        await deliveries.publish(1)
        async with asyncio.timeout(PATIENCE):
            await asked.wait()
    _, body = await callback.delivery()
    assert seconds_of(body) == [1]


async def test_a_delivery_that_is_cancelled_the_moment_it_fails_leaves_nothing_behind(
    slow_retries: Deliveries, callback: Callback
):
    delivery = await slow_retries.running(callback, kept=True)
    slot, delivery.slot = delivery.slot, None
    slot.expire()
    # Before the task has begun that sees to the failure.
    slow_retries.channel._scheduler.cancel(slot)
    await slow_retries.until(lambda: slot.queue.running() == [])
    assert delivery.failures == 0


async def test_a_delivery_that_takes_too_long_has_failed(
    tmp_path: Path, callback: Callback, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    scheduler = RequestScheduler(1000)
    async with opened_channel(tmp_path, clock, scheduler, retry_seconds=600) as deliveries:
        delivery = await deliveries.delivered(callback)
        monkeypatch.setattr(scheduler, "seconds", 0.05)
        callback.open.clear()
        await deliveries.publish_next()
        await deliveries.until(lambda: delivery.failures == 1)
        assert delivery.last_failure.reason == "timed out"
        await deliveries.until(lambda: delivery.slot is None)
        assert (delivery.state, delivery.subscription.position) == (DeliveryState.RETRYING, 1)


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


@pytest.fixture
def patient_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for running deliveries as long as they take."""
    monkeypatch.setattr("rsnotify_hub.websub.sender.CLOSE_SECONDS", PATIENCE)


@pytest.mark.usefixtures("patient_close")
@EITHER_CONNECTION
async def test_a_channel_that_closes_waits_for_running_deliveries(
    tmp_path: Path, callback: Callback, clock: Clock, kept: bool
):
    async with opened_channel(tmp_path, clock) as deliveries:
        delivery = await deliveries.running(callback, kept=kept)
        closing = asyncio.create_task(deliveries.channel.close())
        await asyncio.sleep(0)
        callback.open.set()
        await closing
        assert delivery.subscription.position == kept + 1
    async with opened_channel(tmp_path, clock) as deliveries:
        assert await deliveries.publish_next() == (await callback.delivery())[1]


@EITHER_CONNECTION
async def test_a_channel_that_closes_does_not_wait_forever(
    tmp_path: Path, callback: Callback, clock: Clock, monkeypatch: pytest.MonkeyPatch, kept: bool
):
    monkeypatch.setattr("rsnotify_hub.websub.sender.CLOSE_SECONDS", 0)
    async with opened_channel(tmp_path, clock) as deliveries:
        await deliveries.running(callback, kept=kept)
    async with opened_channel(tmp_path, clock) as deliveries:
        callback.open.set()
        assert (await callback.delivery())[1] == fragment(kept, kept + 1)


@pytest.mark.usefixtures("patient_close")
@EITHER_CONNECTION
async def test_a_delivery_of_a_subscription_that_is_released_may_end_and_none_follows(
    slow_retries: Deliveries, callback: Callback, kept: bool
):
    delivery = await slow_retries.running(callback, kept=kept)
    requests, position = callback.requests, delivery.subscription.position
    releasing = asyncio.create_task(slow_retries.channel.released([delivery.id]))
    await slow_retries.publish_next()
    assert not releasing.done()
    callback.open.set()
    await releasing
    assert (callback.requests, delivery.subscription.position) == (requests, position + 1)
    assert (slow_retries.channel.registry.get(delivery.id), delivery.slot) == (None, None)


async def test_a_delivery_of_a_subscription_that_is_released_is_not_repeated(
    slow_retries: Deliveries, callback: Callback
):
    delivery = await slow_retries.failing(callback)
    await slow_retries.channel.released([delivery.id])
    assert (delivery.timer, delivery.retry_at, delivery.is_stopped) == (None, None, True)
