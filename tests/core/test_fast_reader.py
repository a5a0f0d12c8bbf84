"""The short way past the XML parser reads what the parser reads, or leaves it to the parser."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from rsnotify.errors import DocumentError, InvalidDocument, MalformedDocument
from rsnotify.format.model import RS_NS, SITEMAP_NS, Document, Resource
from rsnotify.format.plain_form import FastReader, read_plain
from rsnotify.format.reader import read_document
from rsnotify.format.writer import write_document
from rsnotify.format.xml_parser import DEFAULT_LIMITS, DocumentLimits
from tests.cases import case
from tests.core.documents import DOCUMENTS

DECLARATION = '<?xml version="1.0" encoding="UTF-8"?>\n'
ROOT = f'<urlset xmlns="{SITEMAP_NS}" xmlns:rs="{RS_NS}">'
#: The usual root, and others with more namespaces.
ROOTS = [
    ROOT,
    ROOT.replace(">", ' xmlns:i="urn:i" i:a="b" xmlns:j="urn:i">'),
    ROOT.replace(">", f' xmlns:i="{SITEMAP_NS}">'),
    ROOT.replace(">", f' xmlns:i="{RS_NS}">'),
    ROOT.replace(">", ' xmlns:i="urn:i" xmlns:i="urn:j">'),
    ROOT.replace(">", ' xmlns:i="urn:&amp;">'),
    f'<urlset\nxmlns:rs="{RS_NS}" xmlns:i="urn:i"\n xmlns="{SITEMAP_NS}" >',
    f'<urlset xmlns="{SITEMAP_NS}">',
]
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
    '<url><loc>http://e.example/?a=1&amp;lt;b=2</loc><rs:md type="&quot;&lt;&apos;"/></url>',
    "<url><loc>http://e.example/?a=1&#38;b=2</loc></url>",
    "<url><loc>\xa0http://é.example/\u3000</loc></url>",
    "<url><loc>\xa0</loc></url>",
    "<url><loc>&#32;</loc></url>",
    f"<url><loc>http://e.example/{'a' * 8_200}</loc></url>",
    f"<url><loc>http://e.example/</loc><rs:ln rel='a' href='{'b' * 8_200}'/></url>",
    f'<url><loc>http://e.example/</loc><rs:ln rel="a" href="{"b" * 8_200}"/></url>',
    f'<url><loc>http://e.example/</loc><rs:ln rel="a" href="data:,{"b" * 8_200}"/></url>',
    f'<url><loc>a:b</loc><rs:md length="1"/><rs:ln rel="a" href="data:,{"b" * 8_200}"/></url>',
    f'<url><loc>a:b</loc><rs:md length="1"/><rs:ln rel="a" href="{"b" * 8_200}"/></url>',
    '<url><loc>a:b</loc><rs:ln href="a" pri="2" rel="via" x="y"/></url>',
    '<url><loc>a:b</loc><rs:ln rel="a" href="b" length="007" modified="2013-01-03"/></url>',
    '<url><loc>a:b</loc><rs:ln rel="a" href="b" pri="7" modified="2013-01-03T09:00:00Z"/></url>',
    '<url><loc>a:b</loc><rs:ln rel="a" href="b">c</rs:ln></url>',
    f'<url><loc>a:b</loc><rs:ln href="a" rel="via" {"p" * 50_001}="c"/></url>',
    "<url><loc>a:b</loc><changefreq>hourly</changefreq><priority>0.5</priority></url>",
    f"<url><loc>a:b</loc><changefreq>{'a' * 8_200}</changefreq></url>",
    # Elements and attributes of other namespaces.
    "<url><loc>a:b</loc><i:i><i:loc>http://e.example/a.png</i:loc></i:i><rs:md length='1'/></url>",
    '<url><loc>a:b</loc><i:i a=">"/>text<rs:md length="1"/><rs:ln rel="a" href="b"/><i:j/></url>',
    '<url><loc>a:b</loc><i:i a="1" a="2"/></url>',
    '<url><loc>a:b</loc><i:i b="</url>"/></url>',
    '<url><loc>a:b</loc><i:i>&undefined;</i:i></url>',
    "<url><loc>a:b</loc><i:i>]]></i:i></url>",
    "<url><loc>a:b</loc><i:i>\x01</i:i></url>",
    '<url><loc>a:b</loc><i:i><rs:ln rel="a" href="b"/></i:i></url>',
    '<url><loc>a:b</loc><i:i><rs:md length="1"/></i:i></url>',
    '<url><loc>a:b</loc><i:i></i:i><rs:md length="1"/></i:j></url>',
    "<url><loc>a:b</loc><i:i></i:j></url>",
    "<url><loc>a:b</loc></i:i><i:i></url>",
    "<url><loc>a:b</loc><u:u/></url>",
    "<url><loc>a:b</loc><x:y xmlns:x='urn:x'/></url>",
    f"<url><loc>a:b</loc><x:ln xmlns:x='{RS_NS}' rel='a' href='b'/></url>",
    f"<url><loc>a:b</loc><x:loc xmlns:x='{SITEMAP_NS}'>c:d</x:loc></url>",
    f"<url><loc>a:b</loc><x:loc xmlns:x='{SITEMAP_NS[:-1]}&#57;'>c:d</x:loc></url>",
    f"<x:url xmlns:x='{SITEMAP_NS}'><x:loc>a:b</x:loc></x:url>",
    f"<x:url\nxmlns:x='{SITEMAP_NS}'><x:loc>a:b</x:loc></x:url\n>",
    "<url><loc>a:b</loc>" + "<i:i>" * 101 + "</i:i>" * 101 + "</url>",
    '<url><loc>a:b</loc><rs:md length="1" i:a="b &amp; c" xml:lang="de"/></url>',
    '<url><loc>a:b</loc><rs:md length="1" i:a="b &amp; c" i:d=""/></url>',
    '<url><loc>a:b</loc><rs:md length="1" i:a="b" i:a="c"/></url>',
    '<url><loc>a:b</loc><rs:md i:a="b" j:a="c"/></url>',
    '<url><loc>a:b</loc><rs:md i:a="b" xmlns:j="urn:i" j:a="c"/></url>',
    f'<url><loc>a:b</loc><rs:md i:{"p" * 50_001}="c"/></url>',
    '<url><loc>a:b</loc><rs:md xmlns:x="urn:x" x:a="b" xmlns:x="urn:y"/></url>',
    '<url><loc>a:b</loc><rs:md xmlns:x="urn:x" x:a="b" i:c="d"/></url>',
    '<url><loc>a:b</loc><rs:md xmlns:rs="urn:x" rs:length="1"/></url>',
    f'<url><loc>a:b</loc><rs:md xmlns:x="{RS_NS}" x:length="1"/></url>',
    '<url><loc>a:b</loc><rs:md rs:length="1"/></url>',
    '<url><loc>a:b</loc><rs:md u:a="b"/></url>',
    '<url><loc>a:b</loc><rs:md xmlns:x="a b" x:a="b"/></url>',
    '<url><loc>a:b</loc><rs:md xmlns:x="" x:a="b"/></url>',
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


def outcome(
    chunks: bytes | list[bytes], limits: DocumentLimits = DEFAULT_LIMITS
) -> Document | None:
    """Read a document; None if it is refused. Which of two faults is met first may differ."""
    try:
        return read_document(chunks, limits=limits)
    except DocumentError:
        return None


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@given(
    st.lists(st.sampled_from(PIECES), max_size=8).map("".join),
    st.integers(1, 400),
    st.sampled_from(ROOTS),
)
@example(f"{PLAIN}<!--{PLAIN}-->{PLAIN}", 1_000, ROOT)
@example(f"<url><loc>http://e.example/a</loc><!-- </url>{PLAIN} --></url>", 1_000, ROOT)
@example(f"<url><x xmlns='urn:x'>{PLAIN}</x></url>{PLAIN}", 1_000, ROOT)
@example(PLAIN.replace("\n", " " * 70_000) + PLAIN, 1_000, ROOT)
@example("<url>\n<loc>http://e.example/</loc>\n</url>\n" * 300 + PLAIN, 1_000, ROOT)
def test_it_makes_no_difference_whatever_the_document_holds(
    body: str, size: int, root: str
) -> None:
    assert_read_as_parsed(body, size, root)


@pytest.mark.parametrize("root", ROOTS)
def test_it_makes_no_difference_for_each_piece(root: str) -> None:
    for piece in PIECES:
        with case(piece):
            for body in (piece, PLAIN + piece + PLAIN, piece * 2):
                assert_read_as_parsed(body, 7, root)
            assert_read_as_parsed(PLAIN + piece + PLAIN, 100_000, root)


def assert_read_as_parsed(body: str, size: int, root: str) -> None:
    plain = f"{DECLARATION}{root}{body}</urlset>\n".encode()
    parsed = f"{DECLARATION}{ONLY_PARSED}{root}{body}</urlset>\n".encode()
    assert outcome(cut(plain, size)) == outcome(plain) == outcome(cut(parsed, size))


def test_namespaces_count_in_the_length_of_an_entry() -> None:
    root = ROOT.replace(">", f' xmlns:i="urn:{"i" * 1_500}">')
    attributes = "".join(f' i:a{number}=""' for number in range(4_000))
    body = f'<url><loc>a:b</loc><rs:md length="1"{attributes}/></url>'
    assert_read_as_parsed(body, 100_000, root)


@given(DOCUMENTS, st.integers(1, 400), st.integers(0, 2_000), st.binary(max_size=3))
def test_it_makes_no_difference_where_a_document_is_damaged(
    document: Document, size: int, at: int, damage: bytes
) -> None:
    whole = write_document(document)
    damaged = whole[:at] + damage + whole[at + 1 :]
    if damaged.startswith(DECLARATION.encode()):
        parsed = damaged.replace(DECLARATION.encode(), (DECLARATION + ONLY_PARSED).encode(), 1)
        assert outcome(cut(damaged, size)) == outcome(damaged) == outcome(cut(parsed, size))


@pytest.mark.parametrize("size", [40, 1_000])
def test_an_entry_that_is_not_utf_8_is_refused(size: int) -> None:
    entries = f"{PLAIN}<url><loc>http://e.example/é</loc></url>{PLAIN}"
    for encoding, count in (("utf-8", 3), ("latin-1", None)):
        read = outcome(cut(f"{DECLARATION}{ROOT}{entries}</urlset>".encode(encoding), size))
        assert (None if read is None else len(read.resources)) == count


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


@pytest.mark.parametrize("size", [130, 250, 10_000])
def test_an_error_has_the_line_in_the_whole_document(size: int) -> None:
    entry = PLAIN.replace("<url>", "<url>\n")
    body = f"{entry * 5}<url><loc>http://e.example/a</wrong></url>"
    with pytest.raises(MalformedDocument, match="line 12,"):
        read_document(cut(f"{DECLARATION}{ROOT}{body}</urlset>".encode(), size))


LINK = '<rs:ln rel="via" href="http://e.example/d"/>'
FULL_LINK = (
    '<rs:ln rel="a{0}" href="b:{0}" encoding="c{0}" hash="d{0}" length="7"'
    ' modified="2013-01-03T09:00:00Z" path="e{0}" pri="2" type="f{0}" i:g="h{0}"/>\n'
)
FULL_ENTRY = (
    "<url><loc>http://e.example/{0}</loc><lastmod>2013-01-03T09:00:00Z</lastmod>"
    "<changefreq>hourly</changefreq><priority>0.5</priority>"
    f"{LINK}<i:i>text{{0}}</i:i>{FULL_LINK}"
    '<rs:md change="updated" datetime="2013-01-03T09:00:00{1}Z" encoding="c{0}" hash="d{0}"'
    ' length="3" path="e{0}" type="f{0}" i:g="h{0}" j:g="h"/>'
    '<rs:ln rel="a{0}" href="b:{0}" type="f{0}"/>'
    f'<i:i/>{FULL_LINK}<rs:ln type="f{{0}}" href="a" rel="b"/></url>\n'
)
FULL_HEAD = (
    '\n<rs:ln rel="up{0}" href="http://e.example/up{0}" type="f{0}"/>'
    f'<i:i/>{FULL_LINK}<rs:md capability="resourcelist" at="2013-01-03T09:00:00Z"'
    ' completed="2013-01-03T09:00:01Z" from="2013-01-03T09:00:02Z" until="2013-01-03T09:00:03Z"'
    ' i:g="h{0}"/>\n'
)
WITH_PREFIXES = ROOT.replace(">", ' xmlns:i="urn:i" xmlns:j="urn:j">')


def assert_read_without_parser(
    expected: Document, data: bytes, size: int, limits: DocumentLimits = DEFAULT_LIMITS
) -> None:
    """Except for whitespace between entries, if the document arrives in pieces."""
    resources: list[Resource] = []
    xml: list[bytes] = []
    reader = FastReader(limits, resources.extend, xml.append)
    for chunk in cut(data, size):
        reader.feed(chunk)
    head = reader.close()
    assert b"<url>" not in b"".join(xml)
    assert tuple(resources) == expected.resources
    if size > len(data):
        assert head == replace(expected, resources=())


@pytest.mark.parametrize("opening", [DECLARATION, "", "<?xml version='1.0' encoding='utf-8'?>"])
@pytest.mark.parametrize(
    ("root", "body"),
    [
        (ROOT, PLAIN * 3),
        (ROOT, ""),
        (ROOTS[6], PLAIN),
        (WITH_PREFIXES, FULL_ENTRY.format("x", "") + PLAIN),
        (WITH_PREFIXES, FULL_ENTRY.format("&amp;&lt;&gt;&quot;&apos;", ".000001") * 2),
        (WITH_PREFIXES, FULL_ENTRY.format("\u00e9", ".000001") * 2),
        (WITH_PREFIXES, FULL_HEAD.format("x") + PLAIN),
        (WITH_PREFIXES, FULL_HEAD.format("&amp;") + PLAIN),
        (WITH_PREFIXES, FULL_HEAD.format("\u00e9")),
        (ROOT, '<url><loc>a:b</loc><rs:md xmlns:x="urn:&amp;" x:a="b" x:c="d"/></url>'),
        (ROOT, f'<url><loc>a:b</loc><rs:ln rel="a" href="data:,{"b" * 8_200}"/></url>'),
    ],
)
def test_a_document_in_the_plain_form_is_read_without_the_parser(
    opening: str, root: str, body: str
) -> None:
    data = f"{opening}{root}{body}</urlset>\r\n\t ".encode()
    parsed = read_document(f"{ONLY_PARSED}{root}{body}</urlset>".encode())
    assert read_plain(data, DEFAULT_LIMITS) == parsed
    for size in (7, 100_000):
        assert_read_without_parser(parsed, data, size)


URI = f"a:{'b' * 30}"


@pytest.mark.parametrize(
    ("limits", "most", "entry"),
    [
        (DocumentLimits(links=7), 3, "<url><loc>a:b</loc>{0}<rs:md/>" + LINK + "{0}</url>"),
        (DocumentLimits(links=3), 1, "<url><loc>a:b</loc>{0}<rs:md/>" + LINK + "{0}</url>"),
        (DocumentLimits(entry_elements=26), 5, "<url><loc>a:b</loc>{0}<rs:md/>{0}</url>"),
        (DocumentLimits(depth=2), 4, "<url><loc>a:b</loc>{2}</url>"),
        (DocumentLimits(entries=3), 2, PLAIN + "{3}"),
        (DocumentLimits(uri_length=32), 0, f"<url><loc>{URI}{{1}}</loc></url>"),
        (
            DocumentLimits(uri_length=32),
            0,
            f'<url><loc>{URI}{{1}}</loc><rs:md type="&amp;"/></url>',
        ),
        (
            DocumentLimits(uri_length=32),
            0,
            f'<url><loc>a</loc><rs:md/><rs:ln rel="a" href="{URI}{{1}}"/></url>',
        ),
        (
            DocumentLimits(uri_length=32),
            0,
            f'<url><loc>a</loc><rs:ln rel="a" href="{URI}{{1}}" pri="1"/></url>',
        ),
        (
            DocumentLimits(uri_length=32, inline_length=40),
            3,
            f'<url><loc>a</loc><rs:ln rel="a" href="data:,{"0" * 31}{{1}}"/></url>',
        ),
    ],
)
def test_the_plain_form_ends_within_the_limits_of_the_parser(
    limits: DocumentLimits, most: int, entry: str
) -> None:
    for count in range(30):
        link = '<rs:ln rel="via" href="a" pri="1"/>'
        body = entry.format(*(piece * count for piece in (link, "c", "<i:i/>", PLAIN)))
        data = f"{WITH_PREFIXES}{body}</urlset>".encode()
        plain = read_plain(data, limits)
        parsed = outcome(ONLY_PARSED.encode() + data, limits)
        if count <= most:
            assert parsed is not None
            assert plain == parsed
            assert_read_without_parser(parsed, data, 100_000, limits)
        else:
            assert plain is None or plain == parsed, count


@pytest.mark.parametrize("end", ["X", "\x0c", "\u00a0", "<"])
def test_nothing_but_whitespace_of_xml_may_follow_the_root(end: str) -> None:
    data = f"{ROOT}{PLAIN}</urlset>{end}".encode()
    assert read_plain(data, DEFAULT_LIMITS) is None
    assert outcome([data]) is None
