"""Renewals: each request overrides the state before it, once it is verified (WebSub §5.1)."""

from __future__ import annotations

from rsnotify_hub_check.callback import decline
from rsnotify_hub_check.checks.signatures import SIGNATURE, is_signed
from rsnotify_hub_check.hub_under_test import HubUnderTest
from rsnotify_hub_check.outcomes import RequirementLevel, expect
from rsnotify_hub_check.registry import check


@check("5.1", RequirementLevel.MUST, 103)
async def a_renewal_is_accepted(bench: HubUnderTest) -> None:
    """An active subscription can be asked for again, and is verified again."""
    topic, callback = bench.topic(), bench.callback()
    await bench.subscribe(topic, callback)
    await bench.delivered(topic, callback)
    again = await bench.subscribe(topic, callback)
    expect(again.appended.get("hub.mode") == "subscribe", "the renewal is not verified as such")
    await bench.delivered(topic, callback)


@check("5.1", RequirementLevel.MUST, 103)
async def a_renewal_is_no_second_subscription(bench: HubUnderTest) -> None:
    """After a renewal each update is delivered once."""
    topic, callback = bench.topic(), bench.callback()
    for _ in range(3):
        await bench.subscribe(topic, callback)
    body = (await bench.delivered(topic, callback)).body
    await bench.nothing(
        lambda: sum(each.body == body for each in callback.deliveries) > 1,
        "the same update is delivered more than once",
    )


@check("5.1", RequirementLevel.MUST)
async def a_renewal_replaces_the_secret(bench: HubUnderTest) -> None:
    """After a renewal deliveries are signed with its secret."""
    topic, callback = bench.topic(), bench.callback()
    await bench.subscribe(topic, callback, secret="the first secret")
    await bench.delivered(topic, callback, lambda each: is_signed(each, "the first secret"))
    await bench.subscribe(topic, callback, secret="the second secret")
    await bench.delivered(topic, callback, lambda each: is_signed(each, "the second secret"))


@check("5.1", RequirementLevel.MUST)
async def a_renewal_without_a_secret_ends_signatures(bench: HubUnderTest) -> None:
    """After a renewal without a secret deliveries have no signature."""
    topic, callback = bench.topic(), bench.callback()
    await bench.subscribe(topic, callback, secret="the first secret")
    await bench.delivered(topic, callback, lambda each: is_signed(each, "the first secret"))
    await bench.subscribe(topic, callback)
    await bench.delivered(topic, callback, lambda each: SIGNATURE not in each.headers)


@check("5.1", RequirementLevel.MUST)
async def a_pending_renewal_changes_nothing(bench: HubUnderTest) -> None:
    """While a renewal is being verified deliveries go on as before."""
    topic, callback = bench.topic(), bench.callback()
    await bench.subscribe(topic, callback, secret="the first secret")
    await bench.delivered(topic, callback)
    await bench.quieted(topic, callback)  # else what comes now waits behind it
    callback.open.clear()
    try:
        await bench.subscribe(topic, callback, secret="the second secret")
        await bench.delivered(topic, callback, lambda each: is_signed(each, "the first secret"))
    finally:
        callback.open.set()


@check("5.1", RequirementLevel.MUST)
async def a_renewal_that_fails_changes_nothing(bench: HubUnderTest) -> None:
    """Where the verification of a renewal fails the subscription stays as it was."""
    topic, callback = bench.topic(), bench.callback()
    await bench.subscribe(topic, callback, secret="the first secret")
    await bench.delivered(topic, callback)
    callback.reply = decline
    await bench.subscribe(topic, callback, secret="the second secret")
    await bench.witnessed(topic)
    delivery = await bench.delivered(topic, callback)
    expect(is_signed(delivery, "the first secret"), "it is not signed with the old secret")


@check("5.1", RequirementLevel.MUST)
async def an_unsubscription_that_fails_changes_nothing(bench: HubUnderTest) -> None:
    """Where the verification of an unsubscription fails deliveries go on."""
    topic, callback = bench.topic(), bench.callback()
    await bench.subscribe(topic, callback)
    await bench.delivered(topic, callback)
    callback.reply = decline
    await bench.intend("unsubscribe", topic, callback)
    await bench.witnessed(topic)
    await bench.delivered(topic, callback)
