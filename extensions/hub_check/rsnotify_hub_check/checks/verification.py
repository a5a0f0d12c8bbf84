"""Verification of intent (WebSub §5.3)."""

from __future__ import annotations

from collections.abc import Callable

from rsnotify_hub_check.callback import CallbackReply, ReceivedVerification
from rsnotify_hub_check.endpoints import SimulatedTopic
from rsnotify_hub_check.hub_under_test import HubUnderTest
from rsnotify_hub_check.outcomes import RequirementLevel, expect
from rsnotify_hub_check.registry import check

#: A challenge shorter than this can be guessed.
_MIN_CHALLENGE = 16


@check("5.3", RequirementLevel.MUST, 100, 101, 102, 103, 104)
async def a_subscription_is_verified(hub: HubUnderTest) -> None:
    """The verification of a subscription has mode, topic, challenge and lease."""
    topic, callback = hub.topic(), hub.callback()
    appended = (await hub.subscribe(topic, callback)).appended
    _expect_parameters(appended, "subscribe", topic)
    lease = appended.get("hub.lease_seconds", "")
    expect(lease.isascii() and lease.isdigit(), f"hub.lease_seconds is {lease!r}, not a number")


@check("5.3", RequirementLevel.MUST, 104)
async def an_unsubscription_is_verified(hub: HubUnderTest) -> None:
    """The verification of an unsubscription has mode, topic and challenge."""
    topic, callback = await hub.subscribed()
    await hub.expect_delivery(topic, callback)
    verification = await hub.request_and_verify("unsubscribe", topic, callback)
    _expect_parameters(verification.appended, "unsubscribe", topic)


@check("8.2", RequirementLevel.SHOULD)
async def challenges_are_random_and_used_once(hub: HubUnderTest) -> None:
    """Each verification has its own challenge, which is too long to be guessed."""
    topic, callback = hub.topic(), hub.callback()
    found = [(await hub.subscribe(topic, callback)).challenge for _ in range(4)]
    expect(len(set(found)) == len(found), "a challenge is used twice")
    shortest = min(map(len, found))
    expect(shortest >= _MIN_CHALLENGE, f"a challenge has {shortest} characters only")


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
    """Register the check that an answer to a verification does not confirm it."""

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
