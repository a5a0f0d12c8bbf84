"""The bytes of written documents."""

from __future__ import annotations

from typing import Any

import pytest

from rsnotify.format.model import Capability, ChangeType, Document, Link, Resource
from rsnotify.format.writer import Profile, closing, entry, opening, write_document
from tests.core.source import EPOCH, at

NS = "urn:x"
ROOT = (
    'xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" '
    'xmlns:rs="http://www.openarchives.org/rs/terms/">\n'
)
#: Every character that needs an escape, and one that is not ASCII.
SPECIAL, ESCAPED = '<&>"\t\n\ré', "&lt;&amp;&gt;&quot;&#9;&#10;&#13;é"


def test_an_entry_has_each_value_where_the_specification_has_it() -> None:
    link = Link(
        "duplicate", "http://m.example/", encoding="gzip", hash="md5:2", length=3, modified=at(8),
        path="/b", pri=1, type="text/css", attributes=((f"{{{NS}}}c", "3"),),
    )  # fmt: skip
    resource = Resource(
        "http://a.example/", lastmod=at(1), changefreq="daily", change=ChangeType.UPDATED,
        datetime=at(2), at=at(3), completed=at(4), from_=at(5), until=at(6),
        capability="resourcelist", encoding="br", hash="md5:1", length=0, path="/a",
        type="text/html", links=(link,),
        attributes=(
            (f"{{{NS}}}a", "1"), (f"{{{NS}}}b", "2"), ("{urn:y}a", "3"),
            ("{http://www.w3.org/XML/1998/namespace}lang", "en"),
        ),
    )  # fmt: skip
    times = [f"2026-01-01T00:00:0{second}.000000Z" for second in range(9)]
    assert entry(resource).decode() == (
        f"<url><loc>http://a.example/</loc><lastmod>{times[1]}</lastmod>"
        '<changefreq>daily</changefreq><rs:md capability="resourcelist" change="updated" '
        f'datetime="{times[2]}" at="{times[3]}" completed="{times[4]}" from="{times[5]}" '
        f'until="{times[6]}" encoding="br" hash="md5:1" length="0" path="/a" type="text/html" '
        'xmlns:a0="urn:x" a0:a="1" a0:b="2" xmlns:a1="urn:y" a1:a="3" xml:lang="en"/>'
        '<rs:ln rel="duplicate" href="http://m.example/" encoding="gzip" hash="md5:2" length="3" '
        f'modified="{times[8]}" path="/b" pri="1" type="text/css" xmlns:a0="urn:x" a0:c="3"/>'
        "</url>\n"
    )


@pytest.mark.parametrize("field", ["at", "completed", "from_", "until"])
def test_each_instant_is_written_without_the_others(field: str) -> None:
    value: dict[str, Any] = {field: EPOCH}
    md = f'<rs:md {field.rstrip("_")}="2026-01-01T00:00:00.000000Z"/>'
    assert entry(Resource("a", **value)).decode() == f"<url><loc>a</loc>{md}</url>\n"
    assert opening(Document(None, **value)).decode().endswith(f">\n{md}\n")


ONE, TWO = (f"2026-01-01T00:00:0{second}.000000Z" for second in (1, 2))
UNDATED = '<rs:md change="updated"/>'
DATED = f'<rs:md change="updated" datetime="{TWO}"/>'


@pytest.mark.parametrize(
    ("profile", "lastmod", "written"),
    [
        (None, False, DATED),
        (Profile.V1_1, False, f"<lastmod>{TWO}</lastmod>{DATED}"),
        (Profile.V1_1, True, f"<lastmod>{ONE}</lastmod>{DATED}"),
        (Profile.V1_0, True, f"<lastmod>{TWO}</lastmod>{UNDATED}"),
        (Profile.V1_0, False, f"<lastmod>{TWO}</lastmod>{UNDATED}"),
    ],
)
@pytest.mark.parametrize("uri", ["a", "é<"], ids=["plain", "escaped"])
def test_the_profile_decides_where_the_datetime_of_a_change_is_written(
    profile: Profile | None, lastmod: bool, written: str, uri: str
) -> None:
    modified = at(1) if lastmod else None
    resource = Resource(uri, lastmod=modified, change=ChangeType.UPDATED, datetime=at(2))
    loc = uri.replace("<", "&lt;")
    assert entry(resource, profile=profile).decode() == f"<url><loc>{loc}</loc>{written}</url>\n"


