"""Checks of subscribing: requests, callbacks, verification, leases and renewals (WebSub §5).

A check is a coroutine that raises an error if the hub breaks the requirement.
"""

from __future__ import annotations

from collections.abc import Callable

from rsnotify_hub_check.distribution_checks import SIGNATURE, is_signed
from rsnotify_hub_check.hub_under_test import HubUnderTest, check, request_form
from rsnotify_hub_check.outcomes import Inconclusive, RequirementLevel, expect
from rsnotify_hub_check.simulated_endpoints import (
    CallbackReply,
    ReceivedVerification,
    SimulatedCallback,
    SimulatedTopic,
    decline,
)

_NOT_ENDED = "the callback receives a delivery after it unsubscribed"


@check("5.1", RequirementLevel.MUST, 100)
async def a_subscription_is_accepted(hub: HubUnderTest) -> None:
    """A subscription with hub.mode, hub.topic and hub.callback is accepted and served."""
    await hub.served()


@check("5.1", RequirementLevel.MUST, 101)
async def a_secret_is_accepted(hub: HubUnderTest) -> None:
    """A subscription with hub.secret is accepted and served."""
    await hub.served(secret="a secret of this check")


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
    topic, callback = await hub.served()
    await hub.request_and_verify("unsubscribe", topic, callback)
    await hub.expect_ended(topic, callback, _NOT_ENDED)


@check("5.1", RequirementLevel.MUST)
async def a_lease_is_ignored_in_an_unsubscription(hub: HubUnderTest) -> None:
    """hub.lease_seconds is ignored in an unsubscription, whatever its value."""
    topic, callback = await hub.served()
    await hub.request_and_verify("unsubscribe", topic, callback, lease_seconds="0")
    await hub.expect_ended(topic, callback, _NOT_ENDED)


@check("5.1", RequirementLevel.MUST)
async def callbacks_of_one_topic_are_told_apart(hub: HubUnderTest) -> None:
    """Two callbacks that differ only in their query are two subscriptions."""
    topic, first = hub.topic(), hub.callback("which=1")
    second = hub.callback("which=2", beside=first)
    await _expect_two(hub, (topic, first), (topic, second))


@check("5.1", RequirementLevel.MUST)
async def topics_of_one_callback_are_told_apart(hub: HubUnderTest) -> None:
    """One callback has a subscription for each of two topics."""
    callback = hub.callback()
    await _expect_two(hub, (hub.topic(), callback), (hub.topic(), callback))


async def _expect_two(hub: HubUnderTest, *pairs: tuple[SimulatedTopic, SimulatedCallback]) -> None:
    """Expect two pairs of a topic and a callback to be separate subscriptions."""
    for pair in pairs:
        await hub.subscribe(*pair)
    for pair in pairs:
        await hub.expect_delivery(*pair)
    await hub.request_and_verify("unsubscribe", *pairs[0])
    await hub.expect_delivery(*pairs[1])


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


#: A challenge with fewer characters than this can be guessed.
_MIN_CHALLENGE_LENGTH = 16


@check("5.3", RequirementLevel.MUST, 100, 101, 102, 103, 104)
async def a_subscription_is_verified(hub: HubUnderTest) -> None:
    """The verification of a subscription has mode, topic, challenge and lease."""
    topic, callback = hub.topic(), hub.callback()
    appended = (await hub.subscribe(topic, callback)).appended
    _expect_parameters(appended, "subscribe", topic)
    _lease(appended)


@check("5.3", RequirementLevel.MUST, 104)
async def an_unsubscription_is_verified(hub: HubUnderTest) -> None:
    """The verification of an unsubscription has mode, topic and challenge."""
    topic, callback = await hub.served()
    verification = await hub.request_and_verify("unsubscribe", topic, callback)
    _expect_parameters(verification.appended, "unsubscribe", topic)


@check("8.2", RequirementLevel.SHOULD)
async def challenges_are_random_and_used_once(hub: HubUnderTest) -> None:
    """Each verification has its own challenge, which is too long to be guessed."""
    topic, callback = hub.topic(), hub.callback()
    found = [(await hub.subscribe(topic, callback)).challenge for _ in range(4)]
    expect(len(set(found)) == len(found), "a challenge is used twice")
    shortest = min(map(len, found))
    expect(shortest >= _MIN_CHALLENGE_LENGTH, f"a challenge has only {shortest} characters")


@check("5.3.1", RequirementLevel.MUST)
async def any_2xx_confirms(hub: HubUnderTest) -> None:
    """Any status 2xx with the challenge confirms, whatever its Content-Type."""
    topic, callback = hub.topic(), hub.callback()
    headers = {"Content-Type": "application/octet-stream"}
    callback.reply = lambda verification: CallbackReply(202, verification.challenge, headers)
    await hub.subscribe(topic, callback)
    await hub.expect_delivery(topic, callback)


