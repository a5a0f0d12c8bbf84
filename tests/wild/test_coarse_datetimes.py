"""Datetimes without seconds, or of a day, a month or a year: what they leave open is verified."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.wild.documents import days, seconds
from tests.wild.running import Folder, follow_once, run_right
from tests.wild.source import WildSource


def minutes(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%MZ")


def months(moment: datetime) -> str:
    return moment.strftime("%Y-%m")


def years(moment: datetime) -> str:
    return moment.strftime("%Y")


UNITS = pytest.mark.parametrize("write", [minutes, days, months, years])
IN_ORDER = pytest.mark.parametrize("sort", [list, sorted], ids=["as it came", "by what is written"])
Write = Callable[[datetime], str]
#: Two moments within one minute.
MADE = datetime(2025, 6, 11, 10, 15, 20, tzinfo=UTC)
THEN = MADE + timedelta(seconds=30)


def begin(source: WildSource) -> None:
    source.offer()
    source.file("a", b"a", MADE - timedelta(days=900))
    source.list_resources(at=MADE - timedelta(days=899))
    source.list_changes(from_=MADE - timedelta(days=900))


def change(source: WildSource, gone: bool, first: str, then: str, *, hashed: bool) -> list[str]:
    """Update `a` and delete it, or the reverse; return the entries."""
    if not gone:
        entries = [source.changed("a", "deleted", first)]
        source.file("a", b"a, changed", THEN)
        return [*entries, source.changed("a", "created", then, hashed=hashed)]
    source.file("a", b"a, changed", MADE)
    entries = [source.changed("a", "updated", first, hashed=hashed)]
    return [*entries, source.delete("a", then)]


@UNITS
@IN_ORDER
@pytest.mark.parametrize("gone", [True, False])
@pytest.mark.parametrize("is_first_coarse", [True, False])
@pytest.mark.parametrize("at_once", [True, False])
async def test_a_change_dated_by_the_unit_and_one_dated_within_it_are_both_applied(
    source: WildSource,
    folder: Path,
    write: Write,
    sort: Callable[[list[str]], list[str]],
    gone: bool,
    is_first_coarse: bool,
    at_once: bool,
) -> None:
    begin(source)
    copy = Folder(folder)
    exact = seconds(THEN if is_first_coarse else MADE)
    times = (write(MADE), exact) if is_first_coarse else (exact, write(THEN))
    await run_right(source, copy)
    entries = change(source, gone, *times, hashed=True)
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
