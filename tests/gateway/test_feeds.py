from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from functools import partial
from io import BytesIO
from pathlib import Path

import pytest

from rsnotify.errors import DocumentError, TooLarge
from rsnotify_gateway.adapters import feeds
from rsnotify_gateway.adapters.feeds import parse_feed
from tests.gateway.checking import Checking, origin
from tests.gateway.origin_server import SITE, Site, atom
from tests.harnesses.test_surfaces import calls

URL = "https://site.example/feed"


def rss(entries: Sequence[tuple[str, str]]) -> bytes:
    items = "".join(
        f"<item><title>{title}</title><link>{SITE}{name}</link>"
        "<pubDate>Mon, 02 Nov 2026 10:00:00 GMT</pubDate></item>"
        for name, title in entries
    )
    return f'<rss version="2.0"><channel><title>F</title>{items}</channel></rss>'.encode()


@pytest.fixture
async def checking(site: Site, tmp_path: Path) -> AsyncIterator[Checking]:
    async with Checking(tmp_path, origin("feed", site.url("/feed"))) as checking:
        yield checking


@pytest.mark.parametrize("write", [atom, rss])
async def test_new_and_changed_entries_are_seen(site: Site, checking: Checking, write: type):
    site.pages["/feed"] = write([("b", "B"), ("a", "A")])
    assert await checking.check() == {SITE + "a": "created", SITE + "b": "created"}
    site.pages["/feed"] = write([("c", "C"), ("b", "better")])
    assert await checking.check() == {SITE + "b": "updated", SITE + "c": "created"}
    assert await checking.check() == {}


async def test_an_entry_that_leaves_the_feed_is_not_deleted(site: Site, checking: Checking):
    site.pages["/feed"] = atom([("b", "B"), ("a", "A")])
    await checking.check()
    site.pages["/feed"] = atom([("c", "C"), ("b", "B")])
    await checking.check()
    assert set(checking.resources()) == {SITE + name for name in "abc"}
    assert "Deletions are not detected." in checking.limits
    assert "missed" not in checking.limits


async def test_entries_that_may_have_been_missed_are_reported(
    site: Site, checking: Checking, tmp_path: Path
):
    site.pages["/feed"] = atom([("b", "B"), ("a", "A")])
    await checking.check()
    site.pages["/feed"] = atom([("f", "F"), ("e", "E")])
    assert await checking.check() == {SITE + "e": "created", SITE + "f": "created"}
    assert "Entries may have been missed before 20" in checking.limits
    async with Checking(tmp_path, origin("feed", site.url("/feed"))) as again:
        await again.check()
        assert "Entries may have been missed before 20" in again.limits


async def test_a_resource_that_a_feed_lists_twice_has_its_newest_state(
    site: Site, checking: Checking
):
    site.pages["/feed"] = atom([("a", "new"), ("b", "B"), ("a", "old")], "/feed/2")
    site.pages["/feed/2"] = atom([("a", "older"), ("c", "C")])
    assert set(await checking.check()) == {SITE + name for name in "abc"}
    site.pages["/feed"] = atom([("d", "D"), ("a", "new"), ("b", "B"), ("a", "old")], "/feed/2")
    assert await checking.check() == {SITE + "d": "created"}


async def test_an_entry_that_is_pinned_to_the_top_hides_no_gap(site: Site, checking: Checking):
    site.pages["/feed"] = atom([("pinned", "P"), ("b", "B"), ("a", "A")])
    await checking.check()
    site.pages["/feed"] = atom([("pinned", "P"), ("f", "F"), ("e", "E")])
    await checking.check()
    assert "missed" in checking.limits


@pytest.mark.parametrize("rel", ["next", "prev-archive"])
async def test_pages_with_older_entries_close_the_gap(site: Site, checking: Checking, rel: str):
    site.pages["/feed"] = atom([("b", "B"), ("a", "A")])
    await checking.check()
    site.pages["/feed"] = atom([("f", "F"), ("e", "E")], "/feed/2", rel)
    site.pages["/feed/2"] = atom([("d", "D"), ("c", "C")], "/feed/3", rel)
    site.pages["/feed/3"] = atom([("b", "B"), ("a", "A")], "/feed/4", rel)
    assert await checking.check() == {SITE + name: "created" for name in "cdef"}
    assert "missed" not in checking.limits
    assert site.requests["/feed/4"] == 0


async def test_an_entry_that_moves_between_pages_while_they_are_read_is_not_missed(
    site: Site, checking: Checking
):
    site.pages["/feed"] = atom([("b", "B"), ("a", "A")])
    await checking.check()
    site.pages["/feed"] = atom([("f", "F"), ("e", "E")], "/feed/2")
    site.pages["/feed/2"] = atom([("d", "D"), ("c", "C")], "/feed/3")
    site.pages["/feed/3"] = atom([("b", "B"), ("a", "A")])

    def move(path: str) -> None:
        if path == "/feed/2":  # e is deleted
            site.pages["/feed"] = atom([("f", "F"), ("d", "D")], "/feed/2")
            site.pages["/feed/2"] = atom([("c", "C")], "/feed/3")

    site.before = move
    assert set(await checking.check()) >= {SITE + name for name in "cdf"}


