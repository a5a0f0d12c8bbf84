"""XML patches: the operations of RFC 5261, in a document of RFC 7351."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lxml import etree

from rsnotify_subscriber.patching.errors import PatchBudget, PatchError
from rsnotify_subscriber.patching.selectors import (
    AttributeNode,
    NamespaceNode,
    Node,
    NodeSelection,
    SelectedNode,
    TextSlot,
    attribute_name,
    is_element,
)
from rsnotify_subscriber.patching.trees import (
    XmlTree,
    insert,
    is_space,
    parse,
    remove,
    slot_at_end,
    slot_before,
)


def xml_patch(before: bytes, patch: bytes) -> bytes:
    """Apply an XML patch to a document without DOCTYPE; keep its declaration and outer white space.

    Raises:
        PatchError: It cannot be applied; `condition` is the name of the error in RFC 5261 §5.
    """
    tree, budget = XmlTree(before), PatchBudget()
    for element in parse(patch, "invalid-diff-format"):
        if is_element(element):
            budget.begin()
            _Operation(tree, element, budget).apply()
    return tree.write()


class _Operation:
    """One operation, which changes a tree, and moves the content of its element there."""

    def __init__(self, tree: XmlTree, element: Node, budget: PatchBudget) -> None:
        self._tree = tree
        self._element = element
        self._namespaces: dict[str | None, str] = element.nsmap
        self._selection = NodeSelection(tree.root, budget)

    def apply(self) -> None:
        name = etree.QName(self._element).localname
        operations: dict[str, Callable[[SelectedNode], None]] = {
            "add": self._add,
            "replace": self._replace,
            "remove": self._remove,
        }
        selector = self._element.get("sel")
        if name not in operations:
            raise PatchError(f"{name} is no operation", "invalid-diff-format")
        if selector is None:
            raise PatchError(f"{name} has no sel", "invalid-attribute-value")
        operations[name](self._selection.find(selector, self._namespaces))

    # The content of the operation

    def _text(self) -> str:
        if len(self._element):
            raise PatchError("it has nodes where only text can be", "invalid-node-types")
        return self._element.text or ""

    def _only_node(self, kind: object) -> Node:
        """Return the only node in it beside white space, if the node is of this kind."""
        nodes = list(self._element)
        texts = [self._element.text, *(node.tail for node in nodes)]
        if len(nodes) != 1 or not all(map(is_space, texts)) or _kind(nodes[0]) is not kind:
            raise PatchError("it does not have one node of the same type", "invalid-node-types")
        return nodes[0]

    # Adding (RFC 5261 §4.3)

    def _add(self, target: SelectedNode) -> None:
        kind = self._element.get("type")
        if kind is None:
            self._add_nodes(target)
        elif kind.startswith("@"):
            self._add_attribute(target, attribute_name(kind[1:], self._namespaces))
        elif kind.startswith("namespace::"):
            self._declare(_element(target), kind.partition("::")[2], self._text())
        else:
            raise PatchError(f"{kind!r} cannot be added", "invalid-attribute-value")

    def _add_attribute(self, target: SelectedNode, name: str) -> None:
        if _element(target).get(name) is not None:
            raise PatchError(f"the attribute {name} is there already")
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
            raise PatchError(f"{position!r} is no position", "invalid-attribute-value")

    def _add_beside(
        self, target: SelectedNode, text: str, nodes: Sequence[Node], *, after: bool
    ) -> None:
        if isinstance(target, TextSlot):
            insert(target, len(target.text) if after else 0, text, nodes)
        elif isinstance(target, tuple):
            raise PatchError("nothing stands beside an attribute", "invalid-patch-directive")
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
            raise PatchError(f"{space!r} is no value of ws", "invalid-attribute-value")
        if isinstance(target, (TextSlot, AttributeNode, NamespaceNode)):
            if space is not None:
                raise PatchError("ws is for nodes that text surrounds", "invalid-attribute-value")
            self._remove_detail(target)
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

    def _remove_detail(self, target: TextSlot | AttributeNode | NamespaceNode) -> None:
        if isinstance(target, TextSlot):
            target.put("")
        elif isinstance(target, AttributeNode):
            del target.element.attrib[target.name]
        else:
            self._tree.declare(target.element, target.prefix, None)

    # Attributes and namespaces

    def _set(self, attribute: AttributeNode) -> None:
        try:
            attribute.element.set(attribute.name, self._text())
        except ValueError as error:
            raise PatchError(str(error), "invalid-attribute-value") from None

    def _declare(self, element: Node, prefix: str, namespace: str) -> None:
        if not namespace:
            raise PatchError("a prefix cannot stand for no namespace", "invalid-namespace-uri")
        self._tree.declare(element, prefix, namespace)


def _kind(node: Node) -> object:
    return etree.Element if is_element(node) else node.tag


def _element(target: SelectedNode) -> Node:
    if isinstance(target, tuple) or not is_element(target):
        raise PatchError("it is for an element", "invalid-patch-directive")
    return target


def _add_beside_root(target: Node, text: str, nodes: Sequence[Node], *, after: bool) -> None:
    texts = [text, *(node.tail for node in nodes)]
    if any(map(is_element, nodes)) or not all(map(is_space, texts)):
        raise PatchError("only comments stand beside the root", "invalid-root-element-operation")
    for node in reversed(nodes) if after else nodes:
        (target.addnext if after else target.addprevious)(node)


def _remove_beside_root(node: Node) -> None:
    # lxml removes only from a parent, and here is none: so the node gets another parent.
    etree.Element("removed").append(node)


def _remove_space(slot: TextSlot) -> None:
    if not slot.text or not is_space(slot.text):
        raise PatchError("there is no white space to remove", "invalid-whitespace-directive")
    slot.put("")
