"""Checks of publishing and content distribution (WebSub §6, §7), and of responses to subscribers.

WebSub does not specify publishing, but most hubs implement it in the same way. A check is a
coroutine that raises an error if the hub breaks the requirement.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable

from rsnotify.format.links import parse_links
from rsnotify_hub_check.hub_under_test import (
    HubResponse,
    HubUnderTest,
    PublishMethod,
    check,
    request_form,
)
from rsnotify_hub_check.outcomes import Inconclusive, RequirementLevel, expect
from rsnotify_hub_check.simulated_endpoints import (
    CallbackReply,
    ReceivedDelivery,
    SimulatedCallback,
    SimulatedTopic,
    decline,
    html,
)


def _text_body(words: str) -> bytes:
    return f"A topic\n=======\n\n{words}: grüße, 世界\n".encode()


def _json_body(words: str) -> bytes:
    return json.dumps({"title": "A topic", "items": [{"content_text": words}]}, indent=2).encode()


def _xml_body(words: str) -> bytes:
    return f"<?xml version='1.0'?>\n<topic  a = 'b'><!-- kept -->{words}</topic>\n".encode()


def _binary_body(words: str) -> bytes:
    return bytes(range(256)) + words.encode()


def _delivers(
    name: str, what: str, content_type: str, write: Callable[[str], bytes], *rocks: int
) -> None:
    """Register a check that content of one type arrives unchanged."""
    title = f"{what} arrives with its full content and its Content-Type."

    @check("7", RequirementLevel.MUST, *rocks, name=name, title=title)
    async def run(hub: HubUnderTest) -> None:
        topic, callback = hub.topic(content_type, write), hub.callback()
        await hub.subscribe(topic, callback)
        delivery = await hub.expect_delivery(topic, callback)
        sent = delivery.headers.get("Content-Type")
        expect(sent == content_type, f"the Content-Type is {sent!r}, not {content_type!r}")


_delivers("html_arrives_as_it_is", "A page", "text/html; charset=utf-8", html, 100)
_delivers("plain_text_arrives_as_it_is", "Plain text", "text/plain; charset=utf-8", _text_body, 105)
_delivers("json_arrives_as_it_is", "JSON", "application/json", _json_body, 106)
_delivers("xml_arrives_as_it_is", "XML that is not a feed", "application/xml", _xml_body)
_delivers("octets_arrive_as_they_are", "Binary content", "application/octet-stream", _binary_body)


@check("7", RequirementLevel.MUST, 100)
async def a_delivery_links_to_its_topic_and_hub(hub: HubUnderTest) -> None:
    """A delivery has Link headers: rel=self to the topic, rel=hub to the hub."""
    topic, callback = await hub.subscribed()
    delivery = await hub.expect_delivery(topic, callback)
    links = parse_links(delivery.headers.getall("Link", []))
    selves = [target for relation, target in links if relation == "self"]
    hubs = [target for relation, target in links if relation == "hub"]
    expect(selves == [topic.url], f"rel=self leads to {selves}, not to {topic.url}")
    expect(hub.settings.hub in hubs, f"rel=hub leads to {hubs}, not to {hub.settings.hub}")


@check("7", RequirementLevel.SHOULD)
async def the_links_are_one_header(hub: HubUnderTest) -> None:
    """The links of a delivery are in one Link header."""
    topic, callback = await hub.subscribed()
    delivery = await hub.expect_delivery(topic, callback)
    count = len(delivery.headers.getall("Link", []))
    expect(count == 1, f"there are {count} Link headers")


@check("7", RequirementLevel.MUST)
async def the_whole_of_a_large_topic_is_delivered(hub: HubUnderTest) -> None:
    """A topic of a megabyte arrives whole."""
    topic = hub.topic("text/plain", lambda words: words.encode() + b"x" * 1_000_000)
    callback = hub.callback()
    await hub.subscribe(topic, callback)
    await hub.expect_delivery(topic, callback)


@check("6", RequirementLevel.MUST)
async def every_update_is_delivered(hub: HubUnderTest) -> None:
    """One update after another reaches the subscriber."""
    topic, callback = await hub.subscribed()
    for _ in range(3):
        await hub.expect_delivery(topic, callback)


@check("6", RequirementLevel.MAY)
async def a_ping_by_url_is_understood(hub: HubUnderTest) -> None:
    """hub.mode=publish with hub.url makes the hub fetch the topic."""
    await _ping(hub, PublishMethod.URL)


@check("6", RequirementLevel.MAY, 100)
async def a_ping_by_topic_is_understood(hub: HubUnderTest) -> None:
    """hub.mode=publish with hub.topic makes the hub fetch the topic."""
    await _ping(hub, PublishMethod.TOPIC)


@check("6", RequirementLevel.MAY)
async def unchanged_content_is_not_delivered_again(hub: HubUnderTest) -> None:
    """A ping for an unchanged topic causes no delivery."""
    topic, callback = await hub.served()
    await hub.wait_until_idle(topic, callback)
    before = len(callback.deliveries)
    await hub.notify(topic)
    await hub.expect_nothing(
        lambda: len(callback.deliveries) > before, "the same content was delivered again"
    )


async def _ping(hub: HubUnderTest, method: PublishMethod) -> None:
    topic, callback = await hub.subscribed()
    await hub.expect_delivery(topic, callback, method=method)
    expect(topic.gets > 0, "the topic was not fetched")


SIGNATURE = "X-Hub-Signature"

#: The recognized method names (WebSub §7.1.1).
_METHODS = ("sha1", "sha256", "sha384", "sha512")


def is_signed(delivery: ReceivedDelivery, secret: str) -> bool:
    method, _, digest = delivery.headers.get(SIGNATURE, "").partition("=")
    if method not in _METHODS:
        return False
    expected = hmac.new(secret.encode(), delivery.body, method).hexdigest()
    return hmac.compare_digest(digest.lower().encode(), expected.encode())


@check("7.1", RequirementLevel.MUST, 101)
async def deliveries_are_signed_with_the_secret(hub: HubUnderTest) -> None:
    """With a secret, a delivery has an HMAC of its body, by a recognised method."""
    await _expect_signed(hub, "a secret of this check")


@check("7.1", RequirementLevel.SHOULD)
async def the_signature_is_at_least_sha256(hub: HubUnderTest) -> None:
    """The method is not SHA-1 (§8.3)."""
    topic, callback = await hub.subscribed(secret="a secret of this check")
    header = (await hub.expect_delivery(topic, callback)).headers.get(SIGNATURE, "")
    method = header.partition("=")[0]
    expect(method in _METHODS[1:], f"the method is {method!r}")


@check("7", RequirementLevel.MUST, 100)
async def without_a_secret_there_is_no_signature(hub: HubUnderTest) -> None:
    """Without a secret, a delivery has no signature."""
    topic, callback = await hub.subscribed()
    delivery = await hub.expect_delivery(topic, callback)
    expect(SIGNATURE not in delivery.headers, "the delivery has a signature")


@check("5.1", RequirementLevel.MUST)
async def a_secret_of_199_bytes_is_accepted(hub: HubUnderTest) -> None:
    """A secret may have any length under 200 bytes."""
    await _expect_signed(hub, "s" * 199)


@check("5.1", RequirementLevel.MUST)
async def a_secret_is_utf8(hub: HubUnderTest) -> None:
    """Signatures use the UTF-8 bytes of a secret that is not ASCII."""
    await _expect_signed(hub, "a sécret of π & 世界 + %41")


@check("5.1", RequirementLevel.SHOULD)
async def a_secret_of_200_bytes_is_refused(hub: HubUnderTest) -> None:
    """A secret of 200 bytes is an error, even if it has fewer characters."""
    for secret in ("s" * 200, "é" * 100):
        response = await hub.request("subscribe", hub.topic(), hub.callback(), secret=secret)
        expect(400 <= response.status < 500, f"the hub answers {response}, not 4xx")


async def _expect_signed(hub: HubUnderTest, secret: str) -> None:
    topic, callback = await hub.subscribed(secret=secret)
    delivery = await hub.expect_delivery(topic, callback)
    header = delivery.headers.get(SIGNATURE)
    expect(header is not None, f"the delivery has no {SIGNATURE}")
    expect(is_signed(delivery, secret), f"{header!r} is not an HMAC of the body")


@check("5.1.2", RequirementLevel.MUST)
async def the_answer_does_not_wait_for_the_verification(hub: HubUnderTest) -> None:
    """The hub answers 202 before the callback answers the verification."""
    topic, callback = hub.topic(), hub.callback()
    callback.open.clear()
    try:
        (await hub.request("subscribe", topic, callback)).expect_accepted()
    finally:
        callback.open.set()


@check("5.1.2", RequirementLevel.MUST)
async def the_answer_does_not_depend_on_the_verification(hub: HubUnderTest) -> None:
    """The hub answers 202 even if the verification is going to fail."""
    refuses, hangs_up = hub.callback(), hub.callback()
    refuses.reply = decline
    hangs_up.drops = True
    for callback in (refuses, hangs_up):
        (await hub.request("subscribe", hub.topic(), callback)).expect_accepted()


@check("5.1.2", RequirementLevel.MUST)
async def unsubscribing_what_is_unknown_is_accepted(hub: HubUnderTest) -> None:
    """The hub answers an unsubscription with 202, whatever the result of its verification."""
    (await hub.request("unsubscribe", hub.topic(), hub.callback())).expect_accepted()


def _refuses(name: str, rule: str, parameter: str, value: str | None = None) -> None:
    """Register a check that a request with one error is refused."""

    @check("5.1.2", RequirementLevel.MUST, name=name, title=rule)
    async def run(hub: HubUnderTest) -> None:
        await _refused(hub, parameter, value)


async def _refused(hub: HubUnderTest, parameter: str, value: str | None = None) -> HubResponse:
    """Expect a request to be refused if one parameter has another value, or is missing."""
    form = request_form("subscribe", hub.topic().url, hub.callback())
    del form[parameter]
    response = await hub.post(form if value is None else {**form, parameter: value})
    expect(400 <= response.status < 600, f"the hub answers {response}, not 4xx")
    return response


_refuses("a_missing_mode_is_refused", "A request without hub.mode is an error.", "hub.mode")
_refuses("a_wrong_mode_is_refused", "An unknown hub.mode is an error.", "hub.mode", "listen")
_refuses("a_missing_topic_is_refused", "A request without hub.topic is an error.", "hub.topic")
_refuses(
    "a_missing_callback_is_refused", "A request without hub.callback is an error.", "hub.callback"
)
_refuses(
    "a_callback_that_is_no_url_is_refused",
    "A hub.callback that is not an http(s) URL is an error.",
    "hub.callback",
    "not a URL",
)


@check("5.1.2", RequirementLevel.SHOULD)
async def errors_are_described_in_plain_text(hub: HubUnderTest) -> None:
    """An error has a description in plain text."""
    response = await _refused(hub, "hub.callback")
    expect(response.content_type == "text/plain", f"the type is {response.content_type}")
    expect(response.text.strip(), "the error has no description")


@check("5.2", RequirementLevel.MUST)
async def a_denial_is_told(hub: HubUnderTest) -> None:
    """The hub reports a denied subscription to the callback, with hub.mode=denied."""
    if hub.settings.denied_topic is None:
        raise Inconclusive("name a topic that this hub denies (--denied-topic)")
    topic, callback = hub.topic(), hub.callback("foo=bar")
    topic.url = hub.settings.denied_topic
    denial = await hub.subscribe(topic, callback)
    mode = denial.appended.get("hub.mode")
    expect(mode == "denied", f"hub.mode is {mode!r}, not 'denied'")
    expect(denial.appended.get("hub.topic") == topic.url, "hub.topic is not the topic")
    expect(denial.target.startswith(callback.target + "&hub."), "the callback's query is changed")


@check("7", RequirementLevel.MUST)
async def any_2xx_is_a_success(hub: HubUnderTest) -> None:
    """A delivery is not repeated after an answer with any status 2xx."""
    topic, callback = hub.topic(), hub.callback()
    callback.answer = CallbackReply(299)
    await hub.subscribe(topic, callback)
    await _expect_once(hub, topic, callback)


@check("7", RequirementLevel.MUST)
async def the_body_of_an_answer_is_ignored(hub: HubUnderTest) -> None:
    """The body of a callback's answer does not matter."""
    topic, callback = hub.topic(), hub.callback()
    callback.answer = CallbackReply(200, "410 Gone: error, please unsubscribe. " * 3000)
    await hub.subscribe(topic, callback)
    await _expect_once(hub, topic, callback)
    await hub.expect_delivery(topic, callback)


