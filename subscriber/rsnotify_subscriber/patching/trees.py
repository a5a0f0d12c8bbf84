"""An XML document that is being changed.

lxml has no nodes for text: it stands at the beginning of an element or behind a node, in a
`TextSlot`. What is added goes into a slot, and may divide the text that stands there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from secrets import token_hex
from xml.sax.saxutils import quoteattr

from lxml import etree

from rsnotify_subscriber.patching.errors import PatchError
from rsnotify_subscriber.patching.selectors import Node, TextSlot

_BEFORE_ROOT = re.compile(rb"(?:\xef\xbb\xbf)?(?:<\?xml\s[^>]*\?>)?\s*")
_SPACE = " \t\r\n"


def parse(text: str | bytes, condition: str) -> Node:
    """Parse a document without DOCTYPE, and return its root; `condition` is that of the error."""
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, strip_cdata=False
    )
    try:
        root = etree.fromstring(text, parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise PatchError(f"it is no XML document: {error}", condition) from None
    if root.getroottree().docinfo.internalDTD is not None:
        raise PatchError("a DOCTYPE is not accepted", "invalid-entity-declaration")
    return root


def is_space(text: str | None) -> bool:
    return not (text or "").strip(_SPACE)


def slot_before(node: Node) -> TextSlot:
    """Return where the text in front of a node stands; it may not be the root."""
    previous = node.getprevious()
    return TextSlot(node.getparent(), False) if previous is None else TextSlot(previous, True)


def slot_at_end(element: Node) -> TextSlot:
    return TextSlot(element[-1], True) if len(element) else TextSlot(element, False)


def insert(slot: TextSlot, at: int, text: str, nodes: Sequence[Node]) -> None:
    """Put text, and nodes with the text behind them, after `at` characters of a slot."""
    head, rest = slot.text[:at], slot.text[at:]
    if not nodes:
        slot.put(head + text + rest)
        return
    slot.put("")
    for node in reversed(nodes):
        if slot.behind:
            slot.node.addnext(node)
        else:
            slot.node.insert(0, node)
    slot.put(head + text)
    nodes[-1].tail = (nodes[-1].tail or "") + rest or None


def remove(node: Node) -> None:
    """Remove a node, and leave the text behind it."""
    slot = slot_before(node)
    slot.put(slot.text + (node.tail or ""))
    node.tail = None
    node.getparent().remove(node)


class XmlTree:
    """A document, and how it was written."""

    def __init__(self, text: bytes) -> None:
        self.root = parse(text, "invalid-patch-directive")
        self._encoding = self.root.getroottree().docinfo.encoding or "UTF-8"
        self._head = _BEFORE_ROOT.match(text)[0]  # type: ignore[index]  # it matches nothing, too
        self._end = text[len(text.rstrip()) :]

    def write(self) -> bytes:
        """Return the document, with its XML declaration and the white space around it."""
        return self._head + self._shown(self._encoding) + self._end

    def _shown(self, encoding: str) -> bytes:
        around = list(self.root.itersiblings(preceding=True))[::-1]
        around += [self.root, *self.root.itersiblings()]
        return b"\n".join(
            etree.tostring(node, encoding=encoding, xml_declaration=False, with_tail=False)
            for node in around
        )

    def replace_root(self, new: Node) -> None:
        """Replace the root, between the same comments."""
        before = list(self.root.itersiblings(preceding=True))[::-1]
        after = list(self.root.itersiblings())
        new.getparent().remove(new)
        new.tail = None
        for node in before:
            new.addprevious(node)
        for node in reversed(after):
            new.addnext(node)
        self.root = new

    def declare(self, element: Node, prefix: str, namespace: str | None) -> None:
        """Declare a prefix for another namespace, or for none, at an element.

        lxml cannot change a declaration. So the text is changed and parsed again: if a prefix that
        is in use has lost its declaration, the text is no longer well-formed.

        Raises:
            PatchError: The prefix is in use.
        """
        mark = f"mark-{token_hex(16)}"
        element.set(mark, "")
        text = self._shown("UTF-8").decode()
        head, rest = text.split(f' {mark}=""', 1)
        begin = head.rindex("<")  # attributes have it escaped
        tag = re.sub(rf"\sxmlns:{re.escape(prefix)}=(\"[^\"]*\"|'[^']*')", "", head[begin:])
        if namespace is not None:
            tag += f" xmlns:{prefix}={quoteattr(namespace)}"
        self.root = parse(head[:begin] + tag + rest, "invalid-namespace-prefix")
