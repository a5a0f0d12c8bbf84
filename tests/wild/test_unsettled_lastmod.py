"""Resources that change again within the day, or second, that their `lastmod` tells.

Sitemaps of content management systems have no hashes and often tell the day only (core §7 makes
`lastmod` optional and as coarse as a year). A version that was fetched while that day was running
may not be its last: git calls such entries of its index racy.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rsnotify.selection import Selection
from tests.wild.documents import days, entry, resource_list, seconds
from tests.wild.running import assert_honest, follow_once, run_right
from tests.wild.source import WildSource

ANEW = Selection(excluded=("nothing",))


def minutes(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%MZ")


def months(moment: datetime) -> str:
    return moment.strftime("%Y-%m")


@pytest.mark.parametrize(
    ("write", "unit"), [(days, 3600 * 9), (seconds, 0.5), (minutes, 30.0), (months, 86400 * 10.5)]
)
async def test_what_was_fetched_within_the_unit_is_fetched_again(
    source: WildSource, folder: Path, write: Callable[[datetime], str], unit: float
) -> None:
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
