"""Which URIs identify the same resource: RFC 3986 §6.2 and RFC 3987 §3.1."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsnotify.format.uris import normalize, normalize_beginning
from rsnotify_subscriber.mirror.paths import MirrorLayout

#: Each line has spellings of one URI, the normal form first; no two lines have an equal one.
EQUAL = [
    # RFC 3986 §6.2.2
    ("example://a/b/c/%7Bfoo%7D", "eXAMPLE://a/./b/../b/%63/%7bfoo%7d", "example://a/b/c/{foo}"),
    # §6.2.2.1
    ("http://www.example.com/", "HTTP://www.EXAMPLE.com/", "http://www.example.com"),
    ("http://example.com/a%3Ab", "http://example.com/a%3ab"),
    ("http://[2001:db8::7]/c=GB?a", "http://[2001:DB8::7]/c=GB?a", "http://[2001:DB8::7]:80/c=GB?a"),
    # §6.2.2.2
    ("http://example.com/~smith/", "http://example.com/%7Esmith/", "http://example.com/%7esmith/"),
    ("http://example.com/-._~aZ9", "http://example.com/%2D%2e%5f%7E%61%5a%39"),
    # §6.2.2.3, and §5.2.4
    ("http://a/b/c/g", "http://a/b/c/./g", "http://a/../../b/c/x/../g", "http://a/b/c/%2e/g"),
    ("http://a/b/c/", "http://a/b/c/.", "http://a/b/c/g/..", "http://a/b/c/%2E%2E/c/%2e"),
    ("http://a/b//", "http://a/b//.", "http://a/b//c/.."),
    # §6.2.3
    ("http://example.com/", "http://example.com", "http://example.com:/", "http://example.com:80/"),
    ("https://example.com/a", "https://example.com:443/a", "https://example.com:0443/a"),
    ("http://example.com:0/", "http://example.com:00/"),
    ("http://example.com:8080/", "http://EXAMPLE.com:08080"),
    ("http://example.com/?q", "http://example.com?q", "http://example.com:80?q"),
    # RFC 3987 §3.1
    ("http://example.com/red%C3%BCr%20x?%E2%82%AC", "http://example.com/red\u00fcr x?\u20ac",
        "http://EXAMPLE.com/red%c3%bcr%20x?%e2%82%ac"),
    ("http://example.com/%F0%90%8C%80", "http://example.com/\U00010300"),
    ("http://example.com/%3C%3E%22%7B%7C%7D%5C%5E%60", 'http://example.com/<>"{|}\\^`'),
    ("http://xn--rsum-bpad.example.org/", "http://r\u00e9sum\u00e9.example.org/",
        "http://R%C3%A9sum%c3%a9.example.org"),
    ("http://example.com/100%25", "http://example.com/100%"),
    ("urn:example:~", "URN:example:%7e"),
]  # fmt: skip
#: URIs that differ, though some software treats them as one.
DISTINCT = [
    "http://a/b/c", "http://a/b%2Fc", "http://a/B/c", "http://a/b//c", "http://a/b/c/",
    "http://a/b/c?", "http://a/b/c?#", "http://a/b/c#", "http://a/b/c?a=1&b=2",
    "http://a/b/c?b=2&a=1", "http://a/b/c?a=1%26b=2", "http://a/b/c?a+b", "http://a/b/c?a%20b",
    "http://a/b/c?a%2Bb", "http://a/b/c?/../x", "http://a/b/c?/x", "http://a/b/$", "http://a/b/%24",
    "http://a/b/%2525", "http://a/b/%25", "http://a/b/%2541", "http://a/b/\u00fc",
    "http://a/b/u\u0308", "http://a/b/%FC", "https://a/b/c", "http://a:8080/b/c",
    "http://a:443/b/c", "https://a:80/b/c", "http://a./b/c", "http://www.a/b/c", "http://u@a/b/c",
    "http://U@a/b/c", "http://stra\u00dfe.example/", "http://strasse.example/",
]  # fmt: skip
PIECES = [*"aB~%/.?#:@[\\* \u00fc\ud800", "..", "41", ":80"]
PIECES += ["%7E", "%7e", "%2F", "%2f", "%2e", "%c3%bc", "%20", "%25", "%%34"]
texts = st.one_of(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), st.text(max_size=12))
heads = st.sampled_from(
    ["http://a/", "HTTP://a:80", "https://A:0443/", "http://", "urn:a", "", "x://u%7e:%@B/", "//"]
)
uris = st.builds("{}{}".format, heads, texts)


@pytest.mark.parametrize("spellings", EQUAL, ids=lambda spellings: spellings[0])
def test_spellings_of_one_uri_have_one_normal_form(spellings: tuple[str, ...]) -> None:
    assert {normalize(uri) for uri in spellings} == {spellings[0]}


def test_uris_that_differ_otherwise_stay_distinct() -> None:
    forms = [normalize(uri) for uri in DISTINCT]
    assert len(set(forms)) == len(DISTINCT)
    # Nearly all of them are in normal form.
    assert [uri for uri in DISTINCT if uri.isascii() and normalize(uri) != uri] == []


@pytest.mark.parametrize(("length", "is_encoded"), [(255, True), (256, False)])
def test_only_the_name_of_a_host_that_is_not_too_long_is_encoded(
    length: int, is_encoded: bool
) -> None:
    host = f"\u00fc{'.a' * 128}"[:length]
    assert normalize(f"http://{host}/").startswith("http://xn--") is is_encoded


@pytest.mark.parametrize(
    ("beginning", "normal"),
    [
        ("HTTP://A:80/%7e", "http://a/~"),
        ("HTTP://A/http://B", "http://a/http://B"),
        ("HTTP://A:8", "http://a:8"),
        ("HTTP://A*:80/%7e", "http://a*:80/~"),
        ("H*://A:80/%7e", "H*://A:80/~"),
        ("/%7e", "/~"),
    ],
)
def test_the_beginning_of_a_uri_is_normalized_as_far_as_it_is_known(
    beginning: str, normal: str
) -> None:
    assert normalize_beginning(beginning) == normal


@settings(max_examples=1_000)
@given(uris)
def test_a_normal_form_is_its_own(uri: str) -> None:
    assert normalize(normalize(uri)) == normalize(uri)


@given(st.lists(st.text(max_size=5).filter(lambda name: name not in (".", "..")), min_size=1))
def test_resources_with_different_names_stay_distinct(names: list[str]) -> None:
    path = "/".join(quote(name.encode("utf-8", "surrogatepass"), safe="") for name in names)
    assert normalize(f"http://a/{path}") == f"http://a/{path}"


@settings(max_examples=500)
@given(uris, uris)
def test_paths_of_normal_forms_are_as_distinct_as_these(one: str, other: str) -> None:
    layout = MirrorLayout("http://a/")
    forms = {normalize(one), normalize(other)}
    natural = [layout.natural(form) for form in forms]
    assert len(set(natural)) == len(natural) or None in natural
    assert len({layout.fallback(form) for form in forms}) == len(forms)


WHOLE = [piece for piece in PIECES if piece not in ("..", ".", "%2e", "%", "%%34")]


@given(st.lists(st.sampled_from(WHOLE), max_size=8))
def test_a_normal_form_begins_as_the_normal_form_of_its_beginning(pieces: list[str]) -> None:
    uri = "http://a:80/" + "".join(pieces)
    for number in range(len(pieces)):
        beginning = normalize_beginning("http://a:80/" + "".join(pieces[:number]))
        assert normalize(uri).startswith(beginning)
