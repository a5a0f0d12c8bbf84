"""How a hub is told of updates, which WebSub leaves open (§6), and most hubs do alike."""

from __future__ import annotations

from rsnotify_hub_check.hub_under_test import HubUnderTest
from rsnotify_hub_check.outcomes import RequirementLevel, expect
from rsnotify_hub_check.registry import check
from rsnotify_hub_check.settings import PublishMethod


@check("6", RequirementLevel.MUST)
async def every_update_is_delivered(bench: HubUnderTest) -> None:
    """One update after another reaches the subscriber."""
    topic, callback = bench.topic(), bench.callback()
    await bench.subscribe(topic, callback)
    for _ in range(3):
        await bench.delivered(topic, callback)


@check("6", RequirementLevel.MAY)
async def a_ping_by_url_is_understood(bench: HubUnderTest) -> None:
    """hub.mode=publish with hub.url makes the hub fetch the topic."""
    await _ping(bench, PublishMethod.URL)


@check("6", RequirementLevel.MAY, 100)
async def a_ping_by_topic_is_understood(bench: HubUnderTest) -> None:
    """hub.mode=publish with hub.topic makes the hub fetch the topic."""
    await _ping(bench, PublishMethod.TOPIC)


@check("6", RequirementLevel.MAY)
async def unchanged_content_is_not_delivered_again(bench: HubUnderTest) -> None:
    """A ping for a topic that did not change delivers nothing."""
    topic, callback = bench.topic(), bench.callback()
    await bench.subscribe(topic, callback)
    await bench.delivered(topic, callback)
    await bench.quieted(topic, callback)
    before = len(callback.deliveries)
    await bench.tell(topic)
    await bench.nothing(
        lambda: len(callback.deliveries) > before, "the same content is delivered again"
    )


async def _ping(bench: HubUnderTest, way: PublishMethod) -> None:
    topic, callback = bench.topic(), bench.callback()
    await bench.subscribe(topic, callback)
    await bench.delivered(topic, callback, way=way)
    expect(topic.gets > 0, "the topic is not fetched")
