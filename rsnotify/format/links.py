"""Resolves links, and finds them in HTTP `Link` headers (RFC 8288), HTML pages and feeds.

In a page, only `link` elements in the head count, because visitors who can add content cannot put
one there (WebSub §8.1). In a feed, Atom's `link` elements count, and in a Sitemap, `rs:ln`
elements, in each case below the root or below the `channel` of RSS. Links of entries do not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import urljoin

from lxml import etree

from rsnotify.errors import MalformedDocument
from rsnotify.format.model import RS_NS, SITEMAP_NS
from rsnotify.format.xml_parser import ParserTarget, safe_parser

# Headers are untrusted. All repetitions are possessive, so matching takes linear time.
_QUOTED = r'"((?>[^"\\]++|\\.)*+)"'
_PARAMETER = re.compile(rf';\s*+([^\s=;,]++)(?>\s*+=\s*+(?:{_QUOTED}|([^\s";,]*+)))?+')
_LINK = re.compile(rf"<([^<>]*+)>((?>\s*+{_PARAMETER.pattern})*+)")


def resolve(base: str, uri: str) -> str:
    """Return the absolute URI of a link in the document at `base`.

    A malformed URI is returned unchanged. The code that fetches it reports the error.
    """
    try:
        return urljoin(base, uri)
    except ValueError:
        return uri


def parse_links(headers: Iterable[str]) -> list[tuple[str, str]]:
    """Return the (relation, target) pairs in all Link headers of a message, in order.

    A link with two relations results in two pairs.
    """
    found = []
    for header in headers:
        for target, parameters, *_ in _LINK.findall(header):
            for name, quoted, token in _PARAMETER.findall(parameters):
                if name.lower() == "rel":
                    relations = re.sub(r"\\(.)", r"\1", quoted) or token
                    found += [(relation, target.strip()) for relation in relations.split()]
                    break  # RFC 8288 §3.3: only the first rel counts
    return found


def format_links(links: Iterable[tuple[str, str]]) -> str:
    """Format (relation, target) pairs as one Link header.

    Raises ValueError if a target contains a character that is not allowed there.
    """
    parts = []
    for relation, target in links:
        if re.search(r"[<>\x00-\x20\x7f]", target):
            raise ValueError(f"{target!r} is not a valid target in a Link header")
        parts.append(f'<{target}>; rel="{relation}"')
    return ", ".join(parts)


Links = list[tuple[str, str]]

_ATOM = "{http://www.w3.org/2005/Atom}"
_LINKS = frozenset({_ATOM + "link", f"{{{RS_NS}}}ln"})
_FEED_ROOTS = frozenset(
    {_ATOM + "feed", f"{{{SITEMAP_NS}}}urlset", f"{{{SITEMAP_NS}}}sitemapindex"}
)


def html_links(text: str) -> Links:
    """Return the links in the head of a page, which may be truncated after the head.

    Links are (relation, target) pairs in order, with lowercase relations and unchanged targets.
    """
    page = _Page()
    parser = etree.HTMLParser(target=page, no_network=True, encoding="utf-8")
    parser.feed(text.encode(errors="replace"))
    parser.close()
    return page.found


def xml_links(body: bytes) -> Links:
    """Return the links of a feed or Sitemap, up to the first XML error. See `html_links`."""
    feed = _Feed()
    parser = safe_parser(feed)
    try:
        parser.feed(body)
    except etree.XMLSyntaxError:
        pass  # return the links before the error
    except MalformedDocument:
        return []
    return feed.found


class _Page(ParserTarget[None]):
    """The parser target that finds the links of a page."""

    def __init__(self) -> None:
        self.found: Links = []
        self._ancestors: list[str] = []

    def start(self, tag: str, attrib: Mapping[str, str]) -> None:
        if self._is_link(tag, self._ancestors):
            relations, target = attrib.get("rel", "").split(), attrib.get("href", "").strip()
            self.found += [(relation.lower(), target) for relation in relations if target]
        self._ancestors.append(tag)

    def _is_link(self, tag: str, ancestors: list[str]) -> bool:
        # The parser adds a head to a page that has none.
        return tag == "link" and ancestors == ["html", "head"]

    def end(self, tag: str) -> None:
        self._ancestors.pop()

    def close(self) -> None:
        return None


class _Feed(_Page):
    """The parser target that finds the links of a feed or Sitemap, and refuses a DOCTYPE."""

    def _is_link(self, tag: str, ancestors: list[str]) -> bool:
        match ancestors:
            case [root]:
                return tag in _LINKS and root in _FEED_ROOTS
            case [_, channel]:  # RSS
                return tag in _LINKS and channel.rpartition("}")[2] == "channel"
        return False

    def doctype(self, name: str | None, pubid: str | None, system: str | None) -> None:
        raise MalformedDocument("it has a DOCTYPE")
