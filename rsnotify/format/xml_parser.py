"""Parsers for untrusted XML, and limits for its size. The parsers never open URLs or files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar
from xml.parsers import expat

from lxml import etree
from msgspec import Struct

T = TypeVar("T")

if TYPE_CHECKING:
    from lxml.etree import ParserTarget as ParserTarget
    from lxml.etree._parser import CustomTargetParser
else:

    class ParserTarget(Generic[T]):
        """The base class of parser targets, for type checking. lxml calls the methods it finds."""


class DocumentLimits(Struct, frozen=True):
    """The limits beyond which the reader refuses a document, to protect memory and time.

    They are higher than those of the specification (50,000 entries and 50 MB, core §7), so that a
    slightly oversized list can still be read. Limits per entry also apply to everything outside of
    entries.

    Args:
        document_bytes: Bytes of XML, after decompression.
        entries: `<url>` or `<sitemap>` elements.
        entry_length: Characters of all attributes per entry.
        entry_elements: Elements of any kind per entry.
        uri_length: Characters of a URI or of an element's text, except a `data:` URI.
        inline_length: Characters of a `data:` URI in a link.
        links: `rs:ln` elements per entry.
        depth: Levels of elements below an ignored element.
    """

    document_bytes: int = 100_000_000
    entries: int = 200_000
    entry_length: int = 4_000_000
    entry_elements: int = 10_000
    uri_length: int = 8_192
    inline_length: int = 1_000_000
    links: int = 1_000
    depth: int = 100


DEFAULT_LIMITS = DocumentLimits()

_SAFE: dict[str, Any] = {
    # With False, libxml2 returns an ampersand in an attribute as "&#38;". There are no other
    # entities to resolve, because a DOCTYPE is refused.
    "resolve_entities": "internal",
    "no_network": True,
    "load_dtd": False,
    "huge_tree": False,
    "recover": False,
    "remove_comments": True,
    "remove_pis": True,
}


def safe_parser(target: ParserTarget[T]) -> CustomTargetParser[T]:
    """Return an lxml parser for untrusted input. The target's `doctype` method must raise."""
    return etree.XMLParser(target=target, **_SAFE)


class _NoTarget(ParserTarget[None]):
    """Ignores everything, which is twice as fast as building a tree."""

    def close(self) -> None: ...


def is_well_formed(data: bytes) -> bool:
    """Return whether libxml2 accepts a document of less than 10 MB that has no DOCTYPE."""
    parser = safe_parser(_NoTarget())
    try:
        parser.feed(data)
        parser.close()
    except etree.XMLSyntaxError:
        return False
    return len(parser.feed_error_log) == 0  # the log contains namespace errors


def expat_parser(separator: str) -> expat.XMLParserType:
    """Return an Expat parser that handles namespaces and parses all its input at once.

    By default, Expat 2.6 and later defer parsing a long token until the input has doubled. Then
    `CurrentByteIndex` does not show the length of the token, which the caller must limit, because
    Expat scans a token from its beginning with each piece of input.

    `separator` separates the namespace from the name of an element.
    """
    parser = expat.ParserCreate(namespace_separator=separator)
    if hasattr(parser, "SetReparseDeferralEnabled"):  # since Python 3.11.9, 3.12.3, 3.13
        parser.SetReparseDeferralEnabled(False)
    return parser
