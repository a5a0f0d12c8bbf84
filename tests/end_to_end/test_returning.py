"""A Destination that was away, for a moment or for ever, gets level by the cheapest way."""

from __future__ import annotations

from pathlib import Path

from rsnotify.sync.actions import DocumentKind
from tests.end_to_end import history
from tests.end_to_end.returning import Plan, returning


async def test_a_destination_that_comes_back_takes_the_cheapest_rung_and_ends_equal(
    tmp_path: Path,
) -> None:
    steps = list(history.make_up(600, seed=3))
    rungs = await returning(tmp_path, steps, Plan(rotate=40, keep=2, seed=7))
    assert set(rungs) == {
        DocumentKind.CHANGE_LIST,
        DocumentKind.CHANGE_LIST_ARCHIVE,
        DocumentKind.RESOURCE_LIST,
    }
    assert rungs[DocumentKind.RESOURCE_LIST] > 1  # the first, and one after a long absence