def _does_not_confirm(
    name: str, rule: str, reply: Callable[[ReceivedVerification], CallbackReply]
) -> None:
    """Register a check that an answer to a verification does not confirm it."""

    @check("5.3.1", RequirementLevel.MUST, name=name, title=rule)
    async def run(hub: HubUnderTest) -> None:
        topic, callback = hub.topic(), hub.callback()
        elsewhere = hub.callback()

        def answer(verification: ReceivedVerification) -> CallbackReply:
            found = reply(verification)
            if 300 <= found.status < 400:
                query = verification.target.partition("?")[2]
                found.headers["Location"] = f"{elsewhere.url}?{query}"
            return found

        callback.reply = answer
        await hub.subscribe(topic, callback)
        await hub.publish_to_witness(topic)
        await hub.expect_nothing(
            lambda: bool(callback.deliveries or elsewhere.deliveries),
            "the callback receives a delivery, although it did not confirm",
        )


_does_not_confirm(
    "a_404_does_not_confirm",
    "A 404 means that the subscriber does not agree, whatever its body.",
    lambda verification: CallbackReply(404, verification.challenge),
)
_does_not_confirm(
    "a_server_error_does_not_confirm",
    "A 5xx means that the verification failed, whatever its body.",
    lambda verification: CallbackReply(500, verification.challenge),
)
_does_not_confirm(
    "a_redirect_does_not_confirm",
    "A redirect means that the verification failed, whatever its target.",
    lambda verification: CallbackReply(302, verification.challenge, {}),
)
_does_not_confirm(
    "an_empty_answer_does_not_confirm",
    "A 2xx without the challenge does not confirm.",
    lambda verification: CallbackReply(200, ""),
)
_does_not_confirm(
    "another_challenge_does_not_confirm",
    "A 2xx with a body other than the challenge does not confirm.",
    lambda verification: CallbackReply(200, verification.challenge[::-1] + "x"),
)
_does_not_confirm(
    "a_challenge_among_other_text_does_not_confirm",
    "A 2xx with a body that only contains the challenge, within the query, does not confirm.",
    lambda verification: CallbackReply(200, f"{verification.target} {verification.challenge} ok"),
)


def _expect_parameters(appended: dict[str, str], mode: str, topic: SimulatedTopic) -> None:
    expect(appended.get("hub.mode") == mode, f"hub.mode is {appended.get('hub.mode')!r}")
    expect(appended.get("hub.topic") == topic.url, f"hub.topic is {appended.get('hub.topic')!r}")
    expect(appended.get("hub.challenge"), "hub.challenge is missing")


_DAY_SECONDS = 86_400


def _lease(appended: dict[str, str]) -> int:
    text = appended.get("hub.lease_seconds", "")
    expect(text.isascii() and text.isdigit(), f"hub.lease_seconds is {text!r}, not a number")
    return int(text)


@check("5.3.1", RequirementLevel.MUST)
async def no_lease_is_perpetual(hub: HubUnderTest) -> None:
    """A lease ends, however long the requested one is."""
    for requested in ("4000000000", "999999999999"):
        topic, callback = hub.topic(), hub.callback()
        response = await hub.request("subscribe", topic, callback, lease_seconds=requested)
        if response.status != 202:
            continue  # a refusal is also allowed
        lease = _lease((await hub.wait_for_verification(callback)).appended)
        expect(lease < 3650 * _DAY_SECONDS, f"a lease of {lease} s is granted")


@check("8.2", RequirementLevel.SHOULD)
async def leases_are_short(hub: HubUnderTest) -> None:
    """The lease that is granted without a request for one is 10 days or less."""
    lease = _lease((await hub.subscribe(hub.topic(), hub.callback())).appended)
    expect(0 < lease <= 10 * _DAY_SECONDS, f"a lease of {lease} s is granted")


@check("5.1", RequirementLevel.MAY)
async def a_lease_is_respected(hub: HubUnderTest) -> None:
    """The requested lease is granted."""
    verification = await hub.subscribe(hub.topic(), hub.callback(), lease_seconds="7200")
    lease = _lease(verification.appended)
    expect(lease == 7200, f"{lease} s are granted instead of 7200")


