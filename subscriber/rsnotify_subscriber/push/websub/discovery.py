"""Finding the hubs and the canonical URL of a topic (WebSub §4)."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from rsnotify.format.embedded_links import html_links, xml_links
from rsnotify.format.links import parse_links, resolve
from rsnotify.format.vocabulary import Rel
from rsnotify_subscriber.fetching.responses import body, check_status
from rsnotify_subscriber.fetching.sessions import Sessions

#: The most bytes of a topic that are searched for links, which are at its beginning.
_BEGINNING = 1_000_000
_HTML = ("text/html", "application/xhtml+xml")

_Links = Sequence[tuple[str, str]]


class DiscoveredTopic(Struct, frozen=True):
    """The links of a topic.

    Args:
        topic: Its canonical URL, to which one subscribes.
        hubs: Its hubs that speak WebSub, those with https first (WebSub §8.2).
    """

    topic: str
    hubs: tuple[str, ...]


async def discover_topic(sessions: Sessions, uri: str) -> DiscoveredTopic:
    """GET a topic, and return its hubs from Link headers, else from links in its body."""
    async with sessions.get(uri, {"Accept-Encoding": "gzip"}) as response:
        check_status(uri, response)
        place = str(response.url)
        links: _Links = parse_links(response.headers.getall("Link", []))
        found = _discovered(place, links)
        if found.hubs and _targets(place, links, Rel.SELF):
            return found  # the body, which may be large, need not be read
        beginning = bytearray()
        async for chunk in body(uri, response):
            beginning += chunk
            if len(beginning) > _BEGINNING:
                break
        return _discovered(place, links, embedded(bytes(beginning), response.content_type))


def embedded(beginning: bytes, content_type: str) -> _Links:
    """Return the links in a body or its beginning, if it is an HTML page, a feed or a Sitemap."""
    if content_type in _HTML:
        return html_links(beginning.decode(errors="replace"))
    return xml_links(beginning) if "xml" in content_type else []


def _discovered(place: str, links: _Links, embedded: _Links = ()) -> DiscoveredTopic:
    topics = _targets(place, links, Rel.SELF) or _targets(place, embedded, Rel.SELF) or [place]
    hubs = _hubs(place, links) or _hubs(place, embedded)
    return DiscoveredTopic(topics[0], tuple(sorted(hubs, key=lambda hub: hub[:6] != "https:")))


def _hubs(place: str, links: _Links) -> list[str]:
    """Return the hubs with HTTP URIs; a Source may name others beside them."""
    hubs = dict.fromkeys(_targets(place, links, Rel.HUB))
    return [hub for hub in hubs if hub.startswith(("http:", "https:"))]


def _targets(place: str, links: _Links, relation: str) -> list[str]:
    return [resolve(place, target) for rel, target in links if rel.lower() == relation]