@check("7", RequirementLevel.MUST)
async def a_redirect_is_a_failure(hub: HubUnderTest) -> None:
    """A delivery is not redirected: the hub does not follow a callback's Location."""
    topic, callback, elsewhere = hub.topic(), hub.callback(), hub.callback()
    await hub.subscribe(topic, callback)
    for status in (301, 302, 303, 307, 308):
        callback.answers.append(CallbackReply(status, headers={"Location": elsewhere.url}))
    await hub.expect_delivery(topic, callback)
    await hub.expect_nothing(
        lambda: bool(elsewhere.deliveries or elsewhere.verifications), "the redirect is followed"
    )


@check("7", RequirementLevel.MUST)
async def a_failure_does_not_end_the_subscription(hub: HubUnderTest) -> None:
    """After a failed delivery, the next update is delivered."""
    topic, callback = await hub.served()
    for status in (500, 404, 403, 302):
        callback.answers = [CallbackReply(status)]
        await hub.expect_delivery(topic, callback)
        await _next_arrives(hub, topic, callback)


@check("7", RequirementLevel.SHOULD)
async def a_failed_delivery_is_tried_again(hub: HubUnderTest) -> None:
    """A failed delivery is repeated, without a new update."""
    topic, callback = await hub.served()
    await hub.wait_until_idle(topic, callback)
    callback.answers = [CallbackReply(503)]
    body = await hub.publish(topic)
    retried = await hub.endpoints.until(
        lambda: sum(each.body == body for each in callback.deliveries) > 1, hub.settings.retry
    )
    expect(retried, f"the delivery was not retried within {hub.settings.retry:g} s")


@check("7", RequirementLevel.MAY)
async def a_410_ends_the_subscription(hub: HubUnderTest) -> None:
    """A callback that answers 410 receives no more deliveries."""
    topic, callback = hub.topic(), hub.callback()
    callback.answer = CallbackReply(410)
    await hub.subscribe(topic, callback)
    await hub.expect_delivery(topic, callback)
    await hub.expect_ended(topic, callback, "the callback receives a delivery after its 410")


async def _expect_once(
    hub: HubUnderTest, topic: SimulatedTopic, callback: SimulatedCallback
) -> None:
    body = (await hub.expect_delivery(topic, callback)).body
    await hub.expect_nothing(
        lambda: sum(each.body == body for each in callback.deliveries) > 1,
        "the same update is delivered again",
    )


async def _next_arrives(
    hub: HubUnderTest, topic: SimulatedTopic, callback: SimulatedCallback
) -> None:
    """Expect the next update, but wait longer than usual.

    A hub may deliver the next update only when it retries the failed one.
    """
    body = await hub.publish(topic)
    delivered = await hub.endpoints.until(
        lambda: any(each.body == body for each in callback.deliveries),
        hub.settings.patience + hub.settings.retry,
    )
    expect(delivered, "the next update was not delivered")
