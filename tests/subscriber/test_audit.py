from __future__ import annotations

import asyncio
import os
import sqlite3
import tempfile
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from rsnotify.errors import StorageError
from rsnotify.format.writer import write_document
from rsnotify.selection import Selection
from rsnotify_subscriber import Audit, audit
from rsnotify_subscriber.auditing import auditor
from rsnotify_subscriber.auditing.expected_resources import expected_resources
from tests.subscriber.destination import Destination
from tests.subscriber.source import SmallSource, body, first, path_of, status
from tests.test_terminal import terminal


@pytest.fixture(autouse=True)
async def mirrored(source: SmallSource, destination: Destination) -> None:
    source.put_some(3)
    await destination.catch_up()


async def audited(source: SmallSource, destination: Destination) -> Audit:
    return await audit(source.url, destination.folder, pause=0)


async def test_changes_after_the_resource_list_count(
    source: SmallSource, destination: Destination
) -> None:
    source.listed_at = source.last
    listed = write_document(source.resource_list())
    source.answers["/data/resourcelist.xml"] = body(listed)
    source.put("r0", b"new")
    source.delete("r1")
    source.put("r3", b"3")
    found = await audited(source, destination)
    assert found.in_step is False
    assert found.updated == (source.base + "r0",)
    assert found.created == (source.base + "r3",)
    assert found.deleted == ("r1",)
    await destination.catch_up()
    assert (await audited(source, destination)).in_step is True


async def test_what_differs_is_looked_at_again(
    source: SmallSource, destination: Destination
) -> None:
    before = body(write_document(source.resource_list()))
    source.put("r0", b"new")
    await destination.catch_up()
    source.changes.clear()
    now = body(write_document(source.resource_list()))
    source.answers["/data/resourcelist.xml"] = first(2, before, now)
    assert (await audited(source, destination)).in_step is True


async def test_what_the_lists_announce_or_omit_in_the_meantime_is_compared_too(
    source: SmallSource, destination: Destination
) -> None:
    source.put("r3", b"3")
    source.changes.clear()
    before = body(write_document(source.resource_list()))  # the copy lacks r3
    source.delete("r3")
    source.put("r1", b"new")
    source.delete("r2")
    source.put("r4", b"4")
    source.changes.clear()
    now = body(write_document(source.resource_list()))
    source.answers["/data/resourcelist.xml"] = first(1, before, now)
    found = await audited(source, destination)
    assert found.in_step is False
    assert found.updated == (source.base + "r1",)
    assert found.created == (source.base + "r4",)
    assert found.deleted == ("r2",)
    assert found.equal == 1


async def test_what_is_told_after_a_hole_counts_and_what_is_not_told_is_unknown(
    source: SmallSource, destination: Destination
) -> None:
    source.listed_at = source.begins - timedelta(hours=1)
    listed = write_document(source.resource_list())
    source.answers["/data/resourcelist.xml"] = body(listed)
    source.changes.clear()
    source.put("r3", b"3")
    without_from = write_document(replace(source.change_list(), from_=None))
    source.answers["/data/changelist.xml"] = body(without_from)
    (destination.folder / "r3").write_bytes(b"3")
    (destination.folder / "stranger").write_bytes(b"x")
    found = await audited(source, destination)
    assert found.resources == 4
    assert (found.created, found.updated, found.deleted) == ((), (), ())
    assert found.unknown == ("stranger",)
    (doubt,) = found.doubts
    assert "no document covers the time" in doubt
    assert found.in_step is None


async def test_a_change_list_that_cannot_be_read_leaves_it_open(
    source: SmallSource, destination: Destination
) -> None:
    source.answers["/data/changelist.xml"] = status(500)
    assert (await audited(source, destination)).in_step is None


async def test_without_hashes_the_content_itself_is_compared(
    source: SmallSource, destination: Destination
) -> None:
    for name, entry in source.described.items():
        source.described[name] = replace(entry, hash=None, length=None)
    source.changes.clear()
    assert (await audited(source, destination)).in_step is True
    source.contents["r1"] = b"silently changed"
    assert (await audited(source, destination)).updated == (source.base + "r1",)
    source.answers[path_of("r1")] = status(500)
    found = await audited(source, destination)
    assert found.unknown == (source.base + "r1",)
    assert found.in_step is None


async def test_a_listed_file_that_its_server_lacks_is_gone_and_one_that_no_list_names_is_deleted(
    source: SmallSource, destination: Destination
) -> None:
    for name, entry in source.described.items():
        source.described[name] = replace(entry, hash=None, length=None)
    source.changes.clear()
    source.answers[path_of("r1")] = status(404)
    (destination.folder / "stranger").write_bytes(b"x")
    found = await audited(source, destination)
    assert found.gone == (source.base + "r1",)
    assert found.deleted == found.foreign == ("stranger",)
    assert (found.in_step, found.differences) == (False, 2)

    source.listed_at = source.begins - timedelta(hours=1)
    found = await audited(source, destination)
    assert set(found.unknown) == {source.base + "r1", "stranger"}
    assert found.reasons == {source.base + "r1": "the server returned 404 or 410"}


async def test_an_audit_of_an_empty_folder_writes_nothing_into_it(
    source: SmallSource, destination: Destination
) -> None:
    empty = destination.folder.with_name("empty")
    empty.mkdir()
    os.utime(empty, (0, 0))
    found = await audit(source.url, empty, pause=0)
    assert len(found.created) == 3
    assert empty.stat().st_mtime == 0


async def test_a_set_of_many_pages_is_compared_completely(
    source: SmallSource, destination: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.put_some(9)
    await destination.catch_up()
    monkeypatch.setattr(auditor, "_PAGE_SIZE", 2)
    monkeypatch.setattr(auditor, "_BATCH_SIZE", 2)
    assert await audited(source, destination) == Audit(9, 9, source=source.url)
    (destination.folder / "r0").unlink()
    (destination.folder / "r8").write_bytes(b"damaged")
    strange = os.fsdecode(b"strange \xff")
    (destination.folder / strange).write_bytes(b"")
    found = await audited(source, destination)
    assert (found.resources, found.equal) == (9, 7)
    assert found.created == (source.base + "r0",)
    assert found.updated == (source.base + "r8",)
    assert found.deleted == found.foreign == (strange,)


async def test_an_audit_that_is_cancelled_leaves_no_temporary_files(
    source: SmallSource,
    destination: Destination,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    source.gets.clear()
    held = source.hold("/data/changelist.xml")
    auditing = asyncio.ensure_future(audit(source.url, destination.folder))
    await source.requested("/data/changelist.xml")
    assert len(list(place.glob("*/expected.sqlite"))) == 1
    auditing.cancel()
    with suppress(asyncio.CancelledError):
        await auditing
    held.set()
    assert list(place.iterdir()) == []


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(StorageError, match=r"expected\.sqlite: .*full"),
        expected_resources(tmp_path / "expected.sqlite", Selection()),
    ):
        raise sqlite3.OperationalError("database or disk is full")


async def test_the_progress_of_an_audit_is_shown_in_a_terminal(
    source: SmallSource, destination: Destination
) -> None:
    held, loop = source.hold("/data/resourcelist.xml"), asyncio.get_running_loop()

    def show() -> None:
        with terminal("audit", source.url, str(destination.folder), "--verify") as screen:
            screen.shows("reading the Source's documents")
            loop.call_soon_threadsafe(held.set)
            screen.shows("in step: 3 resources at the Source")

    await asyncio.to_thread(show)
