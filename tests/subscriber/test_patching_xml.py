"""XML patches (RFC 5261, RFC 7351)."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any
from xml.sax.saxutils import escape, quoteattr

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from rsnotify.errors import PatchError
from rsnotify_patching import xml_patch as xml
from rsnotify_patching.patch_budget import PatchBudget
from rsnotify_patching.xml_patch import xml_patch
from tests.examples_count import examples

NOTE = '<doc>\n  <note>This is a sample document</note>\n  <foo id="ert4773">Old</foo>\n</doc>'
FOO = '<doc>\n  <foo a="1">This is a sample document</foo>\n</doc>'

#: The examples of RFC 5261, appendix A, one for each section: before, operation, after.
EXAMPLES = {
    "A.1 element": (
        "<doc>\n  <note>This is a sample document</note>\n</doc>",
        '<add sel="doc"><foo id="ert4773">This is a new child</foo></add>',
        "<doc>\n  <note>This is a sample document</note>\n"
        '<foo id="ert4773">This is a new child</foo></doc>',
    ),
    "A.2 attribute": (NOTE, '<add sel="doc/foo[@id=\'ert4773\']" type="@user">Bob</add>',
        NOTE.replace('id="ert4773"', 'id="ert4773" user="Bob"')),
    "A.3 prefix": (NOTE, '<add sel="doc" type="namespace::pref">urn:ns:xxx</add>',
        NOTE.replace("<doc>", '<doc xmlns:pref="urn:ns:xxx">')),
    "A.4 comment": (NOTE, '<add sel="doc/foo[@id=\'ert4773\']" pos="before"><!-- comment --></add>',
        NOTE.replace("<foo", "<!-- comment --><foo")),
    "A.5 several nodes": (
        "<doc>\n  <note>This is a sample document</note>\n</doc>",
        '<add sel="doc">\n  <foo id="ert4773">This is a new child</foo></add>',
        "<doc>\n  <note>This is a sample document</note>\n\n"
        '  <foo id="ert4773">This is a new child</foo></doc>',
    ),
    "A.6 element replaced": (FOO, '<replace sel="doc/foo[@a=\'1\']"><bar a="2"/></replace>',
        '<doc>\n  <bar a="2"/>\n</doc>'),
    "A.7 attribute replaced": ('<doc a="test">x</doc>', '<replace sel="doc/@a">new value</replace>',
        '<doc a="new value">x</doc>'),
    "A.8 namespace replaced": ('<doc xmlns:pref="urn:test"><pref:foo pref:a="1"/></doc>',
        '<replace sel="doc/namespace::pref">urn:new:xxx</replace>',
        '<doc xmlns:pref="urn:new:xxx"><pref:foo pref:a="1"/></doc>'),
    "A.9 comment replaced": ("<doc><foo/><!-- comment --></doc>",
        '<replace sel="doc/comment()[1]"><!-- This is the new content --></replace>',
        "<doc><foo/><!-- This is the new content --></doc>"),
    "A.10 instruction replaced": ('<doc><foo/><?test foo="bar"?>\n</doc>',
        '<replace sel=\'doc/processing-instruction("test")\'><?test bar="foobar"?></replace>',
        '<doc><foo/><?test bar="foobar"?>\n</doc>'),
    "A.11 text replaced": (FOO,
        '<replace sel="doc/foo/text()[1]">This is the new text content</replace>',
        FOO.replace("a sample document", "the new text content")),
    "A.12 element removed": (FOO, '<remove sel="doc/foo[@a=\'1\']" ws="after"/>',
        "<doc>\n  </doc>"),
    "A.13 attribute removed": ('<doc a="foo">x</doc>', '<remove sel="doc/@a"/>', "<doc>x</doc>"),
    "A.14 prefix removed": ('<doc>\n  <foo xmlns:pref="urn:test" a="1">x</foo>\n</doc>',
        '<remove sel="doc/foo/namespace::pref"/>', '<doc>\n  <foo a="1">x</foo>\n</doc>'),
    "A.15 comment removed": ("<doc>\n  <foo/>\n  <!-- comment -->\n</doc>",
        '<remove sel="doc/comment()[1]"/>', "<doc>\n  <foo/>\n  \n</doc>"),
    "A.16 instruction removed": ("<doc><foo/><?test?></doc>",
        "<remove sel='doc/processing-instruction(\"test\")'/>", "<doc><foo/></doc>"),
    "A.17 text removed": ("<doc><foo>gone</foo></doc>", '<remove sel="doc/foo/text()[1]"/>',
        "<doc><foo/></doc>"),
}  # fmt: skip


def patched(before: str, *operations: str) -> str:
    return xml_patch(before.encode(), f"<diff>{''.join(operations)}</diff>".encode()).decode()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_of_rfc_5261(name: str) -> None:
    before, operation, after = EXAMPLES[name]
    assert patched(before, operation) == after


def test_prefixes_and_default_namespace_are_those_of_the_patch() -> None:
    """A.18: the patch says `y` where the document says `z`, and its default is the same."""
    before = """<?xml version="1.0" encoding="UTF-8"?>
