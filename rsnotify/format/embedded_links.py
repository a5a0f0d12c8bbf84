"""Links in the body of a page or a feed, for servers that send no Link header.

A page has `link` elements in its head, where visitors who may write into the page cannot put one
(WebSub §8.1). A feed has Atom's `link`, and a Sitemap has `rs:ln`, below the root or below RSS's
`channel`. The links of single entries do not count.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lxml import etree

from rsnotify.errors import MalformedDocument
from rsnotify.format.vocabulary import RS_NS, SITEMAP_NS
from rsnotify.format.xml_parser import safe_parser

Links = list[tuple[str, str]]

_ATOM = "{http://www.w3.org/2005/Atom}"
_LINKS = frozenset({_ATOM + "link", f"{{{RS_NS}}}ln"})
_FEED_ROOTS = frozenset(
    {_ATOM + "feed", f"{{{SITEMAP_NS}}}urlset", f"{{{SITEMAP_NS}}}sitemapindex"}
)
if TYPE_CHECKING:
    # Only for typing: at run time lxml calls the methods that exist.
    _ParserTarget = etree.ParserTarget[None]
else:
    _ParserTarget = object


def html_links(text: str) -> Links:
    """Return the links in the head of a page, or of its beginning.

    They are (relation, target) pairs in order, relations in lower case, targets as written.
    """
    page = _Page()
    parser = etree.HTMLParser(target=page, no_network=True, encoding="utf-8")
    parser.feed(text.encode(errors="replace"))
    parser.close()
    return page.found


def xml_links(body: bytes) -> Links:
    """Return the links of a feed or a Sitemap, as `html_links`, as far as its XML can be read."""
    feed = _Feed()
    parser = safe_parser(feed)
    try:
        parser.feed(body)
    except etree.XMLSyntaxError:
        pass  # the links before the error count
    except MalformedDocument:
        return []
    return feed.found


class _LinkFinder(ABC, _ParserTarget):
    def __init__(self) -> None:
        self.found: Links = []
        self._ancestors: list[str] = []

    def start(self, tag: str, attrib: Mapping[str, str]) -> None:
        if self._is_link(tag, self._ancestors):
            relations, target = attrib.get("rel", "").split(), attrib.get("href", "").strip()
            self.found += [(relation.lower(), target) for relation in relations if target]
        self._ancestors.append(tag)

    @abstractmethod
    def _is_link(self, tag: str, ancestors: list[str]) -> bool:
        """Return whether an element below these is a link that counts."""

    def end(self, tag: str) -> None:
        self._ancestors.pop()

    def close(self) -> None:
        return None


class _Page(_LinkFinder):
    def _is_link(self, tag: str, ancestors: list[str]) -> bool:
        # The parser adds a head to a page without one.
        return tag == "link" and ancestors == ["html", "head"]


class _Feed(_LinkFinder):
    def _is_link(self, tag: str, ancestors: list[str]) -> bool:
        match ancestors:
            case [root]:
                return tag in _LINKS and root in _FEED_ROOTS
            case [_, channel]:  # of RSS
                return tag in _LINKS and channel.rpartition("}")[2] == "channel"
        return False

    def doctype(self, name: str | None, pubid: str | None, system: str | None) -> None:
        raise MalformedDocument("it has a DOCTYPE")
