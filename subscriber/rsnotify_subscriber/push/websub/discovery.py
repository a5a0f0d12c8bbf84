"""Finding the hubs of a topic, and what they call it (WebSub §4)."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from rsnotify.format.embedded_links import html_links, xml_links
from rsnotify.format.links import parse_links, resolve
from rsnotify.format.vocabulary import Rel
from rsnotify_subscriber.fetching.responses import body, check_status
from rsnotify_subscriber.fetching.sessions import Sessions

#: How much of a topic is searched for links, in bytes; they stand at its beginning.
_BEGINNING = 1_000_000
_HTML = ("text/html", "application/xhtml+xml")

Links = Sequence[tuple[str, str]]


class DiscoveredTopic(Struct, frozen=True):
    """What a topic says of itself.

    Args:
        topic: Its canonical URL, which is what one subscribes to.
        hubs: Its hubs that speak WebSub, those by https first (WebSub §8.2).
    """

    topic: str
    hubs: tuple[str, ...]


async def discover_topic(sessions: Sessions, uri: str) -> DiscoveredTopic:
    """GET a topic, and find its hubs: by Link headers, else by links in its body.

    Args:
        sessions: The HTTP client sessions.
        uri: The topic.

    Raises:
        FetchError: It could not be had.
    """
    async with sessions.get(uri, {"Accept-Encoding": "gzip"}) as response:
        check_status(uri, response)
        place = str(response.url)
        links: Links = parse_links(response.headers.getall("Link", []))
        found = _found(place, links)
        if found.hubs and _targets(place, links, Rel.SELF):
            return found  # a large topic need not be read
        beginning = bytearray()
        async for chunk in body(uri, response):
            beginning += chunk
            if len(beginning) > _BEGINNING:
                break
        return _found(place, links, embedded(bytes(beginning), response.content_type))


def embedded(beginning: bytes, content_type: str) -> Links:
    """Find the links in a body, if it is a page, a feed or a Sitemap.

    Args:
        beginning: The body, or its first part.
        content_type: Its media type.
    """
    if content_type in _HTML:
        return html_links(beginning.decode(errors="replace"))
    return xml_links(beginning) if "xml" in content_type else []


def _found(place: str, links: Links, embedded: Links = ()) -> DiscoveredTopic:
    topics = _targets(place, links, Rel.SELF) or _targets(place, embedded, Rel.SELF) or [place]
    hubs = _hubs(place, links) or _hubs(place, embedded)
    return DiscoveredTopic(
        topics[0], tuple(sorted(hubs, key=lambda hub: not hub.startswith("https:")))
    )


def _hubs(place: str, links: Links) -> list[str]:
    """Return the hubs that are spoken to over HTTP; a Source may name others beside them."""
    hubs = dict.fromkeys(_targets(place, links, Rel.HUB))
    return [hub for hub in hubs if hub.startswith(("http:", "https:"))]


def _targets(place: str, links: Links, relation: str) -> list[str]:
    return [resolve(place, target) for rel, target in links if rel.lower() == relation]
