"""Answers of callbacks to deliveries (WebSub §7)."""

from __future__ import annotations

from rsnotify_hub_check.callback import CallbackReply, SimulatedCallback
from rsnotify_hub_check.endpoints import SimulatedTopic
from rsnotify_hub_check.hub_under_test import HubUnderTest
from rsnotify_hub_check.outcomes import RequirementLevel, expect
from rsnotify_hub_check.registry import check


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
    topic, callback = await hub.subscribed()
    await hub.expect_delivery(topic, callback)
    for status in (500, 404, 403, 302):
        callback.answers = [CallbackReply(status)]
        await hub.expect_delivery(topic, callback)
        await _next_arrives(hub, topic, callback)


@check("7", RequirementLevel.SHOULD)
async def a_failed_delivery_is_tried_again(hub: HubUnderTest) -> None:
    """A failed delivery is repeated, without a new update."""
    topic, callback = await hub.subscribed()
    await hub.expect_delivery(topic, callback)
    await hub.wait_until_idle(topic, callback)
    callback.answers = [CallbackReply(503)]
    body = await hub.publish(topic)
    again = await hub.endpoints.until(
        lambda: sum(each.body == body for each in callback.deliveries) > 1, hub.settings.retry
    )
    expect(again, f"the delivery is not repeated within {hub.settings.retry:g} s")


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
    """Wait longer, since a hub may send the next update only when it repeats the failed one."""
    body = await hub.publish(topic)
    came = await hub.endpoints.until(
        lambda: any(each.body == body for each in callback.deliveries),
        hub.settings.patience + hub.settings.retry,
    )
    expect(came, "the next update is not delivered")
