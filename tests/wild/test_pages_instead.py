"""A server that answers 200 with a page of its own instead of the resource."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.wild.documents import change_list, entry, resource_list
from tests.wild.running import Folder, audited, following, outcome_of, run_right, until, until_right
from tests.wild.source import WildSource

PAGE = b"<html>Sign in, please</html>"


@pytest.mark.parametrize("length", [None, len(PAGE)], ids=["no length", "length of the page"])
@pytest.mark.parametrize("way", ["first copy", "update", "undated update"])
async def test_a_page_is_not_stored_as_a_resource_of_another_type(
    source: WildSource, folder: Path, way: str, length: int | None
) -> None:
    announced = {"type": "text/plain", "length": length}
    source.offer()
    source.file("a", b"1", headers={"Content-Type": "text/plain"})
    source.file("b", b"1", headers={"Content-Type": "text/plain"})
    listed = [entry(source.uri(name), type="text/plain") for name in source.resources]
    source.put("resourcelist.xml", resource_list(listed, at=source.t(0)))
    source.put("changelist.xml", change_list(from_=source.t(0)))
    if way != "first copy":
        await run_right(source, folder)
    else:
        listed[0] = entry(source.uri("a"), **announced)
        source.put("resourcelist.xml", resource_list(listed, at=source.t(0)))
    source.put("a", PAGE, headers={"Content-Type": "text/html; charset=utf-8"})
    if way != "first copy":
        at = source.t(60) if way == "update" else None
        updated = entry(source.uri("a"), "updated", datetime=at, **announced)
        source.put("changelist.xml", change_list([updated], from_=source.t(0)))
    async with following(source, folder) as one:
        await until(one, lambda status: "text/html" in " ".join(outcome_of(status).reasons))
        assert not outcome_of(one.status).claims
        assert PAGE not in Folder(folder).files().values()
        assert not (await audited(source, folder)).claims
        source.file("a", b"2" * len(PAGE), headers={"Content-Type": "text/plain"})
        await until_right(one, folder, source)


async def test_a_hash_decides_rather_than_the_type(source: WildSource, folder: Path) -> None:
    source.offer()
    source.file("a", b"1", headers={"Content-Type": "text/html"})
    listed = [entry(source.uri("a"), content=b"1", type="text/plain")]
    source.put("resourcelist.xml", resource_list(listed, at=source.t(0)))
    source.put("changelist.xml", change_list(from_=source.t(0)))
    await run_right(source, folder)
