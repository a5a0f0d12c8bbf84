from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rsnotify.format.datetimes import from_microseconds, to_microseconds
from rsnotify.format.model import Resource
from rsnotify_gateway.adapter import MissingEntry, OriginBatch, SeenEntry
from rsnotify_gateway.change_detection import record_batch, stored_cursor, usable_uri
from rsnotify_publisher.journal import Journal, system_clock

A, B = "https://site.example/a", "https://site.example/b"
NOW = system_clock() + 3600_000_000


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "journal.sqlite3", "http://gateway.example/") as journal:
        yield journal


def seen(uri: str, state: str = "1", place: str = "") -> SeenEntry:
    return SeenEntry(Resource(uri), state, place)


def record(journal: Journal, *entries: SeenEntry | MissingEntry) -> list[str]:
    before = journal.state().last_change
    with journal.transaction():
        record_batch(journal, OriginBatch(entries), NOW)
    return [f"{one.change} {one.uri[-1]}" for one in journal.changes(before)]


def test_a_batch_that_is_repeated_changes_nothing(journal: Journal):
    assert record(journal, seen(A), seen(B)) == ["created a", "created b"]
    assert record(journal, seen(A), seen(B)) == []
    assert record(journal, seen(A, "2"), MissingEntry(B)) == ["updated a", "deleted b"]
    assert record(journal, seen(A, "2"), MissingEntry(B)) == []


def test_entries_of_one_batch_follow_each_other(journal: Journal):
    entries = [seen(A), MissingEntry(A), seen(A, "2"), seen(A, "2")]
    assert record(journal, *entries) == ["created a", "deleted a", "created a"]


def test_a_resource_is_deleted_once_no_place_lists_it(journal: Journal):
    record(journal, seen(A, place="x"), seen(A, place="y"))
    assert record(journal, MissingEntry(A, frozenset({"x"}))) == []
    assert record(journal, MissingEntry(A, frozenset({"y"}))) == ["deleted a"]


def test_a_resource_that_is_never_seen_is_not_deleted(journal: Journal):
    assert record(journal, MissingEntry(A)) == []


@pytest.mark.parametrize("together", [True, False])
def test_a_uri_that_an_earlier_version_did_not_normalize_is_replaced(
    journal: Journal, together: bool
):
    old, new = "https://a.example/%7ea", "https://a.example/~a"
    record(journal, seen(old))
    entries = [seen(new), MissingEntry(old)]
    for batch in [entries] if together else [[one] for one in entries]:
        record(journal, *batch)
    assert [each.uri for each in journal.resources()] == [new]
    assert record(journal, seen(new)) == []


def test_the_cursor_is_stored_with_the_changes_or_not_at_all(journal: Journal):
    def fail() -> None:
        with journal.transaction():
            record_batch(journal, OriginBatch((seen(A),), "later"), NOW)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert stored_cursor(journal) is None
    assert journal.resource(A) is None
    with journal.transaction():
        record_batch(journal, OriginBatch((seen(A),), "later"), NOW)
        record_batch(journal, OriginBatch((seen(B),)), NOW)
    assert stored_cursor(journal) == "later"


def test_metadata_that_cannot_be_written_is_left_out(journal: Journal):
    with journal.transaction():
        batch = OriginBatch((SeenEntry(Resource(A, hash="no hash"), "1"),))
        assert record_batch(journal, batch, NOW) == 1
    found = journal.resource(A)
    assert found[0].hash is None


@pytest.mark.parametrize(
    ("uri", "usable"),
    [
        ("https://a.example/ä b", "https://a.example/%C3%A4%20b"),
        ("https://a.example/%20?x=1&y#z", "https://a.example/%20?x=1&y#z"),
        ("HTTPS://a.example:443/x/../%7ea%2f", "https://a.example/~a%2F"),
        ("no URI", None),
        ("https://a.example/" + "x" * 10_000, None),
    ],
)
def test_uris_are_normalized_if_that_makes_them_usable(uri: str, usable: str | None):
    assert usable_uri(uri) == usable


@pytest.mark.parametrize(
    ("stated", "dated"),
    [
        ((None, None), (100, None)),
        ((120, 90), (120, None)),
        ((90, 120), (100, 120)),
        ((99_999, 99_998), (200, None)),
        ((-1, 200), (100, 200)),
    ],
    ids=["none", "falling", "rising", "in the future", "in the past"],
)
def test_a_change_is_dated_by_its_check_or_its_lastmod_but_not_in_the_future(
    journal: Journal, stated: tuple[int | None, int | None], dated: tuple[int, int | None]
):
    """Seconds from the beginning; None is just after the change before."""
    begin = journal.state().reached

    def entry(uri: str, seconds: int | None) -> SeenEntry:
        lastmod = None if seconds is None else from_microseconds(begin + seconds * 1_000_000)
        return SeenEntry(Resource(uri, lastmod=lastmod), "1")

    batch = OriginBatch(tuple(map(entry, (A, B), stated)), at=begin + 100_000_000)
    with journal.transaction():
        record_batch(journal, batch, begin + 200_000_000)
    first, second = (to_microseconds(one.datetime) for one in journal.changes(0) if one.datetime)
    assert first == begin + dated[0] * 1_000_000
    assert second == (first + 1 if dated[1] is None else begin + dated[1] * 1_000_000)