@check("5.3.1", RequirementLevel.MUST)
async def a_lease_is_enforced(hub: HubUnderTest) -> None:
    """Nothing is delivered once the lease has ended."""
    topic, callback = hub.topic(), hub.callback()
    response = await hub.request("subscribe", topic, callback, lease_seconds="1")
    if response.status != 202:
        raise Inconclusive(f"the hub refuses a lease of one second: {response}")
    lease = _lease((await hub.wait_for_verification(callback)).appended)
    if lease > hub.settings.patience:
        raise Inconclusive(f"the hub grants {lease} s instead of 1, which is too long to wait for")
    await hub.endpoints.until(lambda: False, lease)
    await hub.expect_ended(topic, callback, "the callback receives a delivery after its lease")


@check("5.1", RequirementLevel.MUST)
async def a_renewal_extends_the_lease(hub: HubUnderTest) -> None:
    """A renewal grants a new lease, which begins with its own verification."""
    topic, callback = hub.topic(), hub.callback()
    first = _lease((await hub.subscribe(topic, callback, lease_seconds="3600")).appended)
    second = _lease((await hub.subscribe(topic, callback, lease_seconds="7200")).appended)
    expect(second >= first, f"the renewal has {second} s, less than the {first} s before")


@check("5.1", RequirementLevel.MUST, 103)
async def a_renewal_is_accepted(hub: HubUnderTest) -> None:
    """An active subscription can be requested again, and is verified again."""
    topic, callback = await hub.served()
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
    topic, callback = await hub.served(secret="the first secret")
    await hub.wait_until_idle(topic, callback)  # a pending delivery would delay later ones
    callback.open.clear()
    try:
        await hub.subscribe(topic, callback, secret="the second secret")
        await hub.expect_delivery(topic, callback, lambda each: is_signed(each, "the first secret"))
    finally:
        callback.open.set()


@check("5.1", RequirementLevel.MUST)
async def a_renewal_that_fails_changes_nothing(hub: HubUnderTest) -> None:
    """If the verification of a renewal fails, the subscription stays unchanged."""
    topic, callback = await hub.served(secret="the first secret")
    callback.reply = decline
    await hub.subscribe(topic, callback, secret="the second secret")
    await hub.publish_to_witness(topic)
    delivery = await hub.expect_delivery(topic, callback)
    expect(is_signed(delivery, "the first secret"), "the signature is not that of the old secret")


@check("5.1", RequirementLevel.MUST)
async def an_unsubscription_that_fails_changes_nothing(hub: HubUnderTest) -> None:
    """If the verification of an unsubscription fails, deliveries continue."""
    topic, callback = await hub.served()
    callback.reply = decline
    await hub.request_and_verify("unsubscribe", topic, callback)
    await hub.publish_to_witness(topic)
    await hub.expect_delivery(topic, callback)


@check("5.1.1", RequirementLevel.MUST)
async def the_query_of_a_callback_is_kept(hub: HubUnderTest) -> None:
    """A callback's query stays as it is; new parameters are appended with an ampersand."""
    await _expect_exactly(hub, hub.callback("foo=bar&red=fish"))


@check("5.1.1", RequirementLevel.MUST)
async def overlapping_names_are_not_overwritten(hub: HubUnderTest) -> None:
    """Parameters in a callback's query are kept even if they have the names of the hub's own."""
    await _expect_exactly(
        hub, hub.callback("hub.mode=mine&hub.topic=mine&hub.challenge=mine&hub.x=y")
    )


@check("8.3", RequirementLevel.MUST)
async def the_callback_is_used_exactly_as_it_was_sent(hub: HubUnderTest) -> None:
    """The path and query of a callback are used byte for byte, however they are escaped."""
    odd = hub.callback("a=%2F%2f/&b=+&c=%20&empty=&bare&=&d=1;e=2", path="/%7Eme/a%2Fb/;p=%c3%a9")
    await _expect_exactly(hub, odd)


@check("5.1.1", RequirementLevel.MUST)
async def a_query_is_not_sent_as_the_body(hub: HubUnderTest) -> None:
    """A delivery has the callback's query in its URL and none of it in its body."""
    topic, callback = hub.topic(), hub.callback("foo=bar")
    await hub.subscribe(topic, callback)
    delivery = await hub.expect_delivery(topic, callback)
    expect(b"foo=bar" not in delivery.body, "the body contains the callback's query")
    expect(delivery.target == callback.target, f"it is POSTed to {delivery.target}")


async def _expect_exactly(hub: HubUnderTest, callback: SimulatedCallback) -> None:
    topic = hub.topic()
    verified = (await hub.subscribe(topic, callback)).target
    separator = "&" if "?" in callback.target else "?"
    expect(
        verified.startswith(callback.target + separator + "hub."),
        f"the callback {callback.target} is verified at {verified}",
    )
    delivery = await hub.expect_delivery(topic, callback)
    expect(
        delivery.target == callback.target,
        f"the delivery to the callback {callback.target} is sent to {delivery.target}",
    )
