"""Datetimes without seconds, or of a day, a month or a year: what they leave open is verified."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path

import pytest

from rsnotify.selection import Selection
from tests.examples_count import part
from tests.wild.documents import days, entry, resource_list, seconds
from tests.wild.running import Folder, assert_honest, audited, follow_once, run_honest, run_right
from tests.wild.source import Source


def minutes(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%MZ")


def months(moment: datetime) -> str:
    return moment.strftime("%Y-%m")


def years(moment: datetime) -> str:
    return moment.strftime("%Y")


UNITS = (minutes, days, months, years)
IN_ORDER = pytest.mark.parametrize("sort", [list, sorted], ids=["as it came", "by what is written"])

Write = Callable[[datetime], str]

#: Two moments within one minute.
MADE = datetime(2025, 6, 11, 10, 15, 20, tzinfo=UTC)
THEN = MADE + timedelta(seconds=30)


def begin_with_a(source: Source) -> None:
    source.offer()
    source.file("a", b"a", MADE - timedelta(days=900))
    source.list_resources(at=MADE - timedelta(days=899))
    source.list_changes(from_=MADE - timedelta(days=900))


def change_and_undo(
    source: Source, gone: bool, first: str, then: str, *, hashed: bool
) -> list[str]:
    """Update `a` and delete it, or the reverse; return the entries."""
    if not gone:
        entries = [source.changed("a", "deleted", first)]
        source.file("a", b"a, changed", THEN)
        return [*entries, source.changed("a", "created", then, hashed=hashed)]
    source.file("a", b"a, changed", MADE)
    entries = [source.changed("a", "updated", first, hashed=hashed)]
    return [*entries, source.delete("a", then)]


@IN_ORDER
@pytest.mark.parametrize(
    ("gone", "is_first_coarse", "at_once", "write"),
    [
        (*case, write)
        for number, case in enumerate(product((True, False), repeat=3))
        for write in part(UNITS, number + number // 4, 2)
    ],
)
async def test_a_change_dated_by_the_unit_and_one_dated_within_it_are_both_applied(
    source: Source,
    folder: Path,
    write: Write,
    sort: Callable[[list[str]], list[str]],
    gone: bool,
    is_first_coarse: bool,
    at_once: bool,
):
    begin_with_a(source)
    copy = Folder(folder)
    exact = seconds(THEN if is_first_coarse else MADE)
    times = (write(MADE), exact) if is_first_coarse else (exact, write(THEN))
    await run_right(source, copy)
    entries = change_and_undo(source, gone, *times, hashed=True)
    since = MADE - timedelta(days=900)
    if not at_once:
        source.list_changes(entries[0], from_=since)
        await follow_once(source, copy)
    by_time = dict(zip(times, entries, strict=True))
    source.list_changes(*(by_time[time] for time in sort(list(times))), from_=since)
    await run_right(source, copy)
    source.forget()
    await run_right(source, copy)
    assert source.requests("a") == []


# Entries of Change Lists that state neither when nor what changed: only a request shows that.


def begin_with_lists(source: Source, at: float, *, hashed: bool = True) -> None:
    source.offer()
    for name in ("a", "b"):
        source.file(name, b"1")
    source.list_resources(at, hashed=hashed)
    source.list_changes(from_=0)


def rewrite(source: Source, name: str, content: bytes) -> None:
    source.file(name, content, 500)


@pytest.mark.parametrize(
    ("change", "at", "lastmod", "hashed"),
    [
        (*kind, lastmod, hashed)
        for number, kind in enumerate([("updated", 0), ("updated", 60), ("created", 600)])
        for place, lastmod in enumerate((None, -9000, 0, 10))
        for hashed in part((True, False), number + place, 2)
    ],
)
async def test_a_change_without_a_datetime_is_fetched(
    source: Source, folder: Path, at: float, change: str, hashed: bool, lastmod: int | None
):
    begin_with_lists(source, at, hashed=hashed)
    await run_right(source, folder)
    moment = None if lastmod is None else source.t(lastmod)
    rewrite(source, "a", b"2")
    undated = entry(source.uri("a"), change, lastmod=moment)
    source.list_changes(undated, from_=0)
    await run_right(source, folder)
    assert (await audited(source, folder)).code != 1
    # Once more, beside an entry with a datetime, and again in the same words.
    rewrite(source, "a", b"333")
    dated = entry(source.uri("b"), "updated", datetime=source.t(700), content=b"1")
    source.list_changes(undated, dated, undated, from_=0)
    await run_honest(source, folder)
    assert (await audited(source, folder)).code != 1
    rewrite(source, "a", b"4444")
    source.list_changes(undated, dated, undated, undated, from_=0)
    await run_right(source, folder)


# Resources that change again within the day, or second, that their `lastmod` tells.
#
# Sitemaps of content management systems have no hashes and often tell the day only (core §7 makes
# `lastmod` optional and as coarse as a year). A version that was fetched while that day was running
# may not be its last: git calls such entries of its index racy.


ANEW = Selection(excluded=("nothing",))


@pytest.mark.parametrize(
    ("write", "unit"), [(days, 3600 * 9), (seconds, 0.5), (minutes, 30.0), (months, 86400 * 10.5)]
)
async def test_what_was_fetched_within_the_unit_is_fetched_again(
    source: Source, folder: Path, write: Callable[[datetime], str], unit: float
):
    source.offer(changelist=None)
    day = 1 if write is months else 11  # the first may be written for its month
    made = datetime(source.start.year - 1, 6, day, tzinfo=UTC)

    def at(fraction: float) -> datetime:
        return made + timedelta(seconds=unit * fraction)

    def list_it(moment: float) -> None:
        listed = [entry(source.uri("a"), lastmod=write(made), length=1)]
        source.put("resourcelist.xml", resource_list(listed, at=at(moment)))

    source.file("a", b"1", at(1), date=at(1.2))
    list_it(1.3)
    await run_right(source, folder)
    source.file("a", b"2", at(1.5))
    list_it(1.9)
    outcome = await follow_once(source, folder, selection=ANEW)  # everything is compared
    assert_honest(folder, source, outcome)
    source.forget()
    list_it(10)
    await run_right(source, folder)
    assert source.requests("a") == []  # the day was over when it was fetched
