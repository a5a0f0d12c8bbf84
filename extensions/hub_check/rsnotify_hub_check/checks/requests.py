"""Requests of subscribers (WebSub §5.1)."""

from __future__ import annotations

from rsnotify_hub_check.callback import ReceivedVerification, SimulatedCallback
from rsnotify_hub_check.endpoints import SimulatedTopic
from rsnotify_hub_check.hub_under_test import HubUnderTest, request_form
from rsnotify_hub_check.outcomes import RequirementLevel, expect
from rsnotify_hub_check.registry import check

_NOT_ENDED = "the callback receives a delivery after it unsubscribed"


@check("5.1", RequirementLevel.MUST, 100)
async def a_subscription_is_accepted(hub: HubUnderTest) -> None:
    """A subscription with hub.mode, hub.topic and hub.callback is accepted and served."""
    topic, callback = await hub.subscribed()
    await hub.expect_delivery(topic, callback)


@check("5.1", RequirementLevel.MUST, 101)
async def a_secret_is_accepted(hub: HubUnderTest) -> None:
    """A subscription with hub.secret is accepted and served."""
    topic, callback = await hub.subscribed(secret="a secret of this check")
    await hub.expect_delivery(topic, callback)


@check("5.1", RequirementLevel.MUST, 102)
async def unknown_parameters_are_ignored(hub: HubUnderTest) -> None:
    """Parameters that the hub does not understand are ignored."""
    topic, callback = hub.topic(), hub.callback()
    form = request_form("subscribe", topic.url, callback, foo="hub.bar", verify="async")
    (await hub.post(form | {"foo": "bar"}, **{"X-Foo": "bar"})).expect_accepted()
    await hub.wait_for_verification(callback)
    await hub.expect_delivery(topic, callback)


@check("5.1", RequirementLevel.MUST)
async def escapes_in_the_form_are_decoded(hub: HubUnderTest) -> None:
    """A form in which every byte is percent-encoded means the same."""
    topic, callback = hub.topic(), hub.callback("name=caf%C3%A9")
    form = request_form("subscribe", topic.url, callback)
    escaped = "&".join(f"{_escaped(name)}={_escaped(value)}" for name, value in form.items())
    (await hub.post(escaped.encode())).expect_accepted()
    _expect_the_request(await hub.wait_for_verification(callback), topic, callback)


@check("5.1", RequirementLevel.MUST)
async def the_order_of_parameters_does_not_matter(hub: HubUnderTest) -> None:
    """The parameters may come in any order."""
    topic, callback = hub.topic(), hub.callback()
    form = request_form("subscribe", topic.url, callback)
    (await hub.post(dict(reversed(form.items())))).expect_accepted()
    _expect_the_request(await hub.wait_for_verification(callback), topic, callback)


@check("5.1", RequirementLevel.MUST, 104)
async def unsubscribing_ends_deliveries(hub: HubUnderTest) -> None:
    """After a verified unsubscription, nothing is delivered."""
    topic, callback = await hub.subscribed()
    await hub.expect_delivery(topic, callback)
    await hub.request_and_verify("unsubscribe", topic, callback)
    await hub.expect_ended(topic, callback, _NOT_ENDED)


@check("5.1", RequirementLevel.MUST)
async def a_lease_is_ignored_in_an_unsubscription(hub: HubUnderTest) -> None:
    """hub.lease_seconds is ignored in an unsubscription, whatever its value."""
    topic, callback = await hub.subscribed()
    await hub.expect_delivery(topic, callback)
    await hub.request_and_verify("unsubscribe", topic, callback, lease_seconds="0")
    await hub.expect_ended(topic, callback, _NOT_ENDED)


@check("5.1", RequirementLevel.MUST)
async def callbacks_of_one_topic_are_told_apart(hub: HubUnderTest) -> None:
    """Two callbacks that differ only in their query are two subscriptions."""
    topic, first = hub.topic(), hub.callback("which=1")
    second = hub.callback("which=2", beside=first)
    for callback in (first, second):
        await hub.subscribe(topic, callback)
    for callback in (first, second):
        await hub.expect_delivery(topic, callback)
    await hub.request_and_verify("unsubscribe", topic, first)
    await hub.expect_delivery(topic, second)


@check("5.1", RequirementLevel.MUST)
async def topics_of_one_callback_are_told_apart(hub: HubUnderTest) -> None:
    """One callback has a subscription for each of two topics."""
    first, second, callback = hub.topic(), hub.topic(), hub.callback()
    for topic in (first, second):
        await hub.subscribe(topic, callback)
    for topic in (first, second):
        await hub.expect_delivery(topic, callback)
    await hub.request_and_verify("unsubscribe", first, callback)
    await hub.expect_delivery(second, callback)


def _escaped(text: str) -> str:
    return "".join(f"%{byte:02x}" for byte in text.encode())


def _expect_the_request(
    verification: ReceivedVerification, topic: SimulatedTopic, callback: SimulatedCallback
) -> None:
    expect(
        verification.target.startswith(callback.target),
        f"the callback is verified at {verification.target}, not {callback.target}",
    )
    found = verification.appended.get("hub.topic")
    expect(found == topic.url, f"hub.topic is {found!r} in the verification, not {topic.url!r}")
