"""Links in the body of a page or a feed, for where no Link header says them.

A page has them as `link` elements in its head, where a visitor who may write into the page
cannot put one (WebSub §8.1). A feed has them as Atom's `link`, a Sitemap as `rs:ln`, below the
root or below RSS's `channel`: what an entry links to is not said of the whole.
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
_OF_THE_WHOLE = frozenset(
    {_ATOM + "feed", f"{{{SITEMAP_NS}}}urlset", f"{{{SITEMAP_NS}}}sitemapindex"}
)
if TYPE_CHECKING:
    # Only a type: at run time lxml calls the methods that it finds, and none else.
    _ParserTarget = etree.ParserTarget[None]
else:
    _ParserTarget = object


def html_links(text: str) -> Links:
    """Find the links in the head of a page.

    Args:
        text: The page, or its beginning.

    Returns:
        (relation, target) pairs in order, relations in lower case, targets as written.
    """
    page = _Page()
    parser = etree.HTMLParser(target=page, no_network=True, encoding="utf-8")
    parser.feed(text.encode(errors="replace"))
    parser.close()
    return page.found


def xml_links(body: bytes) -> Links:
    """Find the links of a feed or a Sitemap, as far as its XML can be read.

    Args:
        body: The document, or its beginning.

    Returns:
        (relation, target) pairs in order, relations in lower case, targets as written.
    """
    whole = _Whole()
    parser = safe_parser(whole)
    try:
        parser.feed(body)
    except etree.XMLSyntaxError:
        pass  # what was found before stands
    except MalformedDocument:
        return []
    return whole.found


class _Inside(ABC, _ParserTarget):
    """Finds links where they may stand; what lxml calls for each element."""

    def __init__(self) -> None:
        self.found: Links = []
        self._inside: list[str] = []

    def start(self, tag: str, attrib: Mapping[str, str]) -> None:
        if self._is_link(tag, self._inside):
            relations, target = attrib.get("rel", "").split(), attrib.get("href", "").strip()
            self.found += [(relation.lower(), target) for relation in relations if target]
        self._inside.append(tag)

    @abstractmethod
    def _is_link(self, tag: str, inside: list[str]) -> bool:
        """Tell whether an element inside these is a link that counts."""

    def end(self, tag: str) -> None:
        self._inside.pop()

    def close(self) -> None:
        return None


class _Page(_Inside):
    """Finds the links in the head of a page."""

    def _is_link(self, tag: str, inside: list[str]) -> bool:
        # Where no head is said, the parser says one.
        return tag == "link" and inside == ["html", "head"]


class _Whole(_Inside):
    """Finds the links that a feed or a Sitemap makes of itself."""

    def _is_link(self, tag: str, inside: list[str]) -> bool:
        match inside:
            case [root]:
                return tag in _LINKS and root in _OF_THE_WHOLE
            case [_, channel]:  # of RSS
                return tag in _LINKS and etree.QName(channel).localname == "channel"
        return False

    def doctype(self, name: str | None, pubid: str | None, system: str | None) -> None:
        raise MalformedDocument("it has a DOCTYPE")
