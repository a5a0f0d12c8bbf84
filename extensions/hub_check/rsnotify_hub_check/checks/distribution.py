"""Content distribution (WebSub §7)."""

from __future__ import annotations

import json
from collections.abc import Callable

from rsnotify.format.links import parse_links
from rsnotify_hub_check.endpoints import html
from rsnotify_hub_check.hub_under_test import HubUnderTest
from rsnotify_hub_check.outcomes import RequirementLevel, expect
from rsnotify_hub_check.registry import check


def _text(words: str) -> bytes:
    return f"A topic\n=======\n\n{words}: grüße, 世界\n".encode()


def _json(words: str) -> bytes:
    return json.dumps({"title": "A topic", "items": [{"content_text": words}]}, indent=2).encode()


def _xml(words: str) -> bytes:
    return f"<?xml version='1.0'?>\n<topic  a = 'b'><!-- kept -->{words}</topic>\n".encode()


def _octets(words: str) -> bytes:
    return bytes(range(256)) + words.encode()


def _long(words: str) -> bytes:
    return words.encode() + b"x" * 1_000_000


def _delivers(
    name: str, rule: str, content_type: str, write: Callable[[str], bytes], *rocks: int
) -> None:
    """Register the check that content of one type arrives unchanged."""

    @check("7", RequirementLevel.MUST, *rocks, name=name, title=rule)
    async def run(hub: HubUnderTest) -> None:
        topic, callback = hub.topic(content_type, write), hub.callback()
        await hub.subscribe(topic, callback)
        delivery = await hub.expect_delivery(topic, callback)
        sent = delivery.headers.get("Content-Type")
        expect(sent == content_type, f"the Content-Type is {sent!r}, not {content_type!r}")


_delivers(
    "html_arrives_as_it_is",
    "A page arrives with its full content and its Content-Type.",
    "text/html; charset=utf-8",
    html,
    100,
)
_delivers(
    "plain_text_arrives_as_it_is",
    "Plain text arrives with its full content and its Content-Type.",
    "text/plain; charset=utf-8",
    _text,
    105,
)
_delivers(
    "json_arrives_as_it_is",
    "JSON arrives with its full content and its Content-Type.",
    "application/json",
    _json,
    106,
)
_delivers(
    "xml_arrives_as_it_is",
    "XML that is not a feed arrives with its full content and its Content-Type.",
    "application/xml",
    _xml,
)
_delivers(
    "octets_arrive_as_they_are",
    "Binary content arrives with its full content and its Content-Type.",
    "application/octet-stream",
    _octets,
)


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
    topic, callback = hub.topic("text/plain", _long), hub.callback()
    await hub.subscribe(topic, callback)
    await hub.expect_delivery(topic, callback)
