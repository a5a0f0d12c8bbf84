"""Each way up to level, taken over HTTP and told in the log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from rsnotify.errors import Unavailable
from rsnotify.format.model import Resource
from rsnotify.format.vocabulary import Capability
from tests.subscriber.destination import Destination
from tests.subscriber.packed_source import NAMES, PackedSource
from tests.subscriber.rungs.conftest import DUMPS, LISTS, away, fetched, told
from tests.subscriber.source import Answer


async def test_after_a_minute_the_change_list_is_enough(
    source: PackedSource, destination: Destination, log: pytest.LogCaptureFixture
) -> None:
    await destination.catch_up()
    source.put("r1", b"new")
    source.delete("r2")
    source.gets.clear()
    await destination.catch_up()
    assert destination.equals_source()
    assert told(log, "2 changes from the Change List")
    offered = {"/.well-known/resourcesync", "/data/capabilitylist.xml"}
    assert set(source.gets) == {*offered, "/data/changelist.xml", "/data/r1"}


@pytest.mark.parametrize("index", [False, True])
async def test_after_an_hour_the_change_list_archive_is_read(
    index: bool, source: PackedSource, destination: Destination, log: pytest.LogCaptureFixture
) -> None:
    await away(source, destination, packed=False)
    if index:
        archive = source._document("changelist-archive.xml")
        assert archive is not None
        parts = ("changelist-archive-1.xml", "changelist-archive-2.xml")
        for place, name in zip((0, 3), parts, strict=True):
            resources = archive.resources[place : place + 3]
            source.documents[name] = replace(archive, resources=resources)
        members = tuple(map(Resource, parts))
        source.documents["changelist-archive.xml"] = replace(archive, index=True, resources=members)
    await destination.catch_up()
    assert destination.equals_source()
    assert told(log, "going on with the Change List Archive")
    assert source.gets["/data/often"] == 1
    assert source.gets["/data/resourcelist.xml"] == 0


async def test_after_a_day_the_change_dump_is_unpacked(
    source: PackedSource, destination: Destination, log: pytest.LogCaptureFixture
) -> None:
    source.archive = False
    source.offered = (*LISTS, Capability.CHANGE_DUMP)
    await away(source, destination)
    await destination.catch_up()
    assert destination.equals_source()
    assert told(log, "going on with the Change Dump")
    assert told(log, "changes from the Change Dump", "changes-4.zip")
    assert fetched(source) == {"/data/last"}
    assert source.gets["/data/resourcelist.xml"] == 0


async def test_after_a_week_the_archive_of_change_dumps_is_unpacked(
    source: PackedSource, destination: Destination, log: pytest.LogCaptureFixture
) -> None:
    source.archive = False
    source.offered = (*LISTS, Capability.CHANGE_DUMP, Capability.CHANGE_DUMP_ARCHIVE)
    await away(source, destination)
    source.archive_dump()
    await destination.catch_up()
    assert destination.equals_source()
    assert told(log, "going on with the Change Dump Archive")
    assert fetched(source) == {"/data/last"}


async def test_after_a_month_the_resource_list_is_compared(
    source: PackedSource, destination: Destination, log: pytest.LogCaptureFixture
) -> None:
    source.archive = False
    source.offered = (*LISTS, Capability.RESOURCE_DUMP)
    source.pack_resources()
    await away(source, destination)
    await destination.catch_up()
    assert destination.equals_source()
    assert told(log, "nothing that tells of changes reaches back to")
    assert told(log, "baseline from the Resource List")
    assert source.gets["/data/resourcedump.xml"] == 0


async def test_a_first_copy_is_unpacked_from_the_resource_dump(
    source: PackedSource, destination: Destination, log: pytest.LogCaptureFixture
) -> None:
    source.offered = (*LISTS, Capability.RESOURCE_DUMP)
    source.pack_resources()
    source.put("r1", b"changed since")
    await destination.catch_up()
    assert destination.equals_source()
    assert told(log, "baseline from the Resource Dump")
    assert fetched(source) == {"/data/r1"}


@pytest.mark.parametrize("offered", [DUMPS, DUMPS[:1], DUMPS[1:], LISTS[:1], LISTS[1:]], ids=str)
async def test_whatever_a_source_offers_alone_is_followed(
    offered: Sequence[str], source: PackedSource, destination: Destination
) -> None:
    source.offered = offered
    source.pack_resources()
    source.pack_changes()
    await destination.catch_up()
    assert destination.equals_source()
    source.put("r1", b"new")
    source.delete("r2")
    source.pack_resources()
    source.pack_changes() if Capability.CHANGE_DUMP in offered else None
    await destination.catch_up()
    assert destination.equals_source()
    if set(offered) <= set(DUMPS):
        assert fetched(source) == set()


@pytest.mark.parametrize("capability", [DUMPS[1], LISTS[1]])
async def test_a_hole_that_nothing_can_fill_is_told_each_time(
    capability: str,
    source: PackedSource,
    destination: Destination,
    log: pytest.LogCaptureFixture,
) -> None:
    source.offered, source.archive = (capability,), False
    source.pack_changes() if capability in DUMPS else None
    await destination.catch_up()
    assert destination.equals_source()
    through = destination.current.status.through
    assert through is not None
    source.put("unheard", b"of")
    source.pack_changes()
    source.put("last", b"of all")
    if capability in DUMPS:
        source.packages.clear()
        source.pack_changes()
    for _ in range(2):
        log.clear()
        with pytest.raises(Unavailable, match="no list of all its resources"):
            await destination.catch_up()
        assert told(log, "nothing tells of the time from")
        assert destination.files() == {
            name: content for name, content in source.contents.items() if name != "unheard"
        }
    assert through == destination.current.status.through


@pytest.mark.parametrize("capability", DUMPS)
async def test_following_may_begin_at_a_dump_itself(
    capability: str, source: PackedSource, destination: Destination
) -> None:
    source.pack_resources()
    source.pack_changes()
    await destination.catch_up(source.base + NAMES[capability])
    assert destination.equals_source()


async def test_following_may_begin_at_an_archive_below_a_capability_list(
    source: PackedSource, destination: Destination
) -> None:
    source.offered = (*LISTS, Capability.CHANGE_LIST_ARCHIVE)
    source.rotate()
    archive = source._document("changelist-archive.xml")
    assert archive is not None
    links = (source._up(),)
    source.documents["changelist-archive.xml"] = replace(archive, links=links)
    await destination.catch_up(source.base + "changelist-archive.xml")
    assert destination.equals_source()


async def test_no_more_than_two_packages_are_there_at_once_and_in_the_end_none(
    source: PackedSource, destination: Destination
) -> None:
    source.offered = (Capability.RESOURCE_DUMP,)
    source.pack_resources(per_package=1)
    incoming = destination.folder.parent / "mirror.rsnotify" / "incoming"
    seen: list[int] = []

    def count(path: str) -> Answer:
        answer = source.answers[path]

        async def counted(request: object) -> object:
            seen.append(len([one for one in incoming.iterdir() if is_zip(one)]))
            return await answer(request)  # type: ignore[arg-type]

        return counted  # type: ignore[return-value]

    for path in [path for path in source.answers if path.endswith(".zip")]:
        source.answers[path] = count(path)
    await destination.catch_up()
    assert len(seen) == 10
    assert max(seen) == 2
    assert list(incoming.iterdir()) == []


def is_zip(path: Path) -> bool:
    try:
        return path.read_bytes()[:2] == b"PK"
    except FileNotFoundError:  # it was applied this moment
        return False