@pytest.mark.parametrize(
    ("text", "escaped"), [(SPECIAL, ESCAPED), ("a&b", "a&amp;b"), ("&<", "&amp;&lt;")]
)
def test_every_text_is_escaped(text: str, escaped: str) -> None:
    link = Link(text, text, encoding=text, hash=text, path=text, type=text)
    fields: dict[str, Any] = dict.fromkeys(
        ("changefreq", "capability", "encoding", "hash", "path"), text
    )
    attributes = ((f"{{{NS}}}a", text),)
    resource = Resource(text, type=text, links=(link,), attributes=attributes, **fields)
    assert entry(resource).decode() == (
        f"<url><loc>{escaped}</loc><changefreq>{escaped}</changefreq>"
        f'<rs:md capability="{escaped}" encoding="{escaped}" hash="{escaped}" path="{escaped}" '
        f'type="{escaped}" xmlns:a0="urn:x" a0:a="{escaped}"/>'
        f'<rs:ln rel="{escaped}" href="{escaped}" encoding="{escaped}" hash="{escaped}" '
        f'path="{escaped}" type="{escaped}"/></url>\n'
    )
    for name in ("uri", *fields, "type"):
        values: dict[str, Any] = {"uri": "a", name: text}
        assert entry(Resource(**values)).decode().count(escaped) == 1, name
    head = Document(text, links=(link,), attributes=attributes)
    assert opening(head).decode().count(escaped) == 8
    assert f'capability="{escaped}"' in opening(Document(text)).decode()
    assert f'a0:a="{escaped}"' in opening(Document(None, attributes=attributes)).decode()


@pytest.mark.parametrize("character", ["\0", "\x0b", "\x1f", "\ud800", "\ufffe"])
def test_a_character_that_xml_cannot_represent_is_refused(character: str) -> None:
    for text in (character, f"{character}é"):
        with pytest.raises(ValueError, match="percent-encode"):
            entry(Resource(text))
        with pytest.raises(ValueError, match="percent-encode"):
            opening(Document(text))


@pytest.mark.parametrize(
    ("index", "root", "tag"), [(False, "urlset", "url"), (True, "sitemapindex", "sitemap")]
)
def test_a_document_is_its_opening_its_entries_and_its_closing(
    index: bool, root: str, tag: str
) -> None:
    links = (Link("up", "b"), Link("next", "c"))
    resources = tuple(Resource(f"{number}") for number in range(600))
    document = Document(
        Capability.RESOURCE_LIST, resources, links=links, at=at(0), until=at(1), index=index
    )
    assert opening(document).decode() == (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<{root} {ROOT}'
        '<rs:ln rel="up" href="b"/>\n<rs:ln rel="next" href="c"/>\n'
        '<rs:md capability="resourcelist" at="2026-01-01T00:00:00.000000Z" '
        'until="2026-01-01T00:00:01.000000Z"/>\n'
    )
    entries = [f"<{tag}><loc>{number}</loc></{tag}>\n".encode() for number in range(600)]
    assert index or entry(resources[7]) == entries[7]
    assert closing(document) == f"</{root}>\n".encode()
    written = b"".join([opening(document), *entries, closing(document)])
    assert write_document(document) == written


@pytest.mark.parametrize("profile", [None, *Profile])
def test_entries_are_written_together_as_one_by_one(profile: Profile | None) -> None:
    plain = Resource("http://a.example/", change=ChangeType.UPDATED, datetime=EPOCH)
    for resources in ((plain, plain), (plain, Resource(f"http://a.example/{SPECIAL}"), plain)):
        document = Document(None, resources)
        entries = b"".join(entry(each, profile=profile) for each in resources)
        written = opening(document) + entries + closing(document)
        assert write_document(document, profile=profile) == written


def test_a_document_without_attributes_has_no_element_for_them() -> None:
    empty = f'<?xml version="1.0" encoding="UTF-8"?>\n<urlset {ROOT}'
    assert opening(Document(None)).decode() == empty
