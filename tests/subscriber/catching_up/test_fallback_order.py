"""Which documents a Destination reads over HTTP to catch up, as its log shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from rsnotify.errors import Unavailable
from rsnotify.format.model import Capability
from rsnotify_subscriber.content import packages as dump_packages
from tests.subscriber.catching_up.absences import DUMPS, LISTS, fetched, logged, miss_changes
from tests.subscriber.destination import Destination
from tests.subscriber.packed_source import NAMES, PackedSource
from tests.subscriber.source import Answer


async def test_after_a_minute_the_change_list_is_enough(
    source: PackedSource, destination: Destination, log: pytest.LogCaptureFixture
) -> None:
    await destination.catch_up()
    source.put("r1", b"new")
    source.delete("r2")
    source.gets.clear()
    await destination.become_equal()
    assert logged(log, "2 changes from the Change List")
    offered = {"/.well-known/resourcesync", "/data/capabilitylist.xml"}
    assert set(source.gets) == {*offered, "/data/changelist.xml", "/data/r1"}


async def test_after_an_hour_the_change_list_archive_is_read(
    source: PackedSource, destination: Destination, log: pytest.LogCaptureFixture
) -> None:
    await miss_changes(source, destination, packed=False)
    await destination.become_equal()
    assert logged(log, "continuing with the Change List Archive")
    assert source.gets["/data/often"] == 1
    assert source.gets["/data/resourcelist.xml"] == 0


@pytest.mark.parametrize("is_archived", [False, True], ids=["after a day", "after a week"])
async def test_the_change_dump_or_its_archive_is_unpacked(
    is_archived: bool, source: PackedSource, destination: Destination, log: pytest.LogCaptureFixture
) -> None:
    source.archive = False
    archive = (Capability.CHANGE_DUMP_ARCHIVE,) if is_archived else ()
    source.offered = (*LISTS, Capability.CHANGE_DUMP, *archive)
    await miss_changes(source, destination)
    if is_archived:
        source.archive_dump()
    await destination.become_equal()
    assert logged(log, "continuing with the Change Dump" + " Archive" * is_archived)
    assert logged(log, "changes from the Change Dump", "changes-4.zip")
    assert fetched(source) == {"/data/last"}
    assert source.gets["/data/resourcelist.xml"] == 0


async def test_a_first_copy_is_unpacked_from_the_resource_dump(
    source: PackedSource, destination: Destination, log: pytest.LogCaptureFixture
) -> None:
    source.offered = (*LISTS, Capability.RESOURCE_DUMP)
    source.pack_resources()
    source.put("r1", b"changed since")
    await destination.become_equal()
    assert logged(log, "baseline from the Resource Dump")
    assert fetched(source) == {"/data/r1"}


@pytest.mark.parametrize("offered", [DUMPS, DUMPS[:1], DUMPS[1:], LISTS[:1], LISTS[1:]], ids=str)
async def test_any_single_document_of_a_source_is_enough(
    offered: Sequence[str], source: PackedSource, destination: Destination
) -> None:
    source.offered = offered
    source.pack_resources()
    source.pack_changes()
    await destination.become_equal()
    source.put("r1", b"new")
    source.delete("r2")
    source.pack_resources()
    source.pack_changes() if Capability.CHANGE_DUMP in offered else None
    await destination.become_equal()
    if set(offered) <= set(DUMPS):
        assert fetched(source) == set()


@pytest.mark.parametrize("capability", [DUMPS[1], LISTS[1]])
async def test_a_gap_that_no_document_covers_is_reported_each_time(
    capability: str,
    source: PackedSource,
    destination: Destination,
    log: pytest.LogCaptureFixture,
) -> None:
    source.offered, source.archive = (capability,), False
    source.pack_changes() if capability in DUMPS else None
    await destination.become_equal()
    through = destination.current.status.through
    assert through is not None
    source.put("uncovered", b"x")
    source.pack_changes()
    source.put("last", b"of all")
    if capability in DUMPS:
        source.packages.clear()
        source.pack_changes()
    for _ in range(2):
        log.clear()
        with pytest.raises(Unavailable, match="no list of all its resources"):
            await destination.catch_up()
        assert logged(log, "no document covers the changes from")
        assert destination.files() == {
            name: content for name, content in source.contents.items() if name != "uncovered"
        }
    assert through == destination.current.status.through


@pytest.mark.parametrize("capability", DUMPS)
async def test_following_may_begin_at_a_dump(
    capability: str, source: PackedSource, destination: Destination
) -> None:
    source.pack_resources()
    source.pack_changes()
    await destination.become_equal(source.base + NAMES[capability])


async def test_following_may_begin_at_an_archive_below_a_capability_list(
    source: PackedSource, destination: Destination
) -> None:
    source.offered = (*LISTS, Capability.CHANGE_LIST_ARCHIVE)
    source.rotate()
    archive = source.document("changelist-archive.xml")
    assert archive is not None
    links = (source.up(),)
    source.documents["changelist-archive.xml"] = replace(archive, links=links)
    await destination.become_equal(source.base + "changelist-archive.xml")


async def test_at_most_two_large_packages_are_stored_at_once_and_none_at_the_end(
    source: PackedSource, destination: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dump_packages, "_MAX_OPEN_BYTES", 1)
    source.offered = (Capability.RESOURCE_DUMP,)
    source.pack_resources(per_package=1)
    incoming = destination.folder.parent / "mirror.rsnotify" / "incoming"
    seen: list[int] = []

    def count(path: str) -> Answer:
        answer = source.answers[path]

        async def counted(request: object) -> object:
            seen.append(len([path for path in incoming.iterdir() if is_zip(path)]))
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
    except FileNotFoundError:  # applied in this moment
        return False
