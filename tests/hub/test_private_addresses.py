"""What strangers name is dialled only if it is public."""

from __future__ import annotations

from tests.hub.helpers import TOPIC, Callback, LogWatch, RunHub, fragment


async def test_why_a_callback_is_not_connected_to_is_in_the_log(
    run_hub: RunHub, callback: Callback, watch: LogWatch
):
    async with run_hub(allow_private_addresses=False) as hub:
        assert await hub.form(mode="subscribe", topic=TOPIC, callback=callback.url) == (202, "")
        await watch.line("cannot be reached", "loopback", "--allow-private-addresses")
    assert callback.requests == 0


async def test_a_private_channel_is_not_connected_to(run_hub: RunHub, callback: Callback):
    async with run_hub(allow_private_addresses=False) as hub:
        status, reason = await hub.form(mode="publish", url=callback.url)
        assert (status, "loopback" in reason) == (502, True)
    assert callback.requests == 0


async def test_an_old_subscription_with_a_private_callback_is_not_connected_to(
    run_hub: RunHub, callback: Callback, watch: LogWatch
):
    async with run_hub() as hub:
        await hub.subscribe(callback)
    before = callback.requests
    async with run_hub(allow_private_addresses=False) as hub:
        await hub.accepted(fragment(0, 1))
        await watch.line("is not public")
    assert callback.requests == before
