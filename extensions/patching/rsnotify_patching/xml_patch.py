"""XML patches: the operations of RFC 5261, in a document of RFC 7351.

Selectors are limited to the part of XPath that RFC 5261 §4.1 allows. This module evaluates them
itself instead of using an XPath engine: names without a prefix are in the default namespace of the
patch, which XPath 1.0 does not support, and no selector can run forever.

lxml has no text nodes. It stores text at the start of an element or after a node. A `TextSlot`
represents such a position. An operation inserts nodes into a slot, and may split its text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from secrets import token_hex
from typing import Any, NamedTuple
from xml.sax.saxutils import quoteattr

from lxml import etree

from rsnotify.errors import PatchError
from rsnotify_patching.patch_budget import PatchBudget

#: An element, comment or processing instruction of lxml, whose types have no common base class.
Node = Any
#: Maps prefixes to namespaces.
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
    """A position for text: at the start of an element, or after a node (its tail)."""

    node: Node
    is_tail: bool

    @property
    def text(self) -> str:
        return (self.node.tail if self.is_tail else self.node.text) or ""

    def put(self, text: str) -> None:
        if self.is_tail:
            self.node.tail = text or None
        else:
            self.node.text = text or None


class AttributeNode(NamedTuple):
    """An attribute, identified by its Clark name."""

    element: Node
    name: str


class NamespaceNode(NamedTuple):
    element: Node
    prefix: str


SelectedNode = Node | TextSlot | AttributeNode | NamespaceNode


def is_element(node: Node) -> bool:
    """Return whether a node is an element rather than a comment or processing instruction."""
    return isinstance(node.tag, str)


def clark_name(name: str, namespaces: Namespaces, default: str | None = None) -> str:
    """Return the Clark name for a qualified name in a selector (RFC 5261 §4.2.1).

    A name without a prefix is in the `default` namespace, which attributes do not have.
    """
    prefix, colon, local = name.rpartition(":")
    namespace = default
    if colon:
        namespace = "http://www.w3.org/XML/1998/namespace"
        if prefix != "xml" and (namespace := namespaces.get(prefix)) is None:
            raise PatchError(f"the prefix {prefix} is not declared", "invalid-namespace-prefix")
    return local if namespace is None else f"{{{namespace}}}{local}"


def top_level(root: Node) -> list[Node]:
    """Return the root, and the comments and processing instructions before and after it."""
    return [*reversed(list(root.itersiblings(preceding=True))), root, *root.itersiblings()]


class NodeSelection:
    def __init__(self, root: Node, budget: PatchBudget) -> None:
        self._root = root
        self._budget = budget

    def find(self, selector: str, namespaces: Namespaces) -> SelectedNode:
        """Return the only node that a selector matches.

        Raises:
            PatchError: The selector is invalid, or does not match exactly one node.
        """
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
            reason = f"{selector!r} matches {len(found)} nodes instead of one"
            raise PatchError(reason, "unlocated-node")
        return found[0]

    def _step(
        self, parent: SelectedNode, step: re.Match[str], names: Namespaces
    ) -> list[SelectedNode]:
        if isinstance(parent, tuple) or (parent is not None and not is_element(parent)):
            return []  # only elements have children
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
            name = clark_name(test[1:], names)
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
            yield from top_level(self._root)
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
            return bool(node.get(clark_name(name[1:], names)) == value)
        if name == ".":
            return self._string(node) == value
        fits = _node_test(name, names)
        return any(fits(one) and self._string(one) == value for one in self._children(node))

    def _string(self, element: Node) -> str:
        """Return the string value of an element, as defined in XPath 1.0 §5.2."""
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
    name = clark_name(test, names, names.get(None) or None)
    return lambda node: bool(node.tag == name)


_BEFORE_ROOT = re.compile(rb"(?:\xef\xbb\xbf)?(?:<\?xml\s[^>]*\?>)?\s*")
_SPACE = " \t\r\n"


def parse(text: str | bytes, condition: str) -> Node:
    """Parse a document without a DOCTYPE, and return its root.

    Raises:
        PatchError: The document is not well-formed, which is reported as `condition`, or it has a
            DOCTYPE.
    """
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, strip_cdata=False
    )
    try:
        root = etree.fromstring(text, parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise PatchError(f"it is not well-formed XML: {error}", condition) from None
    if root.getroottree().docinfo.internalDTD is not None:
        raise PatchError("a DOCTYPE is not accepted", "invalid-entity-declaration")
    return root


def is_space(text: str | None) -> bool:
    return not (text or "").strip(_SPACE)


def slot_before(node: Node) -> TextSlot:
    """Return the slot of the text before a node, which must not be the root."""
    previous = node.getprevious()
    return TextSlot(node.getparent(), False) if previous is None else TextSlot(previous, True)


def slot_at_end(element: Node) -> TextSlot:
    return TextSlot(element[-1], True) if len(element) else TextSlot(element, False)


def insert(slot: TextSlot, at: int, text: str, nodes: Sequence[Node]) -> None:
    """Insert text, and nodes with their trailing text, after `at` characters of a slot."""
    head, rest = slot.text[:at], slot.text[at:]
    if not nodes:
        slot.put(head + text + rest)
        return
    slot.put("")
    for node in reversed(nodes):
        if slot.is_tail:
            slot.node.addnext(node)
        else:
            slot.node.insert(0, node)
    slot.put(head + text)
    nodes[-1].tail = (nodes[-1].tail or "") + rest or None


def remove(node: Node) -> None:
    """Remove a node, but keep the text after it."""
    slot = slot_before(node)
    slot.put(slot.text + (node.tail or ""))
    node.tail = None
    node.getparent().remove(node)


class XmlTree:
    """A document, with the details needed to write it in its original form."""

    def __init__(self, text: bytes) -> None:
        self.root = parse(text, "invalid-patch-directive")
        self._encoding = self.root.getroottree().docinfo.encoding or "UTF-8"
        self._head = _BEFORE_ROOT.match(text)[0]  # type: ignore[index]  # it always matches
        self._end = text[len(text.rstrip()) :]

    def write(self) -> bytes:
        """Return the document, with its original XML declaration and surrounding white space."""
        return self._head + self._serialize(self._encoding) + self._end

    def _serialize(self, encoding: str) -> bytes:
        return b"\n".join(
            etree.tostring(node, encoding=encoding, xml_declaration=False, with_tail=False)
            for node in top_level(self.root)
        )

    def replace_root(self, new: Node) -> None:
        """Replace the root, but keep the comments before and after it."""
        nodes = top_level(self.root)
        place = nodes.index(self.root)
        new.getparent().remove(new)
        new.tail = None
        for node in nodes[:place]:
            new.addprevious(node)
        for node in reversed(nodes[place + 1 :]):
            new.addnext(node)
        self.root = new

    def declare(self, element: Node, prefix: str, namespace: str | None) -> None:
        """Change an element's declaration of a prefix, or remove it if `namespace` is None.

        lxml cannot change a declaration, so this method changes the text and parses it again. If
        the removed declaration was in use, the text is no longer well-formed.

        Raises:
            PatchError: The prefix is in use.
        """
        mark = f"mark-{token_hex(16)}"
        element.set(mark, "")
        text = self._serialize("UTF-8").decode()
        head, rest = text.split(f' {mark}=""', 1)
        begin = head.rindex("<")  # `<` is escaped in attribute values
        tag = re.sub(rf"\sxmlns:{re.escape(prefix)}=(\"[^\"]*\"|'[^']*')", "", head[begin:])
        if namespace is not None:
            tag += f" xmlns:{prefix}={quoteattr(namespace)}"
        self.root = parse(head[:begin] + tag + rest, "invalid-namespace-prefix")


def xml_patch(before: bytes, patch: bytes) -> bytes:
    """Apply an XML patch to a document without a DOCTYPE.

    The result keeps the document's XML declaration and surrounding white space.

    Raises:
        PatchError: The patch cannot be applied. `condition` is the error's name in RFC 5261 §5.
    """
    tree, budget = XmlTree(before), PatchBudget()
    for element in parse(patch, "invalid-diff-format"):
        if is_element(element):
            budget.begin()
            _Operation(tree, element, budget).apply()
    return tree.write()


class _Operation:
    """An operation, which changes a tree and moves the content of the patch element into it."""

    def __init__(self, tree: XmlTree, element: Node, budget: PatchBudget) -> None:
        self._tree = tree
        self._element = element
        self._namespaces: dict[str | None, str] = element.nsmap
        self._selection = NodeSelection(tree.root, budget)

    def apply(self) -> None:
        name = etree.QName(self._element).localname
        operations = {"add": self._add, "replace": self._replace, "remove": self._remove}
        selector = self._element.get("sel")
        if name not in operations:
            raise PatchError(f"{name} is not an operation", "invalid-diff-format")
        if selector is None:
            raise PatchError(f"{name} has no sel", "invalid-attribute-value")
        operations[name](self._selection.find(selector, self._namespaces))

    # The content of the operation

    def _text(self) -> str:
        if len(self._element):
            raise PatchError("it contains nodes, but only text is allowed", "invalid-node-types")
        return self._element.text or ""

    def _only_node(self, kind: object) -> Node:
        """Return the operation's only node, which must be of this kind.

        Raises:
            PatchError: The content, apart from white space, is not a single such node.
        """
        nodes = list(self._element)
        texts = [self._element.text, *(node.tail for node in nodes)]
        if len(nodes) != 1 or not all(map(is_space, texts)) or _kind(nodes[0]) is not kind:
            reason = "it must contain exactly one node, of the type of the target"
            raise PatchError(reason, "invalid-node-types")
        return nodes[0]

    # Adding (RFC 5261 §4.3)

    def _add(self, target: SelectedNode) -> None:
        kind = self._element.get("type")
        if kind is None:
            self._add_nodes(target)
        elif kind.startswith("@"):
            self._add_attribute(target, clark_name(kind[1:], self._namespaces))
        elif kind.startswith("namespace::"):
            self._declare(_element(target), kind.partition("::")[2], self._text())
        else:
            raise PatchError(f"{kind!r} cannot be added", "invalid-attribute-value")

    def _add_attribute(self, target: SelectedNode, name: str) -> None:
        if _element(target).get(name) is not None:
            raise PatchError(f"the attribute {name} already exists")
        self._set(AttributeNode(target, name))

    def _add_nodes(self, target: SelectedNode) -> None:
        position = self._element.get("pos")
        text, nodes = self._element.text or "", list(self._element)
        if position is None:
            end = slot_at_end(_element(target))
            insert(end, len(end.text), text, nodes)
        elif position == "prepend":
            insert(TextSlot(_element(target), False), 0, text, nodes)
        elif position in ("before", "after"):
            self._add_beside(target, text, nodes, after=position == "after")
        else:
            raise PatchError(f"{position!r} is not a position", "invalid-attribute-value")

    def _add_beside(
        self, target: SelectedNode, text: str, nodes: Sequence[Node], *, after: bool
    ) -> None:
        if isinstance(target, TextSlot):
            insert(target, len(target.text) if after else 0, text, nodes)
        elif isinstance(target, tuple):
            reason = "nodes cannot be added next to an attribute or namespace"
            raise PatchError(reason, "invalid-patch-directive")
        elif target.getparent() is None:
            _add_beside_root(target, text, nodes, after=after)
        elif after:
            insert(TextSlot(target, True), 0, text, nodes)
        else:
            slot = slot_before(target)
            insert(slot, len(slot.text), text, nodes)

    # Replacing (RFC 5261 §4.4)

    def _replace(self, target: SelectedNode) -> None:
        if isinstance(target, TextSlot):
            target.put(self._text())
        elif isinstance(target, AttributeNode):
            self._set(target)
        elif isinstance(target, NamespaceNode):
            self._declare(target.element, target.prefix, self._text())
        else:
            self._replace_node(target, self._only_node(_kind(target)))

    def _replace_node(self, target: Node, new: Node) -> None:
        if target is self._tree.root:
            self._tree.replace_root(new)
        elif target.getparent() is None:
            target.addnext(new)
            _remove_beside_root(target)
        else:
            new.tail = target.tail
            target.getparent().replace(target, new)

    # Removing (RFC 5261 §4.5)

    def _remove(self, target: SelectedNode) -> None:
        space = self._element.get("ws")
        if space not in (None, "before", "after", "both"):
            raise PatchError(f"{space!r} is not a value of ws", "invalid-attribute-value")
        if isinstance(target, (TextSlot, AttributeNode, NamespaceNode)):
            if space is not None:
                reason = "ws is not allowed for text, attributes and namespaces"
                raise PatchError(reason, "invalid-attribute-value")
            if isinstance(target, TextSlot):
                target.put("")
            elif isinstance(target, AttributeNode):
                del target.element.attrib[target.name]
            else:
                self._tree.declare(target.element, target.prefix, None)
        elif target is self._tree.root:
            raise PatchError("the root cannot be removed", "invalid-root-element-operation")
        elif target.getparent() is None:
            _remove_beside_root(target)
        else:
            if space in ("before", "both"):
                _remove_space(slot_before(target))
            if space in ("after", "both"):
                _remove_space(TextSlot(target, True))
            remove(target)

    # Attributes and namespaces

    def _set(self, attribute: AttributeNode) -> None:
        try:
            attribute.element.set(attribute.name, self._text())
        except ValueError as error:
            raise PatchError(str(error), "invalid-attribute-value") from None

    def _declare(self, element: Node, prefix: str, namespace: str) -> None:
        if not namespace:
            raise PatchError("the namespace is empty", "invalid-namespace-uri")
        self._tree.declare(element, prefix, namespace)


def _kind(node: Node) -> object:
    return etree.Element if is_element(node) else node.tag


def _element(target: SelectedNode) -> Node:
    if isinstance(target, tuple) or not is_element(target):
        raise PatchError("the target must be an element", "invalid-patch-directive")
    return target


def _add_beside_root(target: Node, text: str, nodes: Sequence[Node], *, after: bool) -> None:
    texts = [text, *(node.tail for node in nodes)]
    if any(map(is_element, nodes)) or not all(map(is_space, texts)):
        reason = "only comments and processing instructions can be next to the root"
        raise PatchError(reason, "invalid-root-element-operation")
    for node in reversed(nodes) if after else nodes:
        (target.addnext if after else target.addprevious)(node)


def _remove_beside_root(node: Node) -> None:
    # lxml can only remove a node from a parent, which this node lacks, so move it to a new element.
    etree.Element("removed").append(node)


def _remove_space(slot: TextSlot) -> None:
    if not slot.text or not is_space(slot.text):
        raise PatchError("there is no white space to remove", "invalid-whitespace-directive")
    slot.put("")
