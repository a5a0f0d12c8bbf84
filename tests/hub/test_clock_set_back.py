"""What a hub shows and decides after its clock was set back, or after a node with a wrong clock."""

from __future__ import annotations

from pathlib import Path

from tests.hub.deliveries import opened_channel
from tests.hub.helpers import Callback, Client, Clock, fragment
from tests.hub.test_deliveries_restarted import found

OTHER = "https://source.example/other"


async def test_failures_dated_by_a_clock_that_was_ahead_do_not_prolong_the_attempts(
    tmp_path: Path, callback: Callback, clock: Clock
):
    async with opened_channel(tmp_path, clock, retry_seconds=0.01) as deliveries:
        before = await deliveries.failing(callback, *[500] * 1_000)
    clock.advance(days=-1)
    settings = {"retry_seconds": 0.01, "max_retry_seconds": 0.02, "give_up_seconds": 3600}
    async with opened_channel(tmp_path, clock, **settings) as deliveries:
        after = found(deliveries, before)
        failures = after.failures
        await deliveries.until(lambda: after.failures > failures)
        clock.advance(hours=1)
        failures = after.failures
        await deliveries.until(
            lambda: after.given_up_since is not None or after.failures > failures + 1
        )
        assert after.given_up_since is not None, "it has failed for an hour"


async def test_attempts_are_kept_after_the_clock_was_set_back(
    tmp_path: Path, callback: Callback, clock: Clock
):
    async with opened_channel(tmp_path, clock) as deliveries:
        delivery = await deliveries.delivered(callback)
        clock.advance(days=-1)
        await deliveries.publish(2)
        await deliveries.until(lambda: delivery.subscription.position == 2)
        assert delivery.delivered[-1].at == clock.now


async def test_a_source_is_silent_although_the_clock_was_set_back(hub: Client, clock: Clock):
    await hub.accepted(fragment(0, 1), topic=OTHER)
    clock.advance(days=-1)
    await hub.accepted(fragment(0, 1))
    assert (await hub.admin("GET", "status"))["silent"] == 0
    clock.advance(minutes=20)
    assert (await hub.admin("GET", "status"))["silent"] == 1
