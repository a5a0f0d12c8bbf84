"""A cache, or a replica that lags, answers with an earlier version of a resource.

Where the entry has a hash, that shows. Without one there are its length and dates, and those of
the answer. RFC 9111 §4.2.4 lets caches serve stale content, §5.2.1.4 lets clients ask past them.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from rsnotify.selection import Selection
from rsnotify_subscriber.fetching.fetcher import Fetcher
from rsnotify_subscriber.fetching.sessions import Sessions
from tests.wild.documents import change_list, days, entry, ln, seconds, sha256
from tests.wild.running import (
    Copy,
    Folder,
    assert_honest,
    audited,
    command_follow_once,
    follow_once,
    following,
    outcome_of,
    pace,
    run_honest,
    run_right,
    until,
    until_right,
)
from tests.wild.source import Answer, Request, Source, nginx_etag

ETAG = '"that of version 1"'


def listed(source: Source, *changes: str) -> None:
    source.list_changes(*changes, from_=0)


@pytest.fixture
async def followed(source: Source, folder: Path) -> Source:
    source.offer()
    source.file("a", b"version 1", -500, etag=ETAG)
    source.list_entries(entry(source.uri("a")), at=0)
    listed(source)
    await run_right(source, folder)
    return source


def cached(source: Source, stale: Answer) -> None:
    """Make a cache answer with an old version, unless a request bypasses it."""
    current = source.answers["/set/a"]

    def answer(request: Request) -> Any:
        return current if request.past_caches else stale

    source.put("a", answer)


OLD_DATE, OLD_AGE = {"modified": -500}, {"date": 100, "age": 3000}


def offsets(source: Source, fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields in which offsets from the start are instants."""
    moments = ("modified", "date", "lastmod", "datetime")
    return {name: source.t(one) if name in moments else one for name, one in fields.items()}


@pytest.mark.parametrize(
    ("stale", "answer", "told"),
    [
        (b"version 1", {}, {"hash": sha256(b"version 10")}),
        (b"version 1", {}, {"length": 10}),
        (b"version 1", OLD_DATE, {"lastmod": 600}),
        (b"version 1", OLD_DATE, {}),
        (b"version x", OLD_DATE, {"lastmod": 600}),
        (b"version x", OLD_DATE, {}),
        (b"version x", OLD_AGE, {}),
        (b"version x", OLD_AGE, {"lastmod": 600}),
    ],
)
async def test_a_stale_copy_of_a_cache_is_not_taken(
    followed: Source, folder: Path, stale: bytes, answer: dict[str, Any], told: dict[str, Any]
):
    source = followed
    source.file("a", b"version 10", 600)
    cached(source, Answer(stale, **offsets(source, answer)))
    told = offsets(source, {"datetime": 600, **told})
    listed(source, entry(source.uri("a"), "updated", **told))
    await run_right(source, folder)
    assert len(source.requests("a")) == 3


@pytest.mark.parametrize("told", [{"length": 10}, {}])
async def test_an_answer_that_nothing_has_changed_is_not_believed_where_something_has(
    followed: Source, folder: Path, told: dict[str, Any]
):
    source = followed
    source.file("a", b"version 10", 600)
    cached(source, Answer(b"version 1", etag=ETAG, modified=source.t(-500)))
    listed(source, entry(source.uri("a"), "updated", datetime=source.t(600), **told))
    await run_right(source, folder)


async def test_a_replica_that_lags_is_asked_again(followed: Source, folder: Path):
    source = followed
    old = Answer(b"version 1", modified=source.t(-500))
    source.file("a", b"version 10", 600)
    source.put("a", old, old, old, Answer(b"version 10", modified=source.t(600)))
    changed = entry(source.uri("a"), "updated", lastmod=source.t(600), datetime=source.t(600))
    listed(source, changed)
    await run_right(source, folder)


async def test_what_stays_old_is_taken_in_the_end_and_looked_at_again(
    followed: Source, folder: Path, caplog: pytest.LogCaptureFixture
):
    source = followed
    source.put("a", Answer(b"version x", modified=source.t(-500)))
    times = {"lastmod": source.t(600)}
    listed(source, entry(source.uri("a"), "updated", datetime=source.t(600), **times))
    for _ in range(2):  # it is still said when nothing is new
        outcome = await follow_once(source, folder)
        assert not outcome.claims
        assert any("but one of" in reason and "/a" in reason for reason in outcome.reasons)
    assert "may be out of date" in caplog.text
    assert (folder / "a").read_bytes() == b"version x"
    outcome = await command_follow_once(source, folder)
    assert outcome.code == 1
    source.file("a", b"version 10", 600)
    source.list_entries(entry(source.uri("a"), lastmod=source.t(600)), at=900)
    listed(source)
    source.list_changes(from_=800)
    await run_right(source, folder)  # a gap: all is compared


