"""The datetimes of changes, for every adapter: never before a change happened, or its lastmod."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rsnotify.format.model import Resource
from rsnotify_gateway import OriginSettings
from tests.gateway.checking import Reading
from tests.gateway.origin_cases import CASES, A, B, Case, case_of


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return case_of(request.param, request)


async def recorded(folder: Path, settings: OriginSettings, streamed: str) -> list[Resource]:
    """Check the origin, or read its stream until there is one resource; return the changes."""
    async with Reading(folder, settings) as reading:
        if settings.type in ("events", "postgresql"):
            await reading.until_there(streamed)
        else:
            await reading.check()
        with reading.journal() as journal:
            return journal.changes(0)


def datetimes(found: Iterable[Resource]) -> list[datetime]:
    return [one.datetime for one in found if one.datetime is not None]


async def test_no_change_is_dated_before_it_happened(case: Case, tmp_path: Path):
    async with case() as (settings, make_change):
        before = await recorded(tmp_path, settings, A)
        happened = datetime.now(UTC)
        pending = make_change(happened)
        if pending is not None:
            await pending
        found = await recorded(tmp_path, settings, B)
    new = found[len(before) :]
    assert new
    assert min(datetimes(new)) >= happened
    assert all(
        one.lastmod is None or one.lastmod <= at
        for one, at in zip(new, datetimes(new), strict=True)
    )
    assert datetimes(found) == sorted(set(datetimes(found)))
    assert max(datetimes(found)) <= datetime.now(UTC)
