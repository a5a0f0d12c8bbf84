"""The distinction of fragments and whole contents."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsnotify.errors import DocumentError, InvalidDocument, MalformedDocument, TooLarge
from rsnotify_hub.fragments import Fragment, FragmentKind
from rsnotify_hub.intake import is_text, is_xml, read_content
from tests.growth import check_growth
from tests.hub.helpers import at, fragment

NOW = at(1000)
FEED = b'<feed xmlns="http://www.w3.org/2005/Atom"><title>News</title></feed>'


def read(body: bytes, content_type: str = "application/xml") -> Fragment:
    return read_content(body, content_type=content_type, received=NOW)


def test_a_document_of_the_sitemap_namespace_is_a_fragment():
    assert read(fragment(0, 1, 2)).kind is FragmentKind.CHANGES


@given(st.sampled_from(["text/html", "application/json", "image/png", "TEXT/Plain"]), st.binary())
def test_content_that_is_not_xml_is_kept_exactly(content_type: str, body: bytes):
    content = read(body, content_type)
    assert (content.kind, content.body, content.content_type) == (
        FragmentKind.WHOLE,
        body,
        content_type,
    )
    assert (content.from_, content.until, content.heartbeat) == (None, NOW, False)
    assert content.begins < at(0)


@pytest.mark.parametrize(
    "body",
    [
        FEED,
        b"<urlset/>",
        '<?xml version="1.0" encoding="ISO-8859-1"?><a>\xe4</a>'.encode("latin-1"),
        '<?xml version="1.0" encoding="UTF-16"?><a>\u00e4</a>'.encode("utf-16"),
        b'<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0 Strict//EN" "http://x.example/x.dtd">'
        b'<html xmlns="http://www.w3.org/1999/xhtml">&nbsp;</html>',
        b'<a xmlns:s="http://www.sitemaps.org/schemas/sitemap/0.9"><s:urlset/></a>',
    ],
)
def test_other_xml_is_kept_exactly(body: bytes):
    content = read(body, "application/atom+xml; charset=utf-8")
    assert (content.kind, content.body) == (FragmentKind.WHOLE, body)
    assert content.content_type == "application/atom+xml; charset=utf-8"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no xml",
        b"<a><b></a>",
        b"<a/><a/>",
        FEED[:-1],
        b"<p:a/>",
        '<?xml version="1.0" encoding="shift_jis"?><a/>'.encode("shift_jis"),
        b'<?xml version="1.0" encoding="none-such"?><a/>',
        b'<!DOCTYPE a [<!ENTITY b "boom">]><a c="&b;"/>',
    ],
)
def test_xml_that_is_not_well_formed_is_refused(body: bytes):
    with pytest.raises(MalformedDocument):
        read(body)


@pytest.mark.parametrize(
    "body",
    [
        fragment(0, 2, 1),
        b"<!DOCTYPE urlset>" + fragment(0, 1),
        b'<other xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"/>',
        b'<sitemapindex xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"/>',
        fragment(0, 1).removesuffix(b"</urlset>\n"),
    ],
)
def test_a_document_of_the_sitemap_namespace_must_be_a_fragment(body: bytes):
    with pytest.raises(DocumentError):
        read(body)


@pytest.mark.parametrize("content_type", ["text/plain\r\nX: y", "text/\u00e4"])
def test_a_content_type_that_would_break_a_header_is_refused(content_type: str):
    with pytest.raises(InvalidDocument, match="Content-Type"):
        read(b"", content_type)


@pytest.mark.parametrize(
    ("content_type", "xml"),
    [
        ("application/xml", True),
        ("Text/XML ; charset=utf-8", True),
        ("application/rss+xml", True),
        ("application/xml-dtd", False),
        ("text/html", False),
        ("", False),
    ],
)
def test_xml_is_known_by_its_media_type(content_type: str, xml: bool):
    assert is_xml(content_type) is xml


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"plain", True),
        (b"\xff\xfe", False),
        (b'{"type":"gap"}', False),
        (b"[1]", True),
        (b"", True),
    ],
)
def test_content_is_a_text_frame_only_if_it_is_unambiguous(body: bytes, text: bool):
    assert is_text(read(body, "application/json")) is text
    assert is_text(read(fragment(0, 1)))


@pytest.mark.parametrize("begin", [b"<!--", b"<a b='", b"<"])
def test_an_endless_tag_is_not_read_to_its_end(begin: bytes):
    with pytest.raises(TooLarge, match="more than"):
        read(b"<a>" + begin + b"a" * 30_000_000)


@pytest.mark.parametrize("repeated", [b"<a/>", b"&#48;", b"<!---->", b" ", b"<a b='c'>", b"]"])
def test_reading_content_takes_linear_time(repeated: bytes):
    def work(length: int) -> None:
        with suppress(DocumentError):
            read(b"<a>" + repeated * (length // len(repeated)))

    check_growth(work, 500_000)


def test_a_long_comment_is_no_longer_for_what_follows_it():
    body = b"<a><!--" + b" " * 9_000_000 + b"-->" + b"<b/>" * 1_000_000 + b"</a>"
    assert read(body).kind is FragmentKind.WHOLE