@pytest.fixture
async def doubted(followed: Source, folder: Path) -> Source:
    """A Source of only changes without hashes, whose cache served an old version for too long."""
    source = followed
    source.put("a", Answer(b"version x", modified=source.t(-500)))
    listed(source, entry(source.uri("a"), "updated", lastmod=source.t(600), datetime=source.t(600)))
    outcome = await follow_once(source, folder)
    assert not outcome.claims
    return source


async def test_the_next_run_requests_doubtful_content_again(doubted: Source, folder: Path):
    source = doubted
    for _ in range(2):
        source.forget()
        assert not (await follow_once(source, folder)).claims
        assert len(source.requests("a")) == 1
    source.file("a", b"version 10", 600)
    await run_right(source, folder)
    source.forget()
    await run_right(source, folder)
    assert not source.requests("a")


async def test_a_running_follower_requests_doubtful_content_again(doubted: Source, folder: Path):
    source = doubted
    source.forget()
    async with following(source, folder, pace=pace(repair=0.2)) as subscriber:
        await until(subscriber, lambda _: len(source.requests("a")) == 3)
        assert not outcome_of(subscriber.status).claims
        source.file("a", b"version 10", 600)
        await until_right(subscriber, folder, source)


async def test_doubtful_content_that_is_deleted_is_not_requested_again(
    doubted: Source, folder: Path
):
    source = doubted
    listed(
        source,
        entry(source.uri("a"), "updated", lastmod=source.t(600), datetime=source.t(600)),
        source.delete("a", 700),
    )
    await run_right(source, folder)
    source.forget()
    await run_right(source, folder)
    assert not source.requests("a")


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"modified": 599.9}, {"lastmod": 600.4}),  # rounded differently
        ({"modified": 600}, {"lastmod": 600.9, "datetime": 601}),
        ({}, {"lastmod": 600}),
        ({"modified": -3600 * 10}, {}),  # listed by the day, of another time zone
        ({"modified": 86_400}, {"lastmod": 600}),  # now
    ],
)
async def test_a_server_whose_dates_fit_is_asked_once(
    followed: Source, folder: Path, answer: dict[str, Any], told: dict[str, Any]
):
    source = followed
    source.resources["a"] = b"version 10"
    source.put("a", Answer(b"version 10", **offsets(source, answer)))
    day = {"lastmod": days(source.t(600))}
    told = {"datetime": source.t(600)} | (offsets(source, told) or day)
    source.forget()
    listed(source, entry(source.uri("a"), "updated", **told))
    await run_right(source, folder)
    assert len(source.requests("a")) == 1


async def test_a_source_that_notices_changes_late_is_soon_asked_once(
    followed: Source, folder: Path
):
    """Its datetimes are those of a nightly scan, and say nothing against older files."""
    source = followed
    changed = []
    for number in range(12):
        source.file(str(number), b"%d" % number, -10_000)
        uri = source.uri(str(number))
        changed.append(entry(uri, "created", datetime=source.t(600 + number)))
        listed(source, *changed)
        outcome = await follow_once(source, folder)
        assert outcome.claims
    assert_honest(folder, source, outcome)
    assert len(source.requests("11")) == 2  # each run learns by itself


# Mirrors, mementos and alternates of a resource are older than the entry that links to them.
#
# core §14.2, §14.3 and §14.6. Where a digest is announced it tells; where none is, a mirror is not
# the Source, and an answer whose Last-Modified is older than the announced one is not the version
# that was announced.


@pytest.fixture
def mirrored(source: Source) -> None:
    source.begin("a", "b")
    source.put("/mirror/a", Answer(b"a", modified=source.t(-1000), etag='"old"'))


def change_a(source: Source, *links: str, hashed: bool = True) -> None:
    source.file("a", b"changed", 60)
    told = source.changed(
        "a", "updated", 60, hashed=hashed, lastmod=seconds(source.t(60)), links=links
    )
    source.list_changes(told)


@pytest.mark.usefixtures("mirrored")
@pytest.mark.parametrize("hashed", [True, False], ids=["with a hash", "without"])
@pytest.mark.parametrize("rel", ["duplicate", "memento", "timegate"])
async def test_a_stale_mirror_or_memento_is_passed_over(
    source: Source, copy: Copy, rel: str, hashed: bool
):
    await follow_once(source, copy)
    if rel == "duplicate":
        change_a(source, ln(rel, source.uri("/mirror/a"), pri=1), hashed=hashed)
        await run_right(source, copy)
        return
    dated = {"Memento-Datetime": "Mon, 01 Jan 2024 00:00:00 GMT"}
    source.put("/mirror/a", Answer(b"a", modified=source.t(-1000), headers=dated))
    change_a(source, ln(rel, source.uri("/mirror/a")), hashed=hashed)
    await run_honest(source, copy, exact=True)