<doc xmlns="urn:test:xxx" xmlns:z="urn:test:yyy">
  <note>This is a sample document</note>
  <elem a="foo">
    <child/>
  </elem>
  <elem a="bar">
    <z:child/>
  </elem>
</doc>
"""
    patch = """<p:patch xmlns="urn:test:xxx" xmlns:y="urn:test:yyy" xmlns:p="urn:ietf:rfc:7351">
  <p:add sel="doc/elem[@a='foo']">  <!-- This is a new child -->
    <child id="ert4773">
      <y:node/>
    </child>
  </p:add>
  <p:replace sel="doc/note/text()">Patched doc</p:replace>
  <p:remove sel="*/elem[@a='bar']/y:child" ws="both"/>
  <p:add sel="*/elem[@a='bar']" type="@b">new attr</p:add>
</p:patch>"""
    after = """<?xml version="1.0" encoding="UTF-8"?>
<doc xmlns="urn:test:xxx" xmlns:z="urn:test:yyy">
  <note>Patched doc</note>
  <elem a="foo">
    <child/>
    <!-- This is a new child -->
    <child id="ert4773">
      <z:node/>
    </child>
  </elem>
  <elem a="bar" b="new attr"/>
</doc>
"""
    assert xml_patch(before.encode(), patch.encode()).decode() == after


DOC = "<doc><a>1</a>x<a k='v'>2</a><!--c-->y<b xml:id='i'><a>2</a></b></doc>"


@pytest.mark.parametrize(
    "selector",
    [
        "doc/a[2]", "/doc/a[2]", "/*/a[2]", "doc/a[@k='v']", 'doc/*[@k="v"][1]', "doc/a[.='2']",
        "doc/a[.='2'][1]",
    ],
)  # fmt: skip
def test_a_selector_may_say_it_in_several_ways(selector: str) -> None:
    operation = f"<replace sel={quoteattr(selector)}><z/></replace>"
    assert patched(DOC, operation) == DOC.replace("<a k='v'>2</a>", "<z/>").replace("'", '"')


@pytest.mark.parametrize("selector", ['doc/b[a="2"]', "id('i')", "doc/b[@xml:id='i']"])
def test_a_selector_reaches_by_child_and_by_id(selector: str) -> None:
    after = DOC[: DOC.index("<b")].replace("'", '"') + "</doc>"
    assert patched(DOC, f"<remove sel={quoteattr(selector)}/>") == after


def test_texts_are_counted_as_xpath_does() -> None:
    after = DOC.replace("'", '"').replace(">y<", ">z<")
    assert patched(DOC, '<replace sel="doc/text()[2]">z</replace>') == after


@pytest.mark.parametrize(
    ("operation", "condition"),
    [
        ('<remove sel="doc/none"/>', "unlocated-node"),
        ('<remove sel="doc/a"/>', "unlocated-node"),
        ('<remove sel="doc/a[0]"/>', "unlocated-node"),
        ('<remove sel="//a"/>', "invalid-attribute-value"),
        ('<remove sel="doc/"/>', "invalid-attribute-value"),
        ('<remove sel="doc/a[position()=1]"/>', "invalid-attribute-value"),
        ("<remove/>", "invalid-attribute-value"),
        ('<remove sel="p:doc"/>', "invalid-namespace-prefix"),
        ('<remove sel="doc"/>', "invalid-root-element-operation"),
        ('<add sel="doc" pos="after"><e/></add>', "invalid-root-element-operation"),
        ('<add sel="doc" pos="beside"><e/></add>', "invalid-attribute-value"),
        ('<add sel="doc" type="nothing">x</add>', "invalid-attribute-value"),
        ('<add sel="doc/a[2]" type="@k">x</add>', "invalid-patch-directive"),
        ('<add sel="doc/a[2]" type="@l"><e/></add>', "invalid-node-types"),
        ('<add sel="doc/text()[1]"><e/></add>', "invalid-patch-directive"),
        ('<add sel="doc" type="namespace::p"/>', "invalid-namespace-uri"),
        ('<replace sel="doc/b"><!--c--></replace>', "invalid-node-types"),
        ('<replace sel="doc/b"><e/><e/></replace>', "invalid-node-types"),
        ('<replace sel="doc/b">text<e/></replace>', "invalid-node-types"),
        ('<replace sel="doc/text()[1]"><e/></replace>', "invalid-node-types"),
        ('<remove sel="doc/b" ws="after"/>', "invalid-whitespace-directive"),
        ('<remove sel="doc/b" ws="before"/>', "invalid-whitespace-directive"),
        ('<remove sel="doc/b" ws="all"/>', "invalid-attribute-value"),
        ('<remove sel="doc/a[2]/@k" ws="both"/>', "invalid-attribute-value"),
        ('<move sel="doc/b"/>', "invalid-diff-format"),
    ],
)
def test_the_errors_of_rfc_5261(operation: str, condition: str) -> None:
    with pytest.raises(PatchError) as caught:
        patched(DOC, operation)
    assert caught.value.condition == condition


def test_a_prefix_in_use_cannot_lose_its_namespace() -> None:
    with pytest.raises(PatchError) as caught:
        patched('<doc xmlns:p="urn:x"><p:e/></doc>', '<remove sel="doc/namespace::p"/>')
    assert caught.value.condition == "invalid-namespace-prefix"


def test_what_stands_beside_the_root() -> None:
    before = "<!--a--><doc/><?b?>"
    assert patched(before, '<remove sel="comment()"/>') == "<doc/>\n<?b?>"
    added = patched(before, '<add sel="doc" pos="before"><!--x--><!--y--></add>')
    assert added.split() == ["<!--a-->", "<!--x-->", "<!--y-->", "<doc/>", "<?b?>"]
    replaced = patched(before, '<replace sel="doc"><new><e/></new></replace>')
    assert replaced.split() == ["<!--a-->", "<new><e/></new>", "<?b?>"]
    commented = patched(before, '<replace sel="comment()[1]"><!--z--></replace>')
    assert commented.split() == ["<!--z-->", "<doc/>", "<?b?>"]


@pytest.mark.parametrize("encoding", ["UTF-8", "ISO-8859-1"])
def test_the_encoding_and_what_surrounds_the_root_stay_as_they_were(encoding: str) -> None:
    head = f"<?xml version='1.0'  encoding='{encoding}' ?>\r\n\n"
    before = f"{head}<doc><![CDATA[<ö>]]><e/></doc>\n".encode(encoding)
    after = f"{head}<doc><![CDATA[<ö>]]><e>ä</e></doc>\n".encode(encoding)
    assert xml_patch(before, '<diff><add sel="doc/e">ä</add></diff>'.encode()) == after


ENTITY = '<!DOCTYPE doc [<!ENTITY e SYSTEM "file:///etc/hostname">]><doc>&e;</doc>'


def test_a_doctype_is_refused_in_document_and_patch() -> None:
    for before, patch in ((ENTITY, "<diff/>"), ("<doc/>", ENTITY)):
        with pytest.raises(PatchError) as caught:
            xml_patch(before.encode(), patch.encode())
        assert caught.value.condition == "invalid-entity-declaration"


def test_what_is_not_well_formed_is_refused() -> None:
    for before, patch in (("<doc>", "<diff/>"), ("<doc/>", "<diff>")):
        with pytest.raises(PatchError):
            xml_patch(before.encode(), patch.encode())


def test_a_patch_cannot_take_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xml, "PatchBudget", partial(PatchBudget, 20_000))
    before = f"<doc>{'<a/>' * 1_000}</doc>"
    with pytest.raises(PatchError, match="takes longer"):
        patched(before, '<replace sel="doc/a[999]"><a/></replace>' * 25)
    assert patched(before, '<replace sel="doc/a[999]"><a/></replace>' * 15) == before


MANY = 100_000


def many(one: str) -> str:
    return "".join(one.format(number) for number in range(MANY))


@pytest.mark.parametrize(
    ("before", "operation"),
    [
        (lambda: f"<doc>{'x' * 3_000_000}</doc>", '<add sel="/doc">y</add>'),
        (
            lambda: f"<doc>{'x' * 900_000}</doc>",
            '<add sel="/doc" type="namespace::p">urn:y</add>',
        ),
        (lambda: "<doc/>", '<add sel="/doc" pos="before"><!--x--></add>'),
        (lambda: f"<doc>{'<a/>' * MANY}</doc>", '<add sel="/doc/a[99999]">y</add>'),
        (lambda: "<doc" + many(" a{}=''") + "/>", '<replace sel="/doc/@a99999">y</replace>'),
        (lambda: "<doc" + many(" xmlns:a{}='b'") + "/>", '<add sel="/doc">y</add>'),
    ],
    ids=["text", "prefixes", "comments", "elements", "attributes", "namespaces"],
)
def test_a_patch_of_many_operations_ends_soon_after_its_budget(
    before: Callable[[], str], operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a patch may take by default is tried with JSON.
    monkeypatch.setattr(xml, "PatchBudget", partial(PatchBudget, seconds=0.2))
    document, patch = before(), operation * MANY
    begun = time.thread_time()
    with pytest.raises(PatchError, match="takes longer"):
        patched(document, patch)
    assert time.thread_time() - begun < 5


# Any tree and any operation, against a model of lists: [name, attributes, children], where a
# child is such a list, or a text.

Tree = list[Any]
texts = st.text(alphabet="xy<&> \n", max_size=4)
names = st.sampled_from("abc")
attributes = st.dictionaries(names, texts.map(lambda text: text.replace("\n", " ")), max_size=2)
trees: Any = st.recursive(
    st.builds(lambda *parts: list(parts), names, attributes, st.lists(texts, max_size=1)),
    lambda inner: st.builds(
        lambda *parts: list(parts), names, attributes, st.lists(texts | inner, max_size=4)
    ),
    max_leaves=8,
)


def tidy(tree: Tree) -> Tree:
    """Join texts that stand together, as XML does not tell them apart."""
    children: list[Any] = []
    for child in tree[2]:
        if isinstance(child, str):
            if children and isinstance(children[-1], str):
                child = children.pop() + child
            if child:
                children.append(child)
        else:
            children.append(tidy(child))
    return [tree[0], tree[1], children]


def shown(tree: Tree | str) -> str:
    if isinstance(tree, str):
        return escape(tree)
    name, attributes, children = tree
    pairs = "".join(f" {key}={quoteattr(value)}" for key, value in attributes.items())
    return f"<{name}{pairs}>{''.join(map(shown, children))}</{name}>"


def canonical(text: str) -> str:
    return etree.canonicalize(text)


def places(tree: Tree, path: str) -> list[tuple[Tree, int, str]]:
    """Return (parent, index, selector) of every node below an element."""
    found = []
    text = element = 0
    for index, child in enumerate(tree[2]):
        if isinstance(child, str):
            text += 1
            found.append((tree, index, f"{path}/text()[{text}]"))
        else:
            element += 1
            selector = f"{path}/*[{element}]"
            found += [(tree, index, selector), *places(child, selector)]
    return found


@settings(max_examples=examples(60))
@given(trees, st.lists(texts | trees, max_size=3), st.data())
def test_any_operation_does_to_a_tree_what_it_does_to_the_model(
    tree: Tree, content: list[Any], data: st.DataObject
) -> None:
    tree = tidy(tree)
    before = shown(tree)
    kind = data.draw(st.sampled_from(["append", "prepend", "before", "after", "remove", "replace"]))
    inner = "".join(map(shown, content))
    if kind in ("append", "prepend") or len(places(tree, "/*")) == 0:
        at = 0 if kind == "prepend" else len(tree[2])
        tree[2][at:at] = content
        position = ' pos="prepend"' if kind == "prepend" else ""
        operation = f'<add sel="/*"{position}>{inner}</add>'
    else:
        parent, index, selector = data.draw(st.sampled_from(places(tree, "/*")))
        if kind == "remove":
            del parent[2][index]
            operation = f'<remove sel="{selector}"/>'
        elif kind == "replace":
            new = "new" if isinstance(parent[2][index], str) else ["new", {}, content]
            parent[2][index] = new
            operation = f'<replace sel="{selector}">{shown(new)}</replace>'
        else:
            at = index + (kind == "after")
            parent[2][at:at] = content
            operation = f'<add sel="{selector}" pos="{kind}">{inner}</add>'
    assert canonical(patched(before, operation)) == canonical(shown(tidy(tree)))
