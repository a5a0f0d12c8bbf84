"""The short way past the XML parser reads what the parser reads, or leaves it to the parser."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rsnotify.errors import DocumentError, InvalidDocument, MalformedDocument
from rsnotify.format.model import Document
from rsnotify.format.reader import read_document
from rsnotify.format.vocabulary import RS_NS, SITEMAP_NS
from rsnotify.format.writer import write_document
from tests.core.documents import DOCUMENTS

DECLARATION = '<?xml version="1.0" encoding="UTF-8"?>\n'
ROOT = f'<urlset xmlns="{SITEMAP_NS}" xmlns:rs="{RS_NS}">'
#: A comment before the root: such a document is read by the parser alone.
ONLY_PARSED = "<!-- -->"

PLAIN = "<url><loc>http://e.example/a</loc><lastmod>2013-01-03T09:00:00Z</lastmod></url>\n"
PIECES = [
    PLAIN,
    '<url><loc>http://e.example/b</loc><rs:md change="updated" length="3"/></url>',
    '<url><loc>http://e.example/b</loc><rs:md hash="md5:1" type="a/b; c=d" /></url>\n',
    '<url><loc>http://e.example/c</loc><rs:ln rel="via" href="http://e.example/d"/></url>\n',
    '<url><loc>a:b</loc><rs:ln rel="via" href="a"/><rs:ln rel="up" href="b" pri="2" /></url>',
    '<url><loc>http://e.example/c</loc><rs:ln rel="via" rel="up" href="http://e.example/d"/></url>',
    '<url><loc>http://e.example/c</loc><rs:ln rel="via"/></url>',
    '<url><loc>http://e.example/c</loc><rs:ln rel="via" href="a" pri="0"/></url>',
    '<url><loc>http://e.example/?a=1&amp;b=2</loc></url>',
    "<url>\n  <loc>http://e.example/e</loc>\n</url>\n",
    "<url><loc>http://é.example/</loc></url>",
    '<url><loc>http://e.example/f</loc><rs:md type="a > b"/></url>',
    "<url><loc>http://e.example/g</loc><priority>0.5</priority></url >",
    '<rs:md capability="changelist" from="2013-01-03T09:00:00Z"/>\n',
    '<rs:ln rel="up" href="http://e.example/up"/>',
    f"<!-- {PLAIN} -->",
    "<!--",
    "-->",
    f"<x:y xmlns:x='urn:x'>{PLAIN.replace('url', 'x:url')}</x:y>",
    "<x:y xmlns:x='urn:x'>",
    "</x:y>",
    f"<![CDATA[{PLAIN}]]>",
    "<url><loc><![CDATA[http://e.example/</loc></url>]]></loc></url>",
    "<?pi <url><loc>http://e.example/h</loc></url> ?>",
    # Broken, each in a way of its own.
    '<url><loc>http://e.example/i</loc><rs:md length="1" length="2"/></url>',
    '<url><loc>http://e.example/i</loc><rs:md type="a/></url>',
    '<url><loc>http://e.example/i</loc><rs:md length="-3"/></url>',
    "<url><loc>http://e.example/i</loc><lastmod>2013-13-03T09:00:00Z</lastmod></url>",
    "<url><loc>http://e.example/i</loc><loc>http://e.example/j</loc></url>",
    "<url><rs:md/></url>",
    "<url/>",
    "<url>",
    "</url>",
    "&amp;",
    "&undefined;",
    "text",
    "\n",
]  # fmt: skip


def outcome(chunks: list[bytes]) -> Document | None:
    """Read a document; None if it is refused. Which of two faults is met first may differ."""
    try:
        return read_document(chunks)
    except DocumentError:
        return None


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join), st.integers(1, 400))
@example(f"{PLAIN}<!--{PLAIN}-->{PLAIN}", 1_000)
@example(f"<url><loc>http://e.example/a</loc><!-- </url>{PLAIN} --></url>", 1_000)
@example(f"<url><x xmlns='urn:x'>{PLAIN}</x></url>{PLAIN}", 1_000)
@example(PLAIN.replace("\n", " " * 70_000) + PLAIN, 1_000)
@example("<url>\n<loc>http://e.example/</loc>\n</url>\n" * 300 + PLAIN, 1_000)
def test_it_makes_no_difference_whatever_the_document_holds(body: str, size: int) -> None:
    plain = f"{DECLARATION}{ROOT}{body}</urlset>\n".encode()
    parsed = f"{DECLARATION}{ONLY_PARSED}{ROOT}{body}</urlset>\n".encode()
    assert outcome(cut(plain, size)) == outcome(cut(parsed, size))


@given(DOCUMENTS, st.integers(1, 400), st.integers(0, 2_000), st.binary(max_size=3))
def test_it_makes_no_difference_where_a_document_is_damaged(
    document: Document, size: int, at: int, damage: bytes
) -> None:
    whole = write_document(document)
    damaged = whole[:at] + damage + whole[at + 1 :]
    if damaged.startswith(DECLARATION.encode()):
        parsed = damaged.replace(DECLARATION.encode(), (DECLARATION + ONLY_PARSED).encode(), 1)
        assert outcome(cut(damaged, size)) == outcome(cut(parsed, size))


@pytest.mark.parametrize(
    "last", [PLAIN, PIECES[3], "<url><loc>http://e.example/</loc></url ><!-- -->"]
)
def test_nothing_is_kept_back_at_the_end(last: str) -> None:
    document = read_document(f"{DECLARATION}{ROOT}{PLAIN}{last}</urlset>".encode())
    assert len(document.resources) == 2


@pytest.mark.parametrize(
    ("entry", "place"),
    [
        ('<lastmod>2013-13-03T09:00:00Z</lastmod><rs:md length="1"/>', "entry 2: lastmod: "),
        ('<rs:md length="-1"/>', "entry 2: rs:md/@length: "),
    ],
)
def test_an_error_names_the_entry_and_the_attribute(entry: str, place: str) -> None:
    with pytest.raises(InvalidDocument, match=place):
        read_document(f"{DECLARATION}{ROOT}{PLAIN}<url><loc>a</loc>{entry}</url></urlset>".encode())


def test_an_error_has_the_line_in_the_whole_document() -> None:
    body = PLAIN * 5 + "<url><loc>http://e.example/a</wrong></url>"
    with pytest.raises(MalformedDocument, match="line 7,"):
        read_document(f"{DECLARATION}{ROOT}{body}</urlset>".encode())
