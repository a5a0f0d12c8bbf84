"""Other documents are read in place of broken ones, as the log shows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from rsnotify.errors import RsnotifyError
from rsnotify.format.model import Capability, Document
from rsnotify.format.writer import write_document
from tests.subscriber.catching_up.absences import LISTS, fetched, logged, miss_changes
from tests.subscriber.destination import Destination
from tests.subscriber.packed_source import PackedSource, zipped
from tests.subscriber.source import Answer, body, first, status


def truncated(data: bytes) -> bytes:
    return data[: len(data) * 2 // 3]


BROKEN_PACKAGES: dict[str, Callable[[PackedSource], Answer]] = {
    "gone": lambda source: status(404),
    "truncated": lambda source: body(truncated(zipped(Document("x"), {"a": b"a"}))),
    "no ZIP": lambda source: body(b"<html>sorry</html>"),
    "no manifest": lambda source: body(zipped(None, {"/resources/0": b"x"})),
    "another manifest": lambda source: body(zipped(Document(Capability.CHANGE_LIST), {})),
    "not the announced one": lambda source: body(zipped(Document("x"), {"a": b"x" * 9999})),
}


def unannounced(source: PackedSource, dump: str) -> None:
    """Leave out hash and length of packages, so that their content has to be read."""
    document = source.documents[dump]
    entries = [replace(entry, hash=None, length=None) for entry in document.resources]
    source.documents[dump] = replace(document, resources=tuple(entries))


@pytest.mark.parametrize("broken", BROKEN_PACKAGES.values(), ids=BROKEN_PACKAGES)
async def test_if_a_package_of_a_dump_is_broken_the_rest_is_unpacked_and_then_the_list_read(
    broken: Callable[[PackedSource], Answer],
    source: PackedSource,
    destination: Destination,
    log: pytest.LogCaptureFixture,
) -> None:
    source.offered = (*LISTS, Capability.RESOURCE_DUMP)
    source.pack_resources()
    unannounced(source, "resourcedump.xml")
    source.answers["/data/resources-4.zip"] = broken(source)
    await destination.become_equal()
    assert logged(log, "the Resource Dump could not be used", "resources-4.zip")
    assert logged(log, "baseline from the Resource List")
    assert fetched(source) == {f"/data/r{n}" for n in range(4, 8)}


@pytest.mark.parametrize("broken", BROKEN_PACKAGES.values(), ids=BROKEN_PACKAGES)
async def test_a_change_dump_with_a_broken_package_is_finally_replaced_by_the_list(
    broken: Callable[[PackedSource], Answer], source: PackedSource, destination: Destination
) -> None:
    source.archive = False
    source.offered = (*LISTS, Capability.CHANGE_DUMP)
    await miss_changes(source, destination)
    source.answers["/data/changes-2.zip"] = broken(source)
    await destination.become_equal()


async def test_the_copy_of_a_manifest_replaces_a_broken_package(
    source: PackedSource, destination: Destination, log: pytest.LogCaptureFixture
) -> None:
    source.archive = False
    source.copies = True
    source.offered = (*LISTS, Capability.CHANGE_DUMP)
    await miss_changes(source, destination)
    source.answers["/data/changes-2.zip"] = status(404)
    await destination.become_equal()
    assert logged(log, "using the separate copy of a package's manifest", "changes-2.zip")
    assert source.gets["/data/resourcelist.xml"] == 0


@pytest.mark.parametrize("name", ["changelist-archive.xml", "changelist-3.xml"])
@pytest.mark.parametrize("spoil", [status(404), body(b"<urlset xmlns='nonsense'")])
async def test_a_broken_archive_is_replaced_by_the_change_dump(
    name: str,
    spoil: Answer,
    source: PackedSource,
    destination: Destination,
    log: pytest.LogCaptureFixture,
) -> None:
    source.offered = (*LISTS, Capability.CHANGE_DUMP)
    await miss_changes(source, destination)
    source.answers["/data/" + name] = spoil
    await destination.become_equal()
    assert logged(log, "the Change List Archive could not be used", name)
    assert logged(log, "continuing with the Change Dump ")
    assert source.gets["/data/resourcelist.xml"] == 0


async def test_a_list_rotated_away_between_two_requests_is_found_at_its_new_address(
    source: PackedSource, destination: Destination
) -> None:
    await miss_changes(source, destination, packed=False)
    lists = source.closed[2:4]
    source.answers["/data/changelist-2.xml"] = first(1, status(404), body(write_document(lists[0])))
    await destination.become_equal()
    assert source.gets["/data/resourcelist.xml"] == 0


async def test_a_single_dump_that_is_broken_changes_nothing_and_is_named(
    source: PackedSource, destination: Destination
) -> None:
    source.offered = (Capability.RESOURCE_DUMP,)
    source.pack_resources()
    await destination.catch_up()
    before = destination.files()
    source.delete("r1")
    source.pack_resources()
    source.answers["/data/resources-0.zip"] = status(404)
    with pytest.raises(RsnotifyError, match=r"resources-0\.zip"):
        await destination.catch_up()
    assert destination.files() == before
