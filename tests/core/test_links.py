"""Link headers (RFC 8288) as WebSub and discovery use them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsnotify.format.links import format_links, html_links, parse_links, xml_links

BOTH = [("self", "http://a/"), ("hub", "http://b/")]
TARGETS = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters="<>"))


@pytest.mark.parametrize(
    ("headers", "links"),
    [
        (['<http://a/>; rel="self"'], [("self", "http://a/")]),
        (["<http://a/>;rel=self, <http://b/> ; rel=hub"], BOTH),
        (["<http://a/>; rel=self", "<http://b/>; rel=hub"], BOTH),
        (['<a?x=1,2;3>; title="b, c; rel=no"; rel="up"'], [("up", "a?x=1,2;3")]),
        (['<a>; rel="up index"'], [("up", "a"), ("index", "a")]),
        ([r'<a>; rel="u\p"'], [("up", "a")]),
        (['<http://a/>; REL="self"; rel="hub"'], [("self", "http://a/")]),
        (["<http://a/>"], []),
        (["nonsense"], []),
    ],
)
def test_links_are_read(headers: list[str], links: list[tuple[str, str]]) -> None:
    assert parse_links(headers) == links


@given(st.lists(st.tuples(st.sampled_from(["self", "hub", "up"]), TARGETS), max_size=4))
def test_what_is_written_is_read_back(links: list[tuple[str, str]]) -> None:
    assert parse_links([format_links(links)]) == links


@pytest.mark.parametrize(
    "target", ["http://a/>; rel=x", "http://a/\r\nSet-Cookie: x", "a b", "a\x7f"]
)
def test_a_target_that_would_break_out_of_the_header_is_not_written(target: str) -> None:
    with pytest.raises(ValueError, match="Link header"):
        format_links([("self", target)])


def test_links_are_written_in_one_header_with_commas_between() -> None:
    written = format_links([("self", "http://a/1"), ("hub", "http://a/2")])
    assert written == '<http://a/1>; rel="self", <http://a/2>; rel="hub"'


# Links in the bodies of pages and feeds, as WebSub §4 and core §6.3.3 use them.


HUB_AND_SELF = [("hub", "https://hub.example/"), ("self", "/feed?a=1&b=2")]
HEAD = '<link rel="hub" href="https://hub.example/"><link href="/feed?a=1&amp;b=2" rel=SELF>'
ATOM = 'xmlns="http://www.w3.org/2005/Atom"'
ATOM_LINKS = (
    '<link rel="hub" href="https://hub.example/"/><link rel="self" href="/feed?a=1&amp;b=2"/>'
)
OTHER = '<link rel="hub" href="https://evil.example/"/>'


@pytest.mark.parametrize(
    ("text", "links"),
    [
        (f"<!doctype html><html><head><title>a</title>{HEAD}</head><body></body>", HUB_AND_SELF),
        (f"<meta charset=utf-8>{HEAD}<p>no head is said", HUB_AND_SELF),
        (f"<head></head>{HEAD}", []),
        (f"<html><body>{HEAD}", []),
        (f"<p>{HEAD}", []),
        ('<link rel="hub self" href="/a">', [("hub", "/a"), ("self", "/a")]),
        ('<link rel="hub"><link href="/a"><link rel href><link rel=hub href=" ">', []),
        (f"<script>'<body>'</script>{HEAD}", HUB_AND_SELF),
        (f"<![if IE]>{HEAD}", HUB_AND_SELF),
    ],
)
def test_links_are_found_in_the_head_of_a_page(text: str, links: list[tuple[str, str]]) -> None:
    assert html_links(text) == links


@pytest.mark.parametrize(
    "text",
    [
        f"<feed {ATOM}><title>t</title>{ATOM_LINKS}<entry>{OTHER}</entry></feed>",
        f'<rss version="2.0"><channel {ATOM}>{ATOM_LINKS}<item>{OTHER}</item></channel></rss>',
        '<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"'
        ' xmlns:rs="http://www.openarchives.org/rs/terms/">'
        '<rs:ln rel="hub" href="https://hub.example/"/>'
        '<rs:ln rel="self" href="/feed?a=1&amp;b=2"/>'
        '<url><loc>a</loc><rs:ln rel="hub" href="https://evil.example/"/></url></urlset>',
    ],
)
def test_only_links_of_the_feed_itself_are_found_and_not_those_of_entries(text: str) -> None:
    assert xml_links(text.encode()) == HUB_AND_SELF


def test_links_are_found_before_a_document_breaks_off() -> None:
    text = f"<feed {ATOM}>{ATOM_LINKS}<entry>"
    assert xml_links(text.encode()) == HUB_AND_SELF
    assert xml_links(text.encode() + b"<entry></feed>") == HUB_AND_SELF


@pytest.mark.parametrize(
    "text",
    [
        '<!DOCTYPE feed [<!ENTITY hub "https://evil.example/">]>'
        f'<feed {ATOM}><link rel="hub" href="&hub;"/></feed>',
        f'<!DOCTYPE feed [<!ATTLIST link rel CDATA "hub">]><feed {ATOM}><link href="/a"/></feed>',
    ],
)
def test_nothing_is_found_in_a_feed_with_a_doctype(text: str) -> None:
    assert xml_links(text.encode()) == []
