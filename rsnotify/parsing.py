"""The parser of strangers' XML: it tells a target what it reads, and fetches nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from lxml import etree

if TYPE_CHECKING:
    from lxml.etree import ParserTarget
    from lxml.etree._parser import CustomTargetParser

T = TypeVar("T")


def safe_parser(target: ParserTarget[T]) -> CustomTargetParser[T]:
    """Make a parser.

    Args:
        target: Is told what is read; its `doctype` has to refuse.
    """
    return etree.XMLParser(
        target=target,
        # Not False: libxml2 then leaves an ampersand in an attribute as "&#38;". There is
        # nothing else to resolve, as a DOCTYPE is refused.
        resolve_entities="internal",
        no_network=True,
        load_dtd=False,
        huge_tree=False,
        recover=False,
        remove_comments=True,
        remove_pis=True,
    )
