"""Publishing, which WebSub leaves open (§6), and most hubs do alike."""

from __future__ import annotations

from rsnotify_hub_check.hub_under_test import HubUnderTest
from rsnotify_hub_check.outcomes import RequirementLevel, expect
from rsnotify_hub_check.registry import check
from rsnotify_hub_check.settings import PublishMethod


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
    topic, callback = await hub.subscribed()
    await hub.expect_delivery(topic, callback)
    await hub.wait_until_idle(topic, callback)
    before = len(callback.deliveries)
    await hub.notify(topic)
    await hub.expect_nothing(
        lambda: len(callback.deliveries) > before, "the same content is delivered again"
    )


async def _ping(hub: HubUnderTest, method: PublishMethod) -> None:
    topic, callback = await hub.subscribed()
    await hub.expect_delivery(topic, callback, method=method)
    expect(topic.gets > 0, "the topic is not fetched")
