"""Callbacks and their queries (WebSub §5.1.1, §8.3)."""

from __future__ import annotations

from rsnotify_hub_check.callback import SimulatedCallback
from rsnotify_hub_check.hub_under_test import HubUnderTest
from rsnotify_hub_check.outcomes import RequirementLevel, expect
from rsnotify_hub_check.registry import check


@check("5.1.1", RequirementLevel.MUST)
async def the_query_of_a_callback_is_kept(bench: HubUnderTest) -> None:
    """A callback's query stays as it is; new parameters are appended with an ampersand."""
    await _expect_exactly(bench, bench.callback("foo=bar&red=fish"))


@check("5.1.1", RequirementLevel.MUST)
async def overlapping_names_are_not_overwritten(bench: HubUnderTest) -> None:
    """Parameters in a callback's query are kept also where their names are the hub's own."""
    await _expect_exactly(
        bench, bench.callback("hub.mode=mine&hub.topic=mine&hub.challenge=mine&hub.x=y")
    )


@check("8.3", RequirementLevel.MUST)
async def the_callback_is_used_exactly_as_it_was_sent(bench: HubUnderTest) -> None:
    """Path and query of a callback are used byte for byte, however they are escaped."""
    odd = bench.callback("a=%2F%2f/&b=+&c=%20&empty=&bare&=&d=1;e=2", path="/%7Eme/a%2Fb/;p=%c3%a9")
    await _expect_exactly(bench, odd)


@check("5.1.1", RequirementLevel.MUST)
async def a_query_is_not_sent_as_the_body(bench: HubUnderTest) -> None:
    """A delivery has the callback's query in its URL and none of it in its body."""
    topic, callback = bench.topic(), bench.callback("foo=bar")
    await bench.subscribe(topic, callback)
    delivery = await bench.delivered(topic, callback)
    expect(b"foo=bar" not in delivery.body, "the body holds the callback's query")
    expect(delivery.target == callback.target, f"it is POSTed to {delivery.target}")


async def _expect_exactly(bench: HubUnderTest, callback: SimulatedCallback) -> None:
    topic = bench.topic()
    asked = (await bench.subscribe(topic, callback)).target
    joint = "&" if "?" in callback.target else "?"
    expect(
        asked.startswith(callback.target + joint + "hub."),
        f"the callback {callback.target} is verified at {asked}",
    )
    delivery = await bench.delivered(topic, callback)
    expect(
        delivery.target == callback.target,
        f"the callback {callback.target} is delivered to at {delivery.target}",
    )
