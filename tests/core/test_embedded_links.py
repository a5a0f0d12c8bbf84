"""Links in the bodies of pages and feeds, as WebSub §4 and core §6.3.3 use them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsnotify.format.links import html_links, xml_links

BOTH = [("hub", "https://hub.example/"), ("self", "/feed?a=1&b=2")]
HEAD = '<link rel="hub" href="https://hub.example/"><link href="/feed?a=1&amp;b=2" rel=SELF>'
ATOM = 'xmlns="http://www.w3.org/2005/Atom"'
ATOM_LINKS = (
    '<link rel="hub" href="https://hub.example/"/><link rel="self" href="/feed?a=1&amp;b=2"/>'
)
OTHER = '<link rel="hub" href="https://evil.example/"/>'


@pytest.mark.parametrize(
    ("text", "links"),
    [
        (f"<!doctype html><html><head><title>a</title>{HEAD}</head><body></body>", BOTH),
        (f"<meta charset=utf-8>{HEAD}<p>no head is said", BOTH),
        (f"<head></head>{HEAD}", []),
        (f"<html><body>{HEAD}", []),
        (f"<p>{HEAD}", []),
        ('<link rel="hub self" href="/a">', [("hub", "/a"), ("self", "/a")]),
        ('<link rel="hub"><link href="/a"><link rel href><link rel=hub href=" ">', []),
        (f"<script>'<body>'</script>{HEAD}", BOTH),
        (f"<![if IE]>{HEAD}", BOTH),
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
    assert xml_links(text.encode()) == BOTH


def test_links_are_found_before_a_document_breaks_off() -> None:
    text = f"<feed {ATOM}>{ATOM_LINKS}<entry>"
    assert xml_links(text.encode()) == BOTH
    assert xml_links(text.encode() + b"<entry></feed>") == BOTH


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


@given(st.text(alphabet='<>/="&;! \nabdehiklnru-[]\x00', max_size=200))
def test_links_can_be_searched_in_any_text(text: str) -> None:
    assert all(target for _, target in html_links(text) + xml_links(text.encode()))
