"""Callbacks and their queries (WebSub §5.1.1, §8.3)."""

from __future__ import annotations

from rsnotify_hub_check.callback import SimulatedCallback
from rsnotify_hub_check.hub_under_test import HubUnderTest
from rsnotify_hub_check.outcomes import RequirementLevel, expect
from rsnotify_hub_check.registry import check


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
    """Path and query of a callback are used byte for byte, however they are escaped."""
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
