"""The selectors of XML patches: the part of XPath that RFC 5261 §4.1 allows, and no more.

They are evaluated here rather than by an XPath engine: names without a prefix are in the default
namespace of the patch, which XPath 1.0 does not support, and no selector can run forever.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from lxml import etree

from rsnotify_subscriber.patching.errors import PatchBudget, PatchError

#: An element, comment or processing instruction of lxml, whose types know no common base.
Node = Any
#: The namespaces by prefix.
Namespaces = Mapping[str | None, str]

_NAME = r"[^\W\d][\w.\-]*"
_QNAME = rf"(?:{_NAME}:)?{_NAME}"
_QUOTED = r"(?:'[^']*'|\"[^\"]*\")"
_STEP = re.compile(
    rf"(?P<test>@{_QNAME}|namespace::{_NAME}|text\(\)|comment\(\)"
    rf"|processing-instruction\({_QUOTED}?\)|id\({_QUOTED}\)|{_QNAME}|\*)"
    rf"(?P<predicates>(?:\[(?:[0-9]+|(?:@?{_QNAME}|\.)={_QUOTED})\])*)(?P<end>/|$)"
)
_PREDICATE = re.compile(rf"\[(?:([0-9]+)|(@?{_QNAME}|\.)=({_QUOTED}))\]")
_XML_ID = "{http://www.w3.org/XML/1998/namespace}id"


class TextSlot(NamedTuple):
    """A position for text: at the beginning of an element, or behind a node."""

    node: Node
    behind: bool

    @property
    def text(self) -> str:
        return (self.node.tail if self.behind else self.node.text) or ""

    def put(self, text: str) -> None:
        if self.behind:
            self.node.tail = text or None
        else:
            self.node.text = text or None


class AttributeNode(NamedTuple):
    """An attribute, by its Clark name."""

    element: Node
    name: str


class NamespaceNode(NamedTuple):
    element: Node
    prefix: str


SelectedNode = Node | TextSlot | AttributeNode | NamespaceNode


def is_element(node: Node) -> bool:
    """Return whether a node is an element, and not a comment or processing instruction."""
    return isinstance(node.tag, str)


def element_name(name: str, namespaces: Namespaces) -> str:
    """Return the Clark name of an element; without a prefix it is in the default namespace."""
    return _clark(name, namespaces, namespaces.get(None) or None)


def attribute_name(name: str, namespaces: Namespaces) -> str:
    """Return the Clark name of an attribute; without a prefix it is in no namespace."""
    return _clark(name, namespaces, None)


def _clark(name: str, namespaces: Namespaces, default: str | None) -> str:
    """Return the Clark name for a qualified name of a selector (RFC 5261 §4.2.1)."""
    prefix, colon, local = name.rpartition(":")
    namespace = default
    if colon:
        namespace = "http://www.w3.org/XML/1998/namespace"
        if prefix != "xml" and (namespace := namespaces.get(prefix)) is None:
            raise PatchError(f"the prefix {prefix} stands for nothing", "invalid-namespace-prefix")
    return local if namespace is None else f"{{{namespace}}}{local}"


class NodeSelection:
    def __init__(self, root: Node, budget: PatchBudget) -> None:
        self._root = root
        self._budget = budget

    def find(self, selector: str, namespaces: Namespaces) -> SelectedNode:
        """Return the only node that a selector leads to; PatchError if there is none or several."""
        found: list[SelectedNode] = [None]  # the document, which is the parent of the root
        position = 1 if selector.startswith("/") else 0
        while True:
            step = _STEP.match(selector, position)
            if step is None or (step["end"] and step.end() == len(selector)):
                raise PatchError(f"{selector!r} is not a selector", "invalid-attribute-value")
            found = [one for parent in found for one in self._step(parent, step, namespaces)]
            if not step["end"]:
                break
            position = step.end()
        if len(found) != 1:
            reason = f"{selector!r} leads to {len(found)} nodes, not to one"
            raise PatchError(reason, "unlocated-node")
        return found[0]

    def _step(
        self, parent: SelectedNode, step: re.Match[str], names: Namespaces
    ) -> list[SelectedNode]:
        if isinstance(parent, tuple) or (parent is not None and not is_element(parent)):
            return []  # text, attributes and the like have nothing below them
        found = list(self._axis(parent, step["test"], names))
        for index, name, quoted in _PREDICATE.findall(step["predicates"]):
            if index:
                found = found[int(index) - 1 : int(index)] if int(index) else []
            else:
                found = [one for one in found if self._equals(one, name, quoted[1:-1], names)]
        return found

    def _axis(self, parent: Node, test: str, names: Namespaces) -> Iterator[SelectedNode]:
        if test == "text()":
            yield from self._texts(parent)
        elif test.startswith("@"):
            name = attribute_name(test[1:], names)
            if parent is not None and parent.get(name) is not None:
                yield AttributeNode(parent, name)
        elif test.startswith("namespace::"):
            prefix = test.partition("::")[2]
            if parent is not None and _declares(parent, prefix):
                yield NamespaceNode(parent, prefix)
        elif test.startswith("id("):
            everywhere = self._all() if parent is None else ()
            yield from (one for one in everywhere if one.get(_XML_ID) == test[4:-2])
        else:
            fits = _node_test(test, names)
            yield from (one for one in self._children(parent) if fits(one))

    def _children(self, parent: Node) -> Iterator[Node]:
        if parent is None:
            yield from reversed(list(self._root.itersiblings(preceding=True)))
            yield self._root
            yield from self._root.itersiblings()
            return
        for child in parent:
            self._budget.spend()
            yield child

    def _all(self) -> Iterator[Node]:
        for node in self._root.iter(etree.Element):
            self._budget.spend()
            yield node

    def _texts(self, parent: Node) -> Iterator[TextSlot]:
        if parent is None:
            return
        if parent.text:
            yield TextSlot(parent, False)
        for child in self._children(parent):
            if child.tail:
                yield TextSlot(child, True)

    def _equals(self, node: SelectedNode, name: str, value: str, names: Namespaces) -> bool:
        if isinstance(node, TextSlot):
            return name == "." and node.text == value
        if node is None or isinstance(node, tuple) or not is_element(node):
            return False
        if name.startswith("@"):
            return bool(node.get(attribute_name(name[1:], names)) == value)
        if name == ".":
            return self._string(node) == value
        fits = _node_test(name, names)
        return any(fits(one) and self._string(one) == value for one in self._children(node))

    def _string(self, element: Node) -> str:
        """Return the string value of an element, as XPath 1.0 §5.2 has it."""
        parts = [element.text or ""]
        for node in element.iterdescendants():
            self._budget.spend()
            parts.append((node.text or "") if is_element(node) else "")
            parts.append(node.tail or "")
        return "".join(parts)


def _declares(element: Node, prefix: str) -> bool:
    above = element.getparent()
    outer = None if above is None else above.nsmap.get(prefix)
    return prefix in element.nsmap and element.nsmap[prefix] != outer


def _node_test(test: str, names: Namespaces) -> Callable[[Node], bool]:
    if test == "*":
        return is_element
    if test == "comment()":
        return lambda node: node.tag is etree.Comment
    if test.startswith("processing-instruction("):
        target = test.partition("(")[2][1:-2]
        return lambda node: node.tag is etree.PI and target in ("", node.target)
    name = element_name(test, names)
    return lambda node: bool(node.tag == name)
