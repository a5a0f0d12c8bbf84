"""Entries of Change Lists that state neither when nor what changed: only a request shows that."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.wild.documents import change_list, entry
from tests.wild.running import audited, run_honest, run_right
from tests.wild.source import WildSource


def begin(source: WildSource, at: float, *, hashed: bool = True) -> None:
    source.offer()
    for name in ("a", "b"):
        source.file(name, b"1")
    source.list_resources(at, hashed=hashed)
    source.put("changelist.xml", change_list(from_=source.t(0)))


def update(source: WildSource, name: str, content: bytes) -> None:
    source.file(name, content, 500)


@pytest.mark.parametrize("hashed", [True, False], ids=["hashed list", "plain list"])
@pytest.mark.parametrize(("change", "at"), [("updated", 0), ("updated", 60), ("created", 600)])
@pytest.mark.parametrize("lastmod", [None, -9000, 0, 10], ids=["none", "old", "from", "after"])
async def test_a_change_without_a_datetime_is_fetched(
    source: WildSource, folder: Path, at: float, change: str, hashed: bool, lastmod: int | None
) -> None:
    begin(source, at, hashed=hashed)
    await run_right(source, folder)
    moment = None if lastmod is None else source.t(lastmod)
    update(source, "a", b"2")
    undated = entry(source.uri("a"), change, lastmod=moment)
    source.put("changelist.xml", change_list([undated], from_=source.t(0)))
    await run_right(source, folder)
    assert (await audited(source, folder)).code != 1
    # Once more, beside an entry with a datetime, and again in the same words.
    update(source, "a", b"333")
    dated = entry(source.uri("b"), "updated", datetime=source.t(700), content=b"1")
    source.put("changelist.xml", change_list([undated, dated, undated], from_=source.t(0)))
    await run_honest(source, folder)
    assert (await audited(source, folder)).code != 1
    update(source, "a", b"4444")
    undateds = [undated, dated, undated, undated]
    source.put("changelist.xml", change_list(undateds, from_=source.t(0)))
    await run_right(source, folder)
