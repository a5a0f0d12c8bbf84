"""Filtering of a log: a selection keeps all its entries, over the same time."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsnotify.format.datetimes import MICROSECOND, Instant
from rsnotify.format.model import Capability, ChangeType, Document, Link, Resource
from rsnotify.format.reader import read_document
from rsnotify.format.writer import write_document
from rsnotify.selection import PushSelection
from rsnotify_hub import filtering as cutting
from rsnotify_hub.filtering import (
    EmptyIntervalJoiner,
    FilterCache,
    FilteredReader,
    TopicSelection,
    filter_fragment,
    join_empty,
    selection_of_key,
)
from rsnotify_hub.fragments import Fragment, read_fragment
from rsnotify_hub.intake import whole_content
from rsnotify_hub.store.interface import LogEntry
from tests.hub import storing
from tests.hub.helpers import START, TOPIC, Clock, at

BASE = "https://source.example/data/"
MAPS = PushSelection(prefixes=(BASE + "maps/",))
AUDIT = (("{https://rsnotify.example/}digest", "x"),)


def change(second: float, uri: str, kind: ChangeType = ChangeType.UPDATED) -> Resource:
    return Resource(BASE + uri, change=kind, datetime=at(second))


def document(from_: float, until: float, *entries: Resource) -> Document:
    return Document(
        Capability.CHANGE_NOTIFICATION,
        entries,
        from_=at(from_),
        until=at(until),
        links=(Link("up", BASE + "capabilitylist.xml"),),
        attributes=AUDIT,
    )


def made(document: Document) -> Fragment:
    return read_fragment(write_document(document))


def left(*fragments: Fragment, select: PushSelection = MAPS) -> list[Fragment]:
    numbered = enumerate(fragments, 1)
    joined = join_empty(
        [LogEntry(number, filter_fragment(each, select)) for number, each in numbered]
    )
    return [entry.fragment for entry in joined]


def told(fragment: Fragment) -> tuple[float, float, list[str]]:
    found = read_document(fragment.body)
    return (
        (found.from_ - START).total_seconds(),
        (found.until - START).total_seconds(),
        [entry.uri.removeprefix(BASE) for entry in found.resources],
    )


def test_removed_entries_do_not_change_until() -> None:
    (one,) = left(made(document(0, 9, change(1, "maps/a"), change(2, "b"))))
    assert told(one) == (0, 9, ["maps/a"])


def test_a_filtered_fragment_has_no_statement_about_the_whole_set() -> None:
    (one,) = left(made(document(0, 9, change(1, "maps/a"), change(2, "b"))))
    assert read_document(one.body).attributes == ()
    assert read_document(one.body).links == (Link("up", BASE + "capabilitylist.xml"),)


def test_a_fragment_that_keeps_all_entries_keeps_its_bytes() -> None:
    given = made(document(0, 9, change(1, "maps/a"), change(2, "maps/b")))
    (one,) = left(given)
    assert one is given


def test_an_empty_fragment_is_joined_with_the_next() -> None:
    fragments = [made(document(n, n + 1, change(n + 1, f"b{n}"))) for n in range(5)]
    fragments.append(made(document(5, 6, change(6, "maps/a"))))
    assert [told(one) for one in left(*fragments)] == [(0, 6, ["maps/a"])]


def test_an_empty_fragment_at_the_end_is_kept() -> None:
    fragments = [made(document(n, n + 1, change(n + 1, f"b{n}"))) for n in range(5)]
    assert [told(one) for one in left(*fragments)] == [(0, 5, [])]


def test_a_heartbeat_that_overlaps_the_next_fragment_is_joined_too() -> None:
    fragments = [
        made(document(0, 1, change(1, "b"))),
        made(document(1, 11)),
        made(document(1, 12, change(12, "maps/a"))),
    ]
    assert [told(one) for one in left(*fragments)] == [(0, 12, ["maps/a"])]


def test_fragments_are_not_joined_across_a_gap() -> None:
    fragments = [made(document(0, 1, change(1, "b"))), made(document(5, 6, change(6, "maps/a")))]
    assert [told(one) for one in left(*fragments)] == [(0, 1, []), (5, 6, ["maps/a"])]


@pytest.mark.parametrize(
    "body",
    [
        b'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchi'
        b'ves.org/rs/terms/"><rs:md capability="changelist" from="2026-01-01T00:00:00Z"/><url><loc>'
        b'https://b.example/</loc><rs:md change="updated" datetime="2026-01-01T00:00:01Z"/></url>'
        b"</urlset>",
        b'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchi'
        b'ves.org/rs/terms/"><rs:md capability="changelist" from="2026-01-01T00:00:00Z" '
        b'until="2026-01-01T00:00:09Z"/><url><loc>https://b.example/</loc>'
        b'<rs:md change="updated"/></url></urlset>',
    ],
)
def test_a_fragment_without_datetimes_keeps_its_bytes(body: bytes) -> None:
    (one,) = left(read_fragment(body))
    assert one.body == body


def test_a_whole_content_keeps_its_bytes() -> None:
    given = whole_content(b"{}", "application/json", START)
    assert left(given) == [given]


NAMES = st.sampled_from(["maps/a", "maps/b.ttl", "c", "d.ttl", "e.html"])
SELECTS = st.builds(
    PushSelection,
    prefixes=st.lists(st.sampled_from([BASE + "maps/", BASE + "d"]), max_size=2).map(tuple),
    types=st.lists(st.sampled_from(["text/turtle", "text/html"]), max_size=1).map(tuple),
    changes=st.lists(st.sampled_from(list(ChangeType)), max_size=1).map(tuple),
)


@st.composite
def logs(draw: st.DrawFn) -> list[Document]:
    """Draw a log: contiguous fragments, overlapping heartbeats, and some gaps."""
    found, last, now = [], 0, 0
    for _ in range(draw(st.integers(1, 12))):
        now += draw(st.integers(1, 3))
        kind = draw(st.sampled_from(["change", "change", "change", "heartbeat", "gap"]))
        if kind == "gap":
            last = now
            now += 1
        entries = []
        if kind != "heartbeat":
            count = draw(st.integers(1, 3))
            for _ in range(count):
                now += 1
                entries.append(change(now, draw(NAMES), draw(st.sampled_from(list(ChangeType)))))
        found.append(document(last, now, *entries))
        last = now if entries else last
    return found


def time_of(fragments: list[Fragment]) -> list[tuple[Instant, Instant]]:
    """Return the time that fragments cover, as intervals that are not adjacent."""
    pieces: list[tuple[Instant, Instant]] = []
    for fragment in fragments:
        assert fragment.from_ is not None
        if pieces and pieces[-1][0] <= fragment.from_ <= pieces[-1][1]:
            pieces[-1] = (pieces[-1][0], max(pieces[-1][1], fragment.until))
        else:
            pieces.append((fragment.from_, fragment.until))
    return pieces


@given(logs(), SELECTS)
def test_every_selection_covers_the_same_time_and_misses_no_entry(
    log: list[Document], select: PushSelection
) -> None:
    fragments = [made(one) for one in log]
    found = left(*fragments, select=select)
    assert time_of(found) == time_of(fragments)
    asked = [entry for one in log for entry in one.resources if select.admits(entry)]
    assert [entry for one in found for entry in read_document(one.body).resources] == asked
    assert all(read_fragment(one.body).until == one.until for one in found)
    assert all(read_fragment(one.body).heartbeat == one.heartbeat for one in found)
    assert sum(one.heartbeat for one in found) <= len(time_of(found))


@given(logs(), SELECTS, st.integers(0, 12))
def test_joining_is_independent_of_the_batches(
    log: list[Document], select: PushSelection, first: int
) -> None:
    entries = [
        LogEntry(number, filter_fragment(made(one), select)) for number, one in enumerate(log, 1)
    ]
    joiner = EmptyIntervalJoiner()
    found = [*joiner.add(entries[:first]), *joiner.add(entries[first:]), *joiner.flush()]
    assert found == join_empty(entries)
    assert not joiner.holds


async def test_an_empty_fragment_is_sent_while_others_keep_arriving(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutting, "QUIET_SECONDS", 1_000.0)

    class Busy(FilterCache):
        """A cache during whose work there is always a new entry."""

        ends = 1

        async def filtered(self, *args: Any, **options: Any) -> list[LogEntry]:
            found = await super().filtered(*args, **options)
            self.ends += 1
            await topics.publish(TOPIC, made(document(self.ends - 1, self.ends)))
            return found

    sieve = Busy()
    async with storing.logs(tmp_path, clock) as (topics, _):
        await topics.publish(TOPIC, made(document(0, 1)))
        stream = FilteredReader(TopicSelection(TOPIC, MAPS), topics, sieve, 0)
        found = [await stream.next() for _ in range(5)]
        assert [told(entry.fragment) for part in found for entry in part] == [(0, 1, [])]
        assert stream.holds
    sieve.close()


async def test_each_selection_filters_a_fragment_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    real = PushSelection.admits

    def admits(self: PushSelection, resource: Resource) -> bool:
        looked.append(resource.uri)
        return real(self, resource)

    monkeypatch.setattr(PushSelection, "admits", admits)
    large = Resource(BASE + "b", change=ChangeType.UPDATED, datetime=at(2), hash="md5:" + "a" * 32)
    many = [large, *(change(3 + n, f"b{n}") for n in range(300))]
    entries = [
        LogEntry(1, made(document(0, 1, change(1, "maps/a")))),
        LogEntry(2, made(document(1, 400, *many))),
    ]
    sieve = FilterCache()
    try:
        for _ in range(3):
            found = await sieve.filtered(TopicSelection(TOPIC, MAPS), entries)
            assert [entry.position for entry in found] == [1, 2]
    finally:
        sieve.close()
    assert len(looked) == 302


@given(SELECTS.map(PushSelection.canonical))
def test_a_selection_is_restored_from_its_key(select: PushSelection) -> None:
    assert selection_of_key(TopicSelection(TOPIC, select).key) == TopicSelection(TOPIC, select)


def test_datetimes_keep_their_microseconds() -> None:
    first = at(1) + MICROSECOND
    entry = Resource(BASE + "b", change=ChangeType.UPDATED, datetime=first)
    one = made(document(0, 2, entry, change(2, "maps/a")))
    two = made(document(2, 3 + timedelta(microseconds=7).total_seconds()))
    assert [part.until for part in left(one, two)] == [at(2), at(3.000007)]
