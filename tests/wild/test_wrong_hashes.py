"""A hash that the Source's own content contradicts stays a doubt, in whichever lists it is."""

from __future__ import annotations

import pytest

from tests.wild.documents import entry, md, resource_list, sha256, urlset
from tests.wild.running import Copy, assert_honest, follow_once, pace
from tests.wild.source import WildSource


@pytest.mark.parametrize("listed", [True, False], ids=["list", "no list"])
@pytest.mark.parametrize("changed", [None, -100, 60], ids=["no change", "before", "after"])
@pytest.mark.parametrize("moves", [True, False], ids=["new lists", "the same lists"])
async def test_no_run_accepts_other_content_than_announced(
    source: WildSource, copy: Copy, listed: bool, changed: int | None, moves: bool
) -> None:
    source.offer()
    source.file("a", b"a", -500)
    source.file("b", b"b", -500)
    wrong = sha256(b"something else")
    there = [
        entry(source.uri("a"), lastmod=source.t(-500), hash=wrong if listed else sha256(b"a")),
        entry(source.uri("b"), lastmod=source.t(-500), hash=sha256(b"b")),
    ]
    changes = []
    if changed is not None:
        changes = [entry(source.uri("a"), "updated", datetime=source.t(changed), hash=wrong)]
    for number in range(5):
        at = source.t(number if moves else 0)
        source.put("resourcelist.xml", resource_list(there, at=at))
        covered = md(capability="changelist", from_=source.t(-600))
        source.put("changelist.xml", urlset(changes, covered))
        outcome = await follow_once(source, copy, pace=pace(compare=0.0))
        if listed or changed == 60:
            assert not outcome.claims
        assert_honest(copy, source, outcome)