@pytest.mark.usefixtures("mirrored")
async def test_a_stale_resource_behind_a_cache_is_asked_for_past_it(source: Source, copy: Copy):
    await follow_once(source, copy)
    change_a(source, hashed=False)
    new = source.answers["/set/a"]
    cached = Answer(b"a", modified=source.t(-1000), age=500, date=source.t(30))
    source.put("a", lambda request: new if request.past_caches else cached)
    await run_right(source, copy)


@pytest.mark.usefixtures("mirrored")
async def test_a_stale_resource_that_becomes_fresh_is_held_then(source: Source, copy: Copy):
    async with following(source, copy) as subscriber:
        await until_right(subscriber, copy, source)
        change_a(source, hashed=False)
        stale = Answer(b"a", modified=source.t(-1000))
        source.put("a", *[stale] * 6, source.answers["/set/a"])
        await until_right(subscriber, copy, source)


@pytest.mark.usefixtures("mirrored")
async def test_a_stale_copy_of_a_list_does_not_undo_what_it_told(source: Source, copy: Copy):
    """A cache answers with the list of before now and then (Age, an older Date)."""
    async with following(source, copy) as subscriber:
        await until_right(subscriber, copy, source)
        old = source.answers["/set/changelist.xml"]
        change_a(source)
        new = source.answers["/set/changelist.xml"]
        stale = Answer(old.body, age=600, date=source.t(20))
        source.put("changelist.xml", new, stale, new, stale, stale, new)
        await until_right(subscriber, copy, source)
        asked = len(source.requests("a"))
        await until_right(subscriber, copy, source)
    assert asked <= 4
    await run_right(source, copy)


# A server whose validators hide a second change of the same second.
#
# nginx makes its ETag of the second in which a file was written and of its size, and other servers
# have no more than Last-Modified. RFC 9110 §8.8.2.2 says when such a validator may be relied upon.


ANEW = Selection(excluded=("nothing",))


def list_changes(source: Source, *changes: str) -> None:
    source.put("changelist.xml", change_list(changes, from_=source.t(0)), modified=source.t(500))


@pytest.fixture
async def announced(source: Source, folder: Path) -> Source:
    """A Source that was followed; it announces changes without hashes."""
    source.offer()
    source.file("a", b"old", -50)
    source.list_entries(entry(source.uri("a")), at=0)
    list_changes(source)
    await run_right(source, folder)
    return source


def write_file(source: Source, content: bytes, at: float, validator: str, date: float) -> None:
    """Write a file, which the server tells by these validators only."""
    source.file("a", content, at)
    etag = nginx_etag(content, source.t(at)) if validator != "Last-Modified" else None
    modified = source.t(at) if validator != "ETag" else None
    source.put("a", content, etag=etag, modified=modified, date=source.t(date))


@pytest.mark.parametrize("validator", ["both", "ETag", "Last-Modified"])
@pytest.mark.parametrize("write", [seconds, lambda instant: instant])
async def test_a_second_change_within_the_second_is_brought(
    announced: Source, folder: Path, validator: str, write: Callable[[datetime], datetime | str]
):
    source = announced
    changes = []
    for content, at, date in ((b"one", 60.1, 60.2), (b"two", 60.8, 60.9)):
        write_file(source, content, at, validator, date)
        changes.append(entry(source.uri("a"), "updated", datetime=write(source.t(at))))
        list_changes(source, *changes)
        await run_right(source, folder)


async def test_a_validator_is_used_where_nothing_can_be_hidden(announced: Source, folder: Path):
    """All is compared with a list that tells no dates and no hashes, again and again."""
    source = announced
    source.file("a", b"one", 60.1, date=source.t(100))
    source.file("b", b"new", 99, date=source.t(100))
    entries = [entry(source.uri(name)) for name in ("a", "b")]
    for moment, selection in ((200, ANEW), (300, Selection())):
        source.forget()
        source.list_entries(*entries, at=moment)
        await run_right(source, folder, selection=selection)
    assert [one.status for one in source.requests("a")] == [304]
    assert [one.status for one in source.requests("b")] == [200]


