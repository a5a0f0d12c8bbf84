"""Properties of paths; `tests/security/uris.toml` has the paths of single URIs."""

from __future__ import annotations

import unicodedata
from urllib.parse import quote

from hypothesis import example, given, settings
from hypothesis import strategies as st

from rsnotify_subscriber.mirror.paths import MirrorLayout
from tests.examples_count import examples

BASE = "http://example.com/data/"
PCHAR = "!$&'()*+,;=:@"

segments = st.one_of(
    st.text(max_size=8),
    st.text(alphabet="abAB.%2F2Ee0@~ ", max_size=8),
    st.sampled_from(["", ".", "..", "%2e%2e", "%2F", "%00", "\0", "con", "NUL.txt", "a.", "a "]),
    st.text(min_size=200, max_size=300),
)
paths = st.lists(segments, min_size=1, max_size=4).map("/".join)
uris = st.one_of(
    paths.map(lambda path: BASE + path),
    st.builds("{}://{}/{}".format, st.sampled_from(["http", "https"]), st.text(max_size=6), paths),
    st.text(max_size=20),
)
layouts = st.builds(MirrorLayout, st.just(BASE), st.booleans())


def folded(name: str) -> str:
    return unicodedata.normalize("NFC", name.casefold())


def all_paths(layout: MirrorLayout, uri: str) -> list[tuple[str, ...]]:
    natural = layout.natural(uri)
    return [layout.fallback(uri), *([natural] if natural else [])]


@given(layouts, uris)
def test_every_path_is_inside_the_root(layout: MirrorLayout, uri: str) -> None:
    for names in all_paths(layout, uri):
        assert names
        for name in names:
            assert name not in ("", ".", "..")
            assert "/" not in name
            assert "\0" not in name
            assert len(name.encode()) <= 255


@settings(max_examples=examples(200))
@given(layouts, uris, uris)
@example(MirrorLayout(BASE), BASE + "a b", BASE + "a%20b")
@example(MirrorLayout(BASE), BASE + "%41", BASE + "A")
@example(MirrorLayout(BASE), BASE + "a%2Fb", BASE + "a/b")
@example(MirrorLayout(BASE), BASE + "a%252Fb", BASE + "a%2Fb")
@example(MirrorLayout(BASE), BASE + "@@http/x/y", "http://x/y")
@example(MirrorLayout(BASE), BASE + "%C3%A9", BASE + "%c3%a9")
@example(MirrorLayout(BASE), BASE + "a", BASE + "a/")
@example(MirrorLayout(BASE, portable=True), BASE + "README", BASE + "readme")
@example(MirrorLayout(BASE, portable=True), BASE + "a.", BASE + "a")
@example(MirrorLayout(BASE, portable=True), BASE + "%C3%A9", BASE + "e%CC%81")
@example(MirrorLayout(BASE, portable=True), "http://X/y", "http://x/y")
def test_two_uris_never_share_a_path(layout: MirrorLayout, one: str, other: str) -> None:
    if one == other:
        return
    ours, theirs = all_paths(layout, one), all_paths(layout, other)
    if layout.portable:
        ours = [tuple(map(folded, names)) for names in ours]
        theirs = [tuple(map(folded, names)) for names in theirs]
    assert not set(ours) & set(theirs)


@given(uris)
def test_a_natural_path_never_leads_through_the_folder_of_fallbacks(uri: str) -> None:
    layout = MirrorLayout(BASE)
    natural = layout.natural(uri)
    assert natural is None or natural[0] != layout.fallback(uri)[0]


@given(layouts, uris)
def test_a_fallback_path_is_mapped_back_to_its_uri_unless_it_is_a_digest(
    layout: MirrorLayout, uri: str
) -> None:
    try:
        uri.encode()
    except UnicodeEncodeError:
        return
    assert layout.uri_of_fallback(layout.fallback(uri)[1]) in (uri, None)


names = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=20
).filter(lambda name: name not in (".", "..") and not name.startswith("@@"))


@given(st.lists(names, min_size=1, max_size=3))
def test_a_file_that_was_published_is_mirrored_under_its_own_name(path: list[str]) -> None:
    uri = BASE + "/".join(quote(name, safe=PCHAR) for name in path)
    assert MirrorLayout(BASE).natural(uri) == tuple(path)
