"""What subscribers may send (WebSub §5.1)."""

from __future__ import annotations

from rsnotify_hub_check.callback import ReceivedVerification, SimulatedCallback
from rsnotify_hub_check.endpoints import SimulatedTopic
from rsnotify_hub_check.hub_under_test import HubUnderTest
from rsnotify_hub_check.outcomes import RequirementLevel, expect
from rsnotify_hub_check.registry import check

_NOT_ENDED = "it is delivered to after it unsubscribed"


@check("5.1", RequirementLevel.MUST, 100)
async def a_subscription_is_accepted(bench: HubUnderTest) -> None:
    """A subscription with hub.mode, hub.topic and hub.callback is accepted and served."""
    topic, callback = bench.topic(), bench.callback()
    await bench.subscribe(topic, callback)
    await bench.delivered(topic, callback)


@check("5.1", RequirementLevel.MUST, 101)
async def a_secret_is_accepted(bench: HubUnderTest) -> None:
    """A subscription with hub.secret is accepted and served."""
    topic, callback = bench.topic(), bench.callback()
    await bench.subscribe(topic, callback, secret="a secret of this check")
    await bench.delivered(topic, callback)


@check("5.1", RequirementLevel.MUST, 102)
async def unknown_parameters_are_ignored(bench: HubUnderTest) -> None:
    """Parameters that the hub does not understand are ignored."""
    topic, callback = bench.topic(), bench.callback()
    form = [
        *_form(topic, callback),
        ("foo", "bar"),
        ("hub.foo", "hub.bar"),
        ("hub.verify", "async"),
    ]
    response = await bench.post(form, **{"X-Foo": "bar"})
    expect(response.status == 202, f"the hub answers {response}, not 202")
    await bench.verification(callback)
    await bench.delivered(topic, callback)


@check("5.1", RequirementLevel.MUST)
async def escapes_in_the_form_are_decoded(bench: HubUnderTest) -> None:
    """A form in which every byte is percent-encoded means the same."""
    topic, callback = bench.topic(), bench.callback("name=caf%C3%A9")
    escaped = "&".join(
        f"{_escaped(name)}={_escaped(value)}" for name, value in _form(topic, callback)
    )
    response = await bench.post(escaped.encode())
    expect(response.status == 202, f"the hub answers {response}, not 202")
    verification = await bench.verification(callback)
    _expect_the_request(verification, topic, callback)


@check("5.1", RequirementLevel.MUST)
async def the_order_of_parameters_does_not_matter(bench: HubUnderTest) -> None:
    """The parameters may come in any order."""
    topic, callback = bench.topic(), bench.callback()
    response = await bench.post(_form(topic, callback)[::-1])
    expect(response.status == 202, f"the hub answers {response}, not 202")
    _expect_the_request(await bench.verification(callback), topic, callback)


@check("5.1", RequirementLevel.MUST, 104)
async def unsubscribing_ends_deliveries(bench: HubUnderTest) -> None:
    """After a verified unsubscription nothing is delivered."""
    topic, callback = bench.topic(), bench.callback()
    await bench.subscribe(topic, callback)
    await bench.delivered(topic, callback)
    await bench.intend("unsubscribe", topic, callback)
    await bench.ended(topic, callback, _NOT_ENDED)


@check("5.1", RequirementLevel.MUST)
async def a_lease_is_ignored_in_an_unsubscription(bench: HubUnderTest) -> None:
    """hub.lease_seconds is ignored in an unsubscription, whatever it says."""
    topic, callback = bench.topic(), bench.callback()
    await bench.subscribe(topic, callback)
    await bench.delivered(topic, callback)
    await bench.intend("unsubscribe", topic, callback, lease_seconds="0")
    await bench.ended(topic, callback, _NOT_ENDED)


@check("5.1", RequirementLevel.MUST)
async def callbacks_of_one_topic_are_told_apart(bench: HubUnderTest) -> None:
    """Two callbacks, though they differ in their query only, are two subscriptions."""
    topic, one = bench.topic(), bench.callback("which=1")
    other = bench.callback("which=2", beside=one)
    for callback in (one, other):
        await bench.subscribe(topic, callback)
    for callback in (one, other):
        await bench.delivered(topic, callback)
    await bench.intend("unsubscribe", topic, one)
    await bench.delivered(topic, other)


@check("5.1", RequirementLevel.MUST)
async def topics_of_one_callback_are_told_apart(bench: HubUnderTest) -> None:
    """One callback on two topics is two subscriptions."""
    one, other, callback = bench.topic(), bench.topic(), bench.callback()
    for topic in (one, other):
        await bench.subscribe(topic, callback)
    for topic in (one, other):
        await bench.delivered(topic, callback)
    await bench.intend("unsubscribe", one, callback)
    await bench.delivered(other, callback)


def _form(topic: SimulatedTopic, callback: SimulatedCallback) -> list[tuple[str, str]]:
    return [("hub.mode", "subscribe"), ("hub.topic", topic.url), ("hub.callback", callback.url)]


def _escaped(text: str) -> str:
    return "".join(f"%{byte:02x}" for byte in text.encode())


def _expect_the_request(
    verification: ReceivedVerification, topic: SimulatedTopic, callback: SimulatedCallback
) -> None:
    expect(
        verification.target.startswith(callback.target),
        f"the callback is asked at {verification.target}, not {callback.target}",
    )
    told = verification.appended.get("hub.topic")
    expect(told == topic.url, f"hub.topic is {told!r} in the verification, not {topic.url!r}")
