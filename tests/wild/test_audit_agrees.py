"""`follow` and `audit` judge the same documents alike, however a Source combines them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.wild.documents import change_list, entry, index, md, member, resource_list, urlset
from tests.wild.running import assert_honest, audited, follow_once, run_right
from tests.wild.source import Answer, WildSource
from tests.wild.test_dump_and_list import dump, put_list
from tests.wild.test_newest_first import package


def begin(source: WildSource, **documents: str | None) -> None:
    source.offer(**documents)
    source.files("a", "b", "c")
    put_list(source, "abc", source.t(10))
    source.list_changes()


def update(source: WildSource, name: str, at: float, content: bytes) -> str:
    source.file(name, content, at)
    return source.changed(name, "updated", at, path=f"/{name}")


def packages(source: WildSource, *periods: tuple[float, float, list[str]]) -> None:
    """Put a Change Dump with these packages, which do not have the contents."""
    entries = []
    for number, (from_, until, changes) in enumerate(periods):
        packed = package(changes, {}, from_=source.t(from_), until=source.t(until))
        source.put(f"{number}.zip", packed)
        entries.append(entry(source.uri(f"{number}.zip"), content=packed))
    about = md(capability="changedump", from_=source.t(5))
    source.put("changedump.xml", urlset(entries, about))


def overlapping_packages(source: WildSource) -> None:
    begin(source, changelist=None, changedump="changedump.xml")
    first = update(source, "a", 20, b"a1")
    second = update(source, "b", 50, b"b1")
    earlier = source.changed("c", "updated", 30, path="/c")
    last = update(source, "a", 45, b"a2")
    packages(source, (5, 60, [first, second]), (5, 40, [earlier]), (15, 90, [last]))


def overlapping_packages_and_a_change_list(source: WildSource) -> None:
    overlapping_packages(source)
    source.offer(changedump="changedump.xml")
    source.put("changelist.xml", change_list([update(source, "c", 95, b"c1")], source.t(60)))


def a_second_change_list(source: WildSource) -> None:
    begin(source)
    members = []
    for name, at in (("a", 40), ("b", 20)):
        changes = [update(source, name, at, name.encode() * 2)]
        source.put(f"{name}.xml", change_list(changes, from_=source.t(5)))
        members.append(member(source.uri(f"{name}.xml"), from_=source.t(5)))
    source.put("changelist.xml", index("changelist", members, from_=source.t(5)))


def a_dump_that_lacks_a_resource(source: WildSource) -> None:
    begin(source, resourcedump="resourcedump.xml")
    dump(source, {"a": b"a", "b": b"b"}, source.t(10))


def a_list_that_lacks_a_resource_of_the_dump(source: WildSource) -> None:
    begin(source, resourcedump="resourcedump.xml")
    dump(source, {name: name.encode() for name in "abc"}, source.t(10))
    put_list(source, "ab", source.t(10))
    source.remove("c")


def an_archived_dump_in_place_of_a_broken_one(source: WildSource) -> None:
    begin(source, resourcedump="resourcedump.xml", **{"resourcedump-archive": "archive.xml"})
    dump(source, {"a": b"a", "b": b"b"}, source.t(10))
    source.answers["/set/dump-0.xml"] = source.answers["/set/resourcedump.xml"]
    source.put("resourcedump.xml", Answer(status=404))
    archived = [entry(source.uri("dump-0.xml"), at=source.t(10))]
    source.put("archive.xml", urlset(archived, md(capability="resourcedump-archive")))


def an_archived_list_in_place_of_a_broken_one(source: WildSource) -> None:
    begin(source, **{"resourcelist-archive": "archive.xml"})
    source.answers["/set/list-0.xml"] = source.answers["/set/resourcelist.xml"]
    source.put("resourcelist.xml", Answer(status=404))
    archived = [entry(source.uri("list-0.xml"), at=source.t(10))]
    source.put("archive.xml", urlset(archived, md(capability="resourcelist-archive")))
    source.put("changelist.xml", change_list([update(source, "a", 50, b"a1")], source.t(5)))


def a_closed_list_in_the_archive_and_the_dump(source: WildSource) -> None:
    begin(source, changedump="changedump.xml", **{"changelist-archive": "archive.xml"})
    closed = [update(source, "a", 20, b"a1")]
    packages(source, (5, 60, closed))
    source.put("0.xml", change_list(closed, source.t(5), source.t(60)))
    archived = [entry(source.uri("0.xml"), from_=source.t(5), until=source.t(60))]
    about = md(capability="changelist-archive", from_=source.t(5))
    source.put("archive.xml", urlset(archived, about))
    source.put("changelist.xml", change_list([update(source, "b", 70, b"b1")], source.t(60)))


def an_update_without_a_date(source: WildSource) -> None:
    begin(source)
    source.file("a", b"a1")
    undated = entry(source.uri("a"), "updated")
    source.put("changelist.xml", change_list([undated], source.t(5)))


def a_version_older_than_announced(source: WildSource) -> None:
    begin(source)
    source.put("a", Answer(b"a", modified=source.t(-1000)))
    entries = [entry(source.uri(name), lastmod=source.t(5)) for name in "abc"]
    for name in "bc":
        source.file(name, name.encode(), 5)
    source.put("resourcelist.xml", resource_list(entries, at=source.t(10)))


Shape = Callable[[WildSource], None]

#: Lists of the same time that lack changes of each other, which a follower doubts.
OVERLAPPING: list[Shape] = [
    overlapping_packages,
    overlapping_packages_and_a_change_list,
    a_second_change_list,
]
FOLLOWED: list[Shape] = [
    a_dump_that_lacks_a_resource,
    a_list_that_lacks_a_resource_of_the_dump,
    an_archived_dump_in_place_of_a_broken_one,
    an_archived_list_in_place_of_a_broken_one,
    a_closed_list_in_the_archive_and_the_dump,
    an_update_without_a_date,
]


@pytest.mark.parametrize("shape", OVERLAPPING + FOLLOWED, ids=lambda shape: shape.__name__)
async def test_an_audit_finds_a_right_copy_in_step(
    source: WildSource, folder: Path, shape: Shape
) -> None:
    shape(source)
    folder.mkdir()
    for name, content in source.resources.items():
        (folder / name).write_bytes(content)
    assert (await audited(source, folder)).code == 0
    (folder / "a").write_bytes(b"damaged")
    assert (await audited(source, folder)).code == 1


@pytest.mark.parametrize("shape", FOLLOWED, ids=lambda shape: shape.__name__)
async def test_a_copy_is_right_and_in_step_for_both(
    source: WildSource, folder: Path, shape: Shape
) -> None:
    shape(source)
    await run_right(source, folder)
    outcome = await audited(source, folder)
    assert_honest(folder, source, outcome)
    assert outcome.code == 0, outcome


async def test_a_version_that_is_older_than_announced_is_in_doubt_for_both(
    source: WildSource, folder: Path
) -> None:
    a_version_older_than_announced(source)
    reason = "the server has a version of"
    for outcome in (await follow_once(source, folder), await audited(source, folder)):
        assert not outcome.claims
        assert any(reason in each for each in outcome.reasons), outcome
