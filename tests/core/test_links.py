"""Link headers (RFC 8288) as WebSub and discovery use them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsnotify.format.links import format_links, parse_links

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


@given(st.text())
def test_no_text_makes_the_reader_fail(text: str) -> None:
    parse_links([text])


def test_links_are_written_in_one_header_with_commas_between() -> None:
    written = format_links([("self", "http://a/1"), ("hub", "http://a/2")])
    assert written == '<http://a/1>; rel="self", <http://a/2>; rel="hub"'