async def test_a_feed_whose_pages_do_not_end_is_cut_off_and_that_is_stated(
    site: Site, checking: Checking, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(feeds, "_MAX_PAGES", 20)

    def write(path: str) -> None:
        number = int(path.rpartition("/")[2]) if path != "/feed" else 0
        site.pages[path] = atom([(f"e{number}", "E")], f"/feed/{number + 1}")

    site.before = lambda path: write(path) if path.startswith("/feed") else None
    await checking.check()
    assert site.requests.total() < 30
    assert "may have been missed" in checking.limits


async def test_an_unchanged_feed_is_not_sent_again(site: Site, checking: Checking):
    site.pages["/feed"] = atom([("a", "A")])
    for _ in range(3):
        await checking.check()
    assert site.sent["/feed"] == 1


@pytest.mark.parametrize(
    "data",
    [
        atom([("a", "A")])[:-30],
        b"<html><body>no feed</body></html>",
        b'<!DOCTYPE feed [<!ENTITY a "b">]>' + atom([("a", "&a;")]),
    ],
    ids=["truncated", "HTML", "entities"],
)
def test_what_is_no_feed_is_refused(data: bytes):
    with pytest.raises(DocumentError):
        parse_feed(data, URL)


def test_entries_without_a_uri_are_counted():
    data = atom([("a", "A")]).replace(f"<link href='{SITE}a'/>".encode(), b"")
    found = parse_feed(data, URL)
    assert found.entries == ()
    assert found.nameless == 1


@pytest.mark.parametrize("is_absolute", [True, False], ids=["absolute", "relative"])
def test_a_feed_that_is_the_path_of_a_file_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_absolute: bool
):
    (tmp_path / "secret").write_bytes(atom([("a", "A")]))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DocumentError):
        parse_feed(str(tmp_path / "secret").encode() if is_absolute else b"secret", URL)


@pytest.mark.parametrize(
    ("encoding", "declared"),
    [
        ("utf-8", ""),
        ("utf-8-sig", ""),
        ("utf-16", "utf-16"),
        ("utf-16-le", ""),
        ("utf-32-be", "utf-32"),
        ("iso-8859-1", "ISO-8859-1"),
        ("shift_jis", "shift_jis"),
        ("windows-1252", "utf-8"),
        ("utf-8", "unknown"),
        ("utf-8", "idna"),
    ],
)
def test_a_feed_is_read_in_its_encoding(encoding: str, declared: str):
    declaration = f"<?xml version='1.0' encoding='{declared}'?>" if declared else ""
    name = "\u8a9e" if encoding == "shift_jis" else "\xe9"
    data = (declaration + atom([(name, "A")]).decode()).encode(encoding)
    assert [entry.uri for entry in parse_feed(data, URL).entries] == [SITE + name]


@pytest.mark.parametrize(
    "prologue",
    [
        b"\n<?xml version='1.0'?>\r\n<?xml-stylesheet href='a?b'?> ",
        b"<!-- a - b > <feed> -->",
        b'<!DOCTYPE feed PUBLIC "-//N//D" "http://site.example/a.dtd">\n',
    ],
)
def test_what_precedes_the_root_element_is_passed_over(prologue: bytes):
    assert len(parse_feed(prologue + atom([("a", "A")]), URL).entries) == 1


_BEGIN = b'<feed xmlns="http://www.w3.org/2005/Atom" xmlns:p="urn:p"><title>t</title>'
#: Parts that took feedparser time in proportion to the square of their number, or longer.
REPEATED = {
    "line ends before the root element": (b"", b"\n", _BEGIN + b"</feed>"),
    "encodings": (b"<?", b"encoding='", _BEGIN + b"</feed>"),
    "encodings in a declaration": (b"<?xml ", b"encoding='a' ", b"?>" + _BEGIN + b"</feed>"),
    "comments": (b"", b"<!-- a -->\n", _BEGIN + b"</feed>"),
    "a comment that does not end": (b"<!--", b"- -", b""),
    "instructions": (b"", b"<?a b?>\n", _BEGIN + b"</feed>"),
    "a root element that no expression finds": ("<\xe9>".encode(), b"\n", "</\xe9>".encode()),
    "an encoding that is slow": (b"<?xml version='1.0' encoding='punycode'?>", b"a-b", b""),
    "letters in the name of an author": (
        _BEGIN + b"<entry><author><name>",
        b"a",
        b"</name></author></entry></feed>",
    ),
    "attributes": (_BEGIN + b"<entry", b" a='b'", b"/></feed>"),
    "elements below a long base": (
        _BEGIN + b"<a xml:base='http://site.example/" + b"a/" * 5_000 + b"'>",
        b"<b/>",
        b"</a></feed>",
    ),
    "levels": (_BEGIN, b"<a>", b""),
}


@pytest.mark.parametrize("name", REPEATED)
def test_a_feed_takes_steps_in_proportion_to_its_length_or_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    import feedparser

    passed: list[int] = []
    parse = feedparser.parse

    def count(stream: BytesIO, **options: object) -> object:
        passed.append(len(stream.getvalue()))
        return parse(stream, **options)

    monkeypatch.setattr(feedparser, "parse", count)
    begin, repeated, end = REPEATED[name]
    data = begin + repeated * 20_000 + end
    with suppress(DocumentError):
        steps = calls(partial(parse_feed, data, URL))
        assert steps < 10 * len(data)
    assert all(length <= len(_BEGIN) + 100 for length in passed), "feedparser saw what is slow"


@pytest.mark.parametrize(
    ("part", "number", "is_refused"),
    [
        ("<a xmlns:{0}='urn:{0}'/>", 150, True),
        ("<a xmlns:a='urn:a'/>", 150, False),
        ("<author><name>Ada Lovelace,</name></author>", 150, False),
    ],
    ids=["different namespaces", "one namespace", "authors"],
)
def test_limits_are_those_of_what_is_costly(part: str, number: int, is_refused: bool):
    parts = "".join(part.format(f"n{each}") for each in range(number))
    data = atom([("a", "A")]).replace(b"<id>", parts.encode() + b"<id>")
    if is_refused:
        with pytest.raises(TooLarge, match="more than 100 namespaces"):
            parse_feed(data, URL)
    else:
        assert len(parse_feed(data, URL).entries) == 1
