"""Reading and writing ResourceSync documents."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsnotify.errors import (
    DocumentError,
    InvalidDocument,
    MalformedDocument,
    TooLarge,
    WrongDocument,
)
from rsnotify.format import reader
from rsnotify.format.model import (
    RS_NS,
    SITEMAP_NS,
    Capability,
    ChangeType,
    Document,
    Link,
    Resource,
)
from rsnotify.format.reader import DocumentLimits, SitemapReader, read_document
from rsnotify.format.writer import write_document
from tests.core.documents import DOCUMENTS

HEAD = f'<urlset xmlns="{SITEMAP_NS}" xmlns:rs="{RS_NS}">'
NOON = datetime(2013, 1, 3, 12, tzinfo=UTC)
LATER = NOON.replace(hour=13)


def urlset(body: str) -> bytes:
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{HEAD}{body}</urlset>'.encode()


@given(DOCUMENTS, st.integers(1, 50))
def test_a_written_document_is_read_back_in_whatever_pieces_it_arrives(
    document: Document, size: int
) -> None:
    written = write_document(document)
    assert read_document(written) == read_document(cut(written, size)) == document


@settings(max_examples=25)
@given(DOCUMENTS, st.data())
def test_a_document_cut_off_anywhere_is_refused(document: Document, data: st.DataObject) -> None:
    whole = write_document(document).rstrip()
    lengths = st.integers(0, len(whole) - 1)
    for length in data.draw(st.lists(lengths, min_size=4, max_size=4)):
        with pytest.raises(DocumentError):
            read_document(whole[:length])


def test_a_change_list_of_the_specification_is_read_completely() -> None:
    document = read_document(
        urlset(
            """
            <rs:ln rel="up" href="http://example.com/dataset1/capabilitylist.xml"/>
            <rs:md capability="changelist" from="2013-01-03T00:00:00Z"/>
            <url>
              <loc>http://example.com/res1</loc>
              <lastmod>2013-01-03T12:00:00Z</lastmod>
              <changefreq>hourly</changefreq>
              <rs:md change="updated" hash="md5:1584abdf8ebdc9802ac0c6a7402c03b6
                sha-256:854f" length="8876" type="text/html" encoding="gzip"/>
              <rs:ln rel="duplicate" pri="1" href="http://mirror1.example.com/res1"
                modified="2013-01-03T12:00:00Z" hash="md5:1" length="1" type="a/b"
                encoding="gzip" path="/x"/>
            </url>
            """
        )
    )
    assert document == Document(
        "changelist",
        (
            Resource(
                "http://example.com/res1",
                lastmod=NOON,
                changefreq="hourly",
                change=ChangeType.UPDATED,
                hash="md5:1584abdf8ebdc9802ac0c6a7402c03b6                 sha-256:854f",
                length=8876,
                type="text/html",
                encoding="gzip",
                links=(
                    Link(
                        "duplicate",
                        "http://mirror1.example.com/res1",
                        encoding="gzip",
                        hash="md5:1",
                        length=1,
                        modified=NOON,
                        path="/x",
                        pri=1,
                        type="a/b",
                    ),
                ),
            ),
        ),
        from_=datetime(2013, 1, 3, tzinfo=UTC),
        links=(Link("up", "http://example.com/dataset1/capabilitylist.xml"),),
    )
    assert document.link("up") == "http://example.com/dataset1/capabilitylist.xml"


def test_foreign_elements_are_passed_over_and_foreign_attributes_kept() -> None:
    document = read_document(
        urlset(
            """
            <rs:md capability="resourcelist" at="2013-01-03T12:00:00Z"
              xmlns:x="http://x.example/" x:digest="abc" unknown="skipped"/>
            <x:note xmlns:x="http://x.example/"><x:deep>text</x:deep></x:note>
            <url><x:image xmlns:x="http://x.example/"><x:loc>http://wrong/</x:loc></x:image>
              <loc>http://example.com/a</loc><priority>0.8</priority></url>
            """
        )
    )
    assert document.attributes == (("{http://x.example/}digest", "abc"),)
    assert document.resources == (Resource("http://example.com/a"),)


@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("<x:y xmlns:x='a b'/><url><loc>a</loc></url>", "a"),  # a namespace that is no URI
        ("<x:y xmlns:x='relative'/><url><loc>a</loc></url>", "a"),
        (
            "<!-- a --><?p i?><url><loc><![CDATA[http://e/?a=1&b=2]]><!-- b --></loc></url>",
            "http://e/?a=1&b=2",
        ),
    ],
)
def test_namespaces_comments_instructions_and_cdata_do_no_harm_in_a_plain_sitemap(
    text: str, uri: str
) -> None:
    assert read_document(urlset(text)) == Document(None, (Resource(uri),))


@pytest.mark.parametrize("written", ["Deleted", "DELETED", " deleted "])
def test_the_case_of_change_does_not_matter(written: str) -> None:
    document = read_document(urlset(f'<url><loc>a</loc><rs:md change="{written}"/></url>'))
    assert document.resources[0].change is ChangeType.DELETED


def test_any_encoding_that_a_document_declares_is_read() -> None:
    text = f'<?xml version="1.0" encoding="UTF-16"?>{HEAD}<url><loc>http://é/</loc></url></urlset>'
    assert read_document(text.encode("utf-16")).resources == (Resource("http://é/"),)


@pytest.mark.parametrize(
    ("data", "error", "reason"),
    [
        (b"", MalformedDocument, "it is empty"),
        (b"no xml", MalformedDocument, "Start tag expected"),
        (urlset("<url>")[:-9], MalformedDocument, "is truncated"),
        (urlset("<url></loc></url>"), MalformedDocument, "not well-formed"),
        (b'<!DOCTYPE urlset [<!ENTITY a "b">]>' + urlset("")[39:], MalformedDocument, "DOCTYPE"),
        (b'<!DOCTYPE urlset SYSTEM "x">' + urlset("")[39:], MalformedDocument, "DOCTYPE"),
        (b"<urlset/>", WrongDocument, "root element is urlset, not"),
        (f'<urlset xmlns:rs="{RS_NS}"></urlset>'.encode(), WrongDocument, "is urlset, not"),
        (b'<rss xmlns="x"/>', WrongDocument, "root element is {x}rss"),
        (urlset("<sitemap><loc>http://a/</loc></sitemap>"), WrongDocument, "is not allowed"),
        (urlset("<url><url/></url>"), WrongDocument, "is not allowed"),
        (urlset("<url><lastmod>2013</lastmod></url>"), InvalidDocument, "entry 1: it has no loc"),
        (urlset("<url><loc>  </loc></url>"), InvalidDocument, "no loc"),
        (urlset("<url><loc>a</loc></url><url><loc>b</loc><lastmod>soon</lastmod></url>"),
            InvalidDocument, "entry 2: lastmod: 'soon' is not a W3C Datetime"),
        (urlset("<x:y/>"), MalformedDocument, "prefix x on y is not defined, line "),
        (urlset("<url><loc>a</loc><rs:md x:y='1'/></url>"), MalformedDocument, "prefix x for y"),
        (urlset('<rs:md at="2013"/>').replace(b"xmlns:rs=", b"xmlns:r="), MalformedDocument,
            "prefix rs on md is not defined"),
        (urlset('<rs:md at="1"/>'), InvalidDocument, "rs:md/@at"),
        (urlset('<url><rs:md change="moved"/></url>'), InvalidDocument, "created, updated"),
        (urlset('<url><rs:md length="-1"/></url>'), InvalidDocument, "not a whole number"),
        (urlset(f'<url><rs:md length="{2**64}"/></url>'), InvalidDocument, "is too large"),
        (urlset(f'<url><rs:md length="1{"0" * 18}"/></url>'), InvalidDocument, "is too large"),
        (urlset('<rs:ln rel="a" href="b" length="x"/>'), InvalidDocument, "rs:ln/@length: 'x'"),
        (urlset('<rs:ln rel="a" href="b" pri="1000000"/>'), InvalidDocument, "and 999999"),
        (urlset('<rs:ln rel="up"/>'), InvalidDocument, "has no href"),
        (urlset('<rs:ln href="a"/>'), InvalidDocument, "has no href or no rel"),
        (urlset('<rs:ln rel="a" href="b" pri="0"/>'), InvalidDocument, "between 1 and 999999"),
        (urlset(f"<url><loc>http://{'a' * 9000}</loc></url>"), InvalidDocument,
            "its loc is longer than 8192 characters"),
        (urlset('<rs:ln rel="a" href="b"/>' * 1001), InvalidDocument, "more than 1000 links"),
        (urlset("<x>" * 300 + "</x>" * 300), InvalidDocument, "nested deeper than 100"),
        (urlset("<x/>" * 10_001), InvalidDocument, "more than 10000 elements"),
    ],
)  # fmt: skip
def test_an_unusable_document_is_refused_with_the_reason_and_the_place(
    data: bytes, error: type[DocumentError], reason: str
) -> None:
    with pytest.raises(error) as caught:
        read_document(data, source="http://example.com/list.xml")
    assert str(caught.value).startswith("http://example.com/list.xml")
    assert reason in str(caught.value)


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def test_the_limit_holds_for_all_pieces_of_a_document_together_before_it_is_read() -> None:
    reader = SitemapReader(DocumentLimits(document_bytes=100))
    with pytest.raises(InvalidDocument, match="larger than 100 bytes"):
        reader.feed(urlset("") + b" " * 100)
    data = urlset("<url><loc>http://a/</loc></url>" * 3)
    whole = read_document(cut(data, 10), limits=DocumentLimits(document_bytes=len(data)))
    assert len(whole.resources) == 3
    with pytest.raises(InvalidDocument, match="larger than"):
        read_document(cut(data, 10), limits=DocumentLimits(document_bytes=len(data) - 1))


def test_a_comment_has_a_limit_that_others_do_not_add_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_MAX_TOKEN_BYTES", 1_000)

    def pieces(size: int) -> list[bytes]:
        comment = f"<!--{'x' * size}-->"
        return cut(urlset(f"{comment}<url><loc>http://a/</loc></url>{comment}"), 10)

    assert len(read_document(pieces(900)).resources) == 1
    text = f"<!-- -->{HEAD}<x>{'x' * 3_000}</x></urlset>".encode()
    assert read_document(cut(text, 10)).resources == ()
    with pytest.raises(InvalidDocument, match="a tag or a comment"):
        read_document(pieces(1_100))


def test_the_reader_hands_over_resources_as_they_complete() -> None:
    reader = SitemapReader()
    data = urlset("<url><loc>http://a/</loc></url><url><loc>http://b/</loc></url>")
    middle = data.index(b"<url><loc>http://b/")
    first = reader.feed(data[: middle + 4])
    rest = reader.feed(data[middle + 4 :])
    assert [resource.uri for resource in first + rest] == ["http://a/", "http://b/"]
    assert reader.close() == Document(None)


def test_the_language_of_a_resource_is_written_with_the_prefix_of_xml() -> None:
    language = (("{http://www.w3.org/XML/1998/namespace}lang", "en"),)
    resource = Resource("http://a.example/", lastmod=NOON, attributes=language)
    document = Document(Capability.RESOURCE_LIST, (resource,), at=NOON)
    written = write_document(document)
    assert b'xml:lang="en"' in written
    assert read_document(written) == document


def test_a_document_changed_last_with_its_last_entry() -> None:
    entries = tuple(Resource("http://a.example/", datetime=at) for at in (NOON, NOON, LATER))
    assert Document(Capability.CHANGE_LIST, entries).changed_at == LATER
    assert Document(Capability.CHANGE_LIST).changed_at is None


# The reader accepts a document at each limit, and refuses one just beyond it.


LINK = '<rs:ln rel="up" href="b"/>'


def url(content: str = "") -> str:
    return f"<url><loc>a</loc>{content}</url>"


def link(href: str) -> str:
    return f'<rs:ln rel="up" href="{href}"/>'


@pytest.mark.parametrize(
    ("limits", "allowed", "refused", "entry"),
    [
        (DocumentLimits(entries=2), url() * 2, url() * 3, None),
        (DocumentLimits(entry_elements=3), url(LINK * 2), url() + url(LINK * 3), 2),
        (DocumentLimits(entry_elements=3), LINK + url(LINK * 2) + LINK, LINK + url() + LINK * 2,
         None),
        (
            DocumentLimits(entry_length=20),
            url('<rs:md hash="1234567890123456"/>') * 2,
            url('<rs:md hash="12345678901234567"/>'),
            1,
        ),
        (DocumentLimits(entry_length=20), LINK + url(LINK * 2) + LINK, LINK * 2 + url() + LINK,
         None),
        (DocumentLimits(uri_length=20), f"<url><loc>{'a' * 20}</loc></url>" * 2,
         f"<url><loc>{'a' * 21}</loc></url>", 1),
        (DocumentLimits(uri_length=20), url(link("b" * 20)), url(link("b" * 21)), 1),
        (DocumentLimits(uri_length=20, inline_length=30), link("data:" + "b" * 25),
         link("data:" + "b" * 26), None),
        (DocumentLimits(uri_length=20), url(f"<changefreq>{'c' * 20}</changefreq>"),
         url(f"<changefreq>{'c' * 21}</changefreq>"), 1),
        (DocumentLimits(links=2), LINK * 2 + url(LINK * 2) * 2, url() + url(LINK * 3), 2),
        (DocumentLimits(links=2), LINK * 2, LINK * 3, None),
        (DocumentLimits(depth=2), "<x><y/><y/></x>" * 2, "<x><y><z/></y></x>", None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [1, 10_000], ids=["byte by byte", "at once"])
@pytest.mark.parametrize("comment", ["", "<!-- -->"], ids=["plain", "with a comment"])
def test_the_reader_keeps_to_each_limit(
    limits: DocumentLimits,
    allowed: str,
    refused: str,
    entry: int | None,
    size: int,
    comment: str,
) -> None:
    def read(content: str) -> None:
        data = f"{HEAD}{comment}{content}</urlset>".encode()
        read_document(cut(data, size), limits=limits)

    read(allowed)
    with pytest.raises(TooLarge) as caught:
        read(refused)
    assert caught.value.entry == entry


def test_a_resource_of_content_has_its_length_and_hash():
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2 B.1
    stated = {"type": "text/plain", "change": ChangeType.CREATED, "lastmod": NOON}
    links = (Link("alternate", "http://a/b"),)
    assert Resource.of("http://a/", b"abc", links=links, **stated) == Resource(
        "http://a/", hash=f"sha-256:{digest}", length=3, links=links, **stated
    )


@pytest.mark.parametrize("comment", ["", "<!-- -->"], ids=["plain", "with a comment"])
def test_the_largest_numbers_are_read(comment: str) -> None:
    numbers = f'<rs:ln rel="a" href="b" length="{"9" * 18}" pri="999999"/>'
    (found,) = read_document(urlset(comment + numbers)).links
    assert (found.length, found.pri) == (10**18 - 1, 999_999)


def test_an_attribute_may_have_the_prefix_of_its_element() -> None:
    (resource,) = read_document(urlset('<url><loc>a</loc><rs:md rs:length="7"/></url>')).resources
    assert resource.length == 7