async def test_a_document_that_is_rewritten_within_the_second_is_read(source: Source, folder: Path):
    """A list of the same size: one of its changes has become another."""
    folder.mkdir()
    async with Sessions(source.url) as sessions:
        fetcher = Fetcher(sessions, folder)
        for name in ("a", "b"):
            content = change_list(
                [entry(source.uri(name), "updated", datetime=source.t(60))], from_=source.t(0)
            )
            source.file("changelist.xml", content, 60.5, date=source.t(60.9))
            document = await fetcher.document(source.uri("changelist.xml"))
            assert [one.uri for one in document.resources] == [source.uri(name)]
        source.file("changelist.xml", content, 60.5, date=source.t(63))
        source.forget()
        for _ in range(3):
            await fetcher.document(source.uri("changelist.xml"))
        assert [one.status for one in source.requests("changelist.xml")] == [200, 304, 304]


# A resource answers 410 or 404 for a moment, or for long, though every list has it.
#
# A deployment, a proxy without its backend, a disk that is mounted late. RFC 9110 §15.5.11 means
# 410 to be for good, and servers do not always mean it. Only a list of the Source says that a
# resource was deleted; an answer is a reason to look, not a fact of its own.


STATUS = pytest.mark.parametrize("status", [410, 404])


def fail(source: Source, name: str, status: int, times: int) -> None:
    answer = source.answers[f"/set/{name}"]
    source.put(name, *[Answer(status=status)] * times, answer)


@pytest.mark.usefixtures("begun")
@STATUS
@pytest.mark.parametrize("times", [1, 12])
async def test_an_update_arrives_all_the_same(source: Source, copy: Copy, status: int, times: int):
    async with following(source, copy, pace=pace(compare=0.5)) as subscriber:
        await until_right(subscriber, copy, source)
        source.list_changes(source.update("a", 60))
        fail(source, "a", status, times)
        await until_right(subscriber, copy, source)
        assert len(source.requests("a")) > times


@pytest.mark.usefixtures("begun")
@STATUS
async def test_a_first_copy_that_meets_it_is_completed(source: Source, copy: Copy, status: int):
    fail(source, "a", status, 2)
    async with following(source, copy, pace=pace(compare=0.5)) as subscriber:
        await until_right(subscriber, copy, source)


@pytest.mark.usefixtures("begun")
@STATUS
@pytest.mark.parametrize("times", [1, 40])
async def test_runs_that_meet_it_are_honest_and_the_last_one_is_right(
    source: Source, copy: Copy, status: int, times: int
):
    await follow_once(source, copy)
    source.list_changes(source.update("a", 60))
    fail(source, "a", status, times)
    await run_honest(source, copy)
    source.file("a", b"changed", 60)
    await run_right(source, copy)


@pytest.mark.usefixtures("begun")
@STATUS
async def test_what_a_list_deletes_afterwards_is_gone(source: Source, copy: Copy, status: int):
    await follow_once(source, copy)
    first = source.update("a", 60)
    source.list_changes(first)
    source.put("a", Answer(status=status))
    await run_honest(source, copy)
    source.list_changes(first, source.delete("a", 70))
    await run_right(source, copy)


# A server that answers 200 with a page of its own instead of the resource.


PAGE = b"<html>Sign in, please</html>"


@pytest.mark.parametrize("length", [None, len(PAGE)], ids=["no length", "length of the page"])
@pytest.mark.parametrize("way", ["first copy", "update", "undated update"])
async def test_a_page_is_not_stored_as_a_resource_of_another_type(
    source: Source, folder: Path, way: str, length: int | None
):
    announced = {"type": "text/plain", "length": length}
    source.offer()
    source.file("a", b"1", headers={"Content-Type": "text/plain"})
    source.file("b", b"1", headers={"Content-Type": "text/plain"})
    listed = [entry(source.uri(name), type="text/plain") for name in source.resources]
    source.list_entries(*listed, at=0)
    source.list_changes(from_=0)
    if way != "first copy":
        await run_right(source, folder)
    else:
        listed[0] = entry(source.uri("a"), **announced)
        source.list_entries(*listed, at=0)
    source.put("a", PAGE, headers={"Content-Type": "text/html; charset=utf-8"})
    if way != "first copy":
        at = source.t(60) if way == "update" else None
        source.list_changes(entry(source.uri("a"), "updated", datetime=at, **announced), from_=0)
    async with following(source, folder) as one:
        await until(one, lambda status: "text/html" in " ".join(outcome_of(status).reasons))
        assert not outcome_of(one.status).claims
        assert PAGE not in Folder(folder).files().values()
        assert not (await audited(source, folder)).claims
        source.file("a", b"2" * len(PAGE), headers={"Content-Type": "text/plain"})
        await until_right(one, folder, source)


async def test_a_hash_decides_rather_than_the_type(source: Source, folder: Path):
    source.offer()
    source.file("a", b"1", headers={"Content-Type": "text/html"})
    source.list_entries(entry(source.uri("a"), content=b"1", type="text/plain"), at=0)
    source.list_changes(from_=0)
    await run_right(source, folder)
