"""Renewals: each verified request overrides the previous state (WebSub §5.1)."""

from __future__ import annotations

from rsnotify_hub_check.callback import decline
from rsnotify_hub_check.checks.signatures import SIGNATURE, is_signed
from rsnotify_hub_check.hub_under_test import HubUnderTest
from rsnotify_hub_check.outcomes import RequirementLevel, expect
from rsnotify_hub_check.registry import check


@check("5.1", RequirementLevel.MUST, 103)
async def a_renewal_is_accepted(hub: HubUnderTest) -> None:
    """An active subscription can be requested again, and is verified again."""
    topic, callback = await hub.subscribed()
    await hub.expect_delivery(topic, callback)
    again = await hub.subscribe(topic, callback)
    expect(again.appended.get("hub.mode") == "subscribe", "the renewal is not verified as such")
    await hub.expect_delivery(topic, callback)


@check("5.1", RequirementLevel.MUST, 103)
async def a_renewal_is_no_second_subscription(hub: HubUnderTest) -> None:
    """After a renewal, each update is delivered once."""
    topic, callback = hub.topic(), hub.callback()
    for _ in range(3):
        await hub.subscribe(topic, callback)
    body = (await hub.expect_delivery(topic, callback)).body
    await hub.expect_nothing(
        lambda: sum(each.body == body for each in callback.deliveries) > 1,
        "the same update is delivered more than once",
    )


@check("5.1", RequirementLevel.MUST)
async def a_renewal_replaces_the_secret(hub: HubUnderTest) -> None:
    """After a renewal, deliveries are signed with its secret."""
    topic, callback = await hub.subscribed(secret="the first secret")
    await hub.expect_delivery(topic, callback, lambda each: is_signed(each, "the first secret"))
    await hub.subscribe(topic, callback, secret="the second secret")
    await hub.expect_delivery(topic, callback, lambda each: is_signed(each, "the second secret"))


@check("5.1", RequirementLevel.MUST)
async def a_renewal_without_a_secret_ends_signatures(hub: HubUnderTest) -> None:
    """After a renewal without a secret, deliveries have no signature."""
    topic, callback = await hub.subscribed(secret="the first secret")
    await hub.expect_delivery(topic, callback, lambda each: is_signed(each, "the first secret"))
    await hub.subscribe(topic, callback)
    await hub.expect_delivery(topic, callback, lambda each: SIGNATURE not in each.headers)


@check("5.1", RequirementLevel.MUST)
async def a_pending_renewal_changes_nothing(hub: HubUnderTest) -> None:
    """While a renewal is being verified, deliveries continue as before."""
    topic, callback = await hub.subscribed(secret="the first secret")
    await hub.expect_delivery(topic, callback)
    await hub.wait_until_idle(topic, callback)  # a later delivery would wait for it
    callback.open.clear()
    try:
        await hub.subscribe(topic, callback, secret="the second secret")
        await hub.expect_delivery(topic, callback, lambda each: is_signed(each, "the first secret"))
    finally:
        callback.open.set()


@check("5.1", RequirementLevel.MUST)
async def a_renewal_that_fails_changes_nothing(hub: HubUnderTest) -> None:
    """If the verification of a renewal fails, the subscription stays unchanged."""
    topic, callback = await hub.subscribed(secret="the first secret")
    await hub.expect_delivery(topic, callback)
    callback.reply = decline
    await hub.subscribe(topic, callback, secret="the second secret")
    await hub.publish_to_witness(topic)
    delivery = await hub.expect_delivery(topic, callback)
    expect(is_signed(delivery, "the first secret"), "the signature is not that of the old secret")


@check("5.1", RequirementLevel.MUST)
async def an_unsubscription_that_fails_changes_nothing(hub: HubUnderTest) -> None:
    """If the verification of an unsubscription fails, deliveries continue."""
    topic, callback = await hub.subscribed()
    await hub.expect_delivery(topic, callback)
    callback.reply = decline
    await hub.request_and_verify("unsubscribe", topic, callback)
    await hub.publish_to_witness(topic)
    await hub.expect_delivery(topic, callback)
