"""How a hub takes what callbacks answer to deliveries (WebSub §7)."""

from __future__ import annotations

from rsnotify_hub_check.callback import CallbackReply, SimulatedCallback
from rsnotify_hub_check.endpoints import SimulatedTopic
from rsnotify_hub_check.hub_under_test import HubUnderTest
from rsnotify_hub_check.outcomes import RequirementLevel, expect
from rsnotify_hub_check.registry import check


@check("7", RequirementLevel.MUST)
async def any_2xx_is_a_success(bench: HubUnderTest) -> None:
    """A delivery that is answered with any 2xx is not repeated."""
    topic, callback = bench.topic(), bench.callback()
    callback.answer = CallbackReply(299)
    await bench.subscribe(topic, callback)
    await _expect_once(bench, topic, callback)


@check("7", RequirementLevel.MUST)
async def the_body_of_an_answer_is_ignored(bench: HubUnderTest) -> None:
    """What stands in a callback's answer does not matter."""
    topic, callback = bench.topic(), bench.callback()
    callback.answer = CallbackReply(200, "410 Gone: error, please unsubscribe. " * 3000)
    await bench.subscribe(topic, callback)
    await _expect_once(bench, topic, callback)
    await bench.delivered(topic, callback)


@check("7", RequirementLevel.MUST)
async def a_redirect_is_a_failure(bench: HubUnderTest) -> None:
    """A delivery is not sent to where the callback redirects."""
    topic, callback, elsewhere = bench.topic(), bench.callback(), bench.callback()
    await bench.subscribe(topic, callback)
    for status in (301, 302, 303, 307, 308):
        callback.answers.append(CallbackReply(status, headers={"Location": elsewhere.url}))
    await bench.delivered(topic, callback)
    await bench.nothing(
        lambda: bool(elsewhere.deliveries or elsewhere.verifications), "the redirect is followed"
    )


@check("7", RequirementLevel.MUST)
async def a_failure_does_not_end_the_subscription(bench: HubUnderTest) -> None:
    """After a delivery that failed the next update is delivered."""
    topic, callback = bench.topic(), bench.callback()
    await bench.subscribe(topic, callback)
    await bench.delivered(topic, callback)
    for status in (500, 404, 403, 302):
        callback.answers = [CallbackReply(status)]
        await bench.delivered(topic, callback)
        await _next_arrives(bench, topic, callback)


@check("7", RequirementLevel.SHOULD)
async def a_failed_delivery_is_tried_again(bench: HubUnderTest) -> None:
    """A delivery that failed is tried again without a new update."""
    topic, callback = bench.topic(), bench.callback()
    await bench.subscribe(topic, callback)
    await bench.delivered(topic, callback)
    await bench.quieted(topic, callback)
    callback.answers = [CallbackReply(503)]
    body = await bench.publish(topic)
    again = await bench.ends.until(
        lambda: sum(each.body == body for each in callback.deliveries) > 1, bench.settings.retry
    )
    expect(again, f"it is not tried again within {bench.settings.retry:g} s")


@check("7", RequirementLevel.MAY)
async def a_410_ends_the_subscription(bench: HubUnderTest) -> None:
    """A callback that answers 410 is not delivered to any more."""
    topic, callback = bench.topic(), bench.callback()
    callback.answer = CallbackReply(410)
    await bench.subscribe(topic, callback)
    await bench.delivered(topic, callback)
    await bench.ended(topic, callback, "it is delivered to after a 410")


async def _expect_once(
    bench: HubUnderTest, topic: SimulatedTopic, callback: SimulatedCallback
) -> None:
    body = (await bench.delivered(topic, callback)).body
    await bench.nothing(
        lambda: sum(each.body == body for each in callback.deliveries) > 1,
        "the same update is delivered again",
    )


async def _next_arrives(
    bench: HubUnderTest, topic: SimulatedTopic, callback: SimulatedCallback
) -> None:
    """A failed delivery may be waited for, since a hub may send the next one only with it."""
    body = await bench.publish(topic)
    came = await bench.ends.until(
        lambda: any(each.body == body for each in callback.deliveries),
        bench.settings.patience + bench.settings.retry,
    )
    expect(came, "the next update is not delivered")
