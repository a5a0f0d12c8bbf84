"""The parsers of untrusted XML. They never open a URL or a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar
from xml.parsers import expat

from lxml import etree

if TYPE_CHECKING:
    from lxml.etree import ParserTarget
    from lxml.etree._parser import CustomTargetParser

T = TypeVar("T")

_SAFE: dict[str, Any] = {
    # With False, libxml2 leaves an ampersand in an attribute as "&#38;". There is nothing else to
    # resolve, as a DOCTYPE is refused.
    "resolve_entities": "internal",
    "no_network": True,
    "load_dtd": False,
    "huge_tree": False,
    "recover": False,
    "remove_comments": True,
    "remove_pis": True,
}


def safe_parser(target: ParserTarget[T]) -> CustomTargetParser[T]:
    """Return an lxml parser for untrusted input; `doctype` of its target must raise an error."""
    return etree.XMLParser(target=target, **_SAFE)


def is_well_formed(data: bytes) -> bool:
    """Return whether libxml2 accepts a document of less than 10 MB that has no DOCTYPE."""
    try:
        etree.fromstring(data, etree.XMLParser(**_SAFE))
    except etree.XMLSyntaxError:
        return False
    return True


def expat_parser(separator: str) -> expat.XMLParserType:
    """Return an Expat parser that handles namespaces and parses all its input at once.

    Since version 2.6 Expat defers parsing a long token until its input has doubled, and
    `CurrentByteIndex` no longer shows how long that token is. The caller has to limit the length of
    a token, since Expat scans it from its beginning with each piece of input.

    The separator stands between the namespace and the name of an element.
    """
    parser = expat.ParserCreate(namespace_separator=separator)
    if hasattr(parser, "SetReparseDeferralEnabled"):  # Python 3.11.9, 3.12.3, 3.13
        parser.SetReparseDeferralEnabled(False)
    return parser
