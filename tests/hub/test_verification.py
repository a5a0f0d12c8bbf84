"""Intent verification without the hub around it: pending requests and quotas."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest

from rsnotify.errors import StorageError
from rsnotify.sync.retry import Retry
from rsnotify_hub.websub.callback_requests import Answer
from rsnotify_hub.websub.forms import SubscriptionRequest
from rsnotify_hub.websub.intent_requests import MAX_INTENT_ATTEMPTS, IntentRequests
from rsnotify_hub.websub.verification import MAX_PENDING_SHARE, client_of
from tests.hub.deliveries import Deliveries, opened_channel
from tests.hub.helpers import TOPIC, Callback, Clock, LogWatch
from tests.waiting import PATIENCE

ELSEWHERE = "https://nowhere.example/callback"


def intent(
    callback: Callback | str, mode: str = "subscribe", **fields: object
) -> SubscriptionRequest:
    url = callback if isinstance(callback, str) else callback.url
    return SubscriptionRequest(mode, TOPIC, url, **fields)  # type: ignore[arg-type]


async def test_the_last_of_several_requests_wins(deliveries: Deliveries, callback: Callback):
    verification, channel = deliveries.verification, deliveries.channel
    callback.confirming.clear()
    for number in range(4):
        verification.verify(intent(callback, secret=str(number)), "")
    await callback.intent()
    callback.confirming.set()
    await callback.intent()
    await deliveries.until(lambda: secret_of(deliveries, callback) == "3")
    assert callback.intents.empty(), "those in between were dropped"
    verification.verify(intent(callback), "")
    verification.verify(intent(callback, "unsubscribe"), "")
    await deliveries.until(lambda: channel.find(TOPIC, callback.url) is None)


def secret_of(deliveries: Deliveries, callback: Callback) -> str | None:
    found = deliveries.channel.find(TOPIC, callback.url)
    return found.secret if found else None


async def test_a_request_that_is_not_confirmed_does_not_stop_one_that_is(
    deliveries: Deliveries, callback: Callback
):
    callback.confirming.clear()
    deliveries.verification.verify(intent(callback, secret="mine"), "")
    challenge = (await callback.intent())["hub.challenge"]
    deliveries.verification.verify(intent(callback, "unsubscribe"), "a stranger")
    callback.confirming.set()
    await deliveries.until(lambda: secret_of(deliveries, callback) == "mine")
    assert (await callback.intent())["hub.challenge"] != challenge


async def test_a_lease_counts_from_the_verification_request(
    deliveries: Deliveries, callback: Callback, clock: Clock
):
    callback.confirming.clear()
    asked = clock.now
    deliveries.verification.verify(intent(callback, lease=100), "")
    assert (await callback.intent())["hub.lease_seconds"] == "100"
    clock.advance(seconds=30)
    callback.confirming.set()
    await deliveries.until(lambda: bool(deliveries.channel.registry.all()))
    (delivery,) = deliveries.channel.registry.all()
    assert delivery.subscription.expires == asked + timedelta(seconds=100)


async def test_leases_keep_to_the_limits(tmp_path: Path, callback: Callback, clock: Clock):
    limits = {"lease_seconds": 300, "min_lease_seconds": 200, "max_lease_seconds": 400}
    async with opened_channel(tmp_path, clock, **limits) as deliveries:
        for wish, granted in [(None, 300), (1, 200), (250, 250), (10**18, 400)]:
            deliveries.verification.verify(intent(callback, lease=wish), "")
            assert int((await callback.intent())["hub.lease_seconds"]) == granted


async def test_pending_verifications_of_a_host_are_limited(
    deliveries: Deliveries, callback: Callback
):
    callback.confirming.clear()
    verification = deliveries.verification
    for number in range(MAX_PENDING_SHARE):
        one = intent(f"{callback.url}/{number}", "unsubscribe")
        assert verification.quota.refusal(one, f"client {number}") is None
        verification.verify(one, f"client {number}")
    assert verification.quota.refusal(intent(callback), "another") is not None
    assert verification.quota.refusal(intent(ELSEWHERE), "another") is None
    await verification.close()
    assert verification.quota.refusal(intent(callback), "another") is None


async def test_a_client_has_a_quota_and_leaves_capacity_for_others(
    tmp_path: Path, callback: Callback, clock: Clock
):
    settings = {"subscriptions_per_client": 2, "max_subscriptions": 3}
    async with opened_channel(tmp_path, clock, **settings) as deliveries:
        verification, channel = deliveries.verification, deliveries.channel

        async def subscribe(number: int, client: str) -> None:
            one = intent(f"{callback.url}/{number}")
            assert verification.quota.refusal(one, client) is None
            verification.verify(one, client)
            await deliveries.until(lambda: len(channel.registry.all()) == number)

        await subscribe(1, "greedy")
        await subscribe(2, "greedy")
        new = intent(f"{callback.url}/3")
        assert "you have too many" in (verification.quota.refusal(new, "greedy") or "")
        assert verification.quota.refusal(intent(f"{callback.url}/1"), "greedy") is None, (
            "a renewal"
        )
        assert verification.quota.refusal(intent(ELSEWHERE, "unsubscribe"), "greedy") is None
        await subscribe(3, "modest")
        assert "this hub has" in (verification.quota.refusal(intent(ELSEWHERE), "third") or "")
    async with opened_channel(tmp_path, clock, **settings) as deliveries:
        assert deliveries.channel.registry.clients["greedy"] == 2


async def test_pending_renewals_do_not_count_for_the_quota_of_new_subscriptions(
    tmp_path: Path, callback: Callback, clock: Clock
):
    settings = {"subscriptions_per_host": 3, "subscriptions_per_client": 3, "max_subscriptions": 3}
    async with opened_channel(tmp_path, clock, **settings) as deliveries:
        callbacks = [f"{callback.url}/{number}" for number in range(2)]
        for each in callbacks:
            await deliveries.subscribed(each)
        callback.confirming.clear()
        verification = deliveries.verification
        for each in callbacks:
            verification.verify(intent(each), "client")
            verification.verify(intent(each, "unsubscribe"), "client")
        new = [intent(f"{callback.url}/new/{number}") for number in range(2)]
        assert verification.quota.refusal(new[0], "client") is None
        verification.verify(new[0], "client")
        assert verification.quota.refusal(new[1], "client") is not None


def test_this_machine_has_no_quota_and_an_ipv6_network_has_one():
    assert client_of("127.0.0.1") == client_of("::1") == client_of(None) == ""
    assert client_of("2001:db8::1") == client_of("2001:db8::2") != client_of("2001:db8:0:1::1")
    assert client_of("192.0.2.1") != client_of("192.0.2.2")


async def test_a_fault_of_the_hub_still_ends_a_request(watch: LogWatch):
    faulty = Mock(get=AsyncMock(side_effect=RuntimeError("a fault")))
    intent_requests = IntentRequests(faulty, Retry(0.001), 10)
    async with asyncio.timeout(PATIENCE):
        answer = await intent_requests.get("http://a.example/", limit=10)
    assert not answer.succeeded
    await watch.line("internal error: a request to the callback at a.example")


async def test_a_subscription_that_cannot_be_stored_is_reported_in_one_line(
    deliveries: Deliveries,
    callback: Callback,
    watch: LogWatch,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    async def fail(*_: object) -> None:
        raise StorageError("cannot write the hub's data: disk I/O error")

    monkeypatch.setattr(deliveries.store, "save", fail)
    deliveries.verification.verify(intent(callback), "")
    await watch.line("cannot change a subscription", TOPIC, "disk I/O error")
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    ("failures", "reached", "attempts", "status"),
    [
        (1, False, 2, 200),
        (MAX_INTENT_ATTEMPTS, False, MAX_INTENT_ATTEMPTS, None),
        (1, True, 1, None),
    ],
)
async def test_only_a_callback_that_was_not_reached_is_requested_again(
    failures: int, reached: bool, attempts: int, status: int | None
):
    unreachable = Answer(None, "is unreachable", reached=reached)
    answers = [*[unreachable] * failures, Answer(200, "returned 200")]
    requests = Mock(get=AsyncMock(side_effect=answers))
    answer = await IntentRequests(requests, Retry(0.001), 10).get("http://a.example/", limit=10)
    assert (requests.get.call_count, answer.status) == (attempts, status)
