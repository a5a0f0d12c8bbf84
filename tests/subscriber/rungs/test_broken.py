"""Each way up to level, broken in the middle: another is taken, and that is told in the log."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from rsnotify.errors import RsnotifyError
from rsnotify.format.model import Document, Resource
from rsnotify.format.vocabulary import Capability
from rsnotify.format.writer import write_document
from tests.subscriber.destination import Destination
from tests.subscriber.packed_source import PackedSource, zipped
from tests.subscriber.rungs.conftest import LISTS, away, fetched, told
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
    """Leave out hash and length of packages, so that what is in them has to be looked at."""
    document = source.documents[dump]
    entries = [replace(entry, hash=None, length=None) for entry in document.resources]
    source.documents[dump] = replace(document, resources=tuple(entries))


@pytest.mark.parametrize("broken", BROKEN_PACKAGES.values(), ids=BROKEN_PACKAGES)
async def test_of_a_dump_with_a_broken_package_the_rest_is_taken_and_then_the_list(
    broken: Callable[[PackedSource], Answer],
    source: PackedSource,
    destination: Destination,
    log: pytest.LogCaptureFixture,
) -> None:
    source.offered = (*LISTS, Capability.RESOURCE_DUMP)
    source.pack_resources()
    unannounced(source, "resourcedump.xml")
    source.answers["/data/resources-4.zip"] = broken(source)
    await destination.catch_up()
    assert destination.equals_source()
    assert told(log, "the Resource Dump could not be used", "resources-4.zip")
    assert told(log, "baseline from the Resource List")
    assert fetched(source) == {f"/data/r{n}" for n in range(4, 8)}


@pytest.mark.parametrize("broken", BROKEN_PACKAGES.values(), ids=BROKEN_PACKAGES)
async def test_a_change_dump_with_a_broken_package_gives_way_in_the_end_to_the_list(
    broken: Callable[[PackedSource], Answer], source: PackedSource, destination: Destination
) -> None:
    source.archive = False
    source.offered = (*LISTS, Capability.CHANGE_DUMP)
    await away(source, destination)
    source.answers["/data/changes-2.zip"] = broken(source)
    await destination.catch_up()
    assert destination.equals_source()


async def test_the_copy_of_a_manifest_has_to_do_where_its_package_is_broken(
    source: PackedSource, destination: Destination, log: pytest.LogCaptureFixture
) -> None:
    source.archive = False
    source.copies = True
    source.offered = (*LISTS, Capability.CHANGE_DUMP)
    await away(source, destination)
    source.answers["/data/changes-2.zip"] = status(404)
    await destination.catch_up()
    assert destination.equals_source()
    assert told(log, "the copy of its manifest is used instead", "changes-2.zip")
    assert source.gets["/data/resourcelist.xml"] == 0


@pytest.mark.parametrize("name", ["changelist-archive.xml", "changelist-3.xml"])
@pytest.mark.parametrize("spoil", [status(404), body(b"<urlset xmlns='nonsense'")])
async def test_a_broken_archive_gives_way_to_the_change_dump(
    name: str,
    spoil: Answer,
    source: PackedSource,
    destination: Destination,
    log: pytest.LogCaptureFixture,
) -> None:
    source.offered = (*LISTS, Capability.CHANGE_DUMP)
    await away(source, destination)
    source.answers["/data/" + name] = spoil
    await destination.catch_up()
    assert destination.equals_source()
    assert told(log, "the Change List Archive could not be used", name)
    assert told(log, "going on with the Change Dump ")
    assert source.gets["/data/resourcelist.xml"] == 0


async def test_a_list_rotated_away_between_two_requests_is_found_at_its_next_place(
    source: PackedSource, destination: Destination
) -> None:
    await away(source, destination, packed=False)
    lists = source.closed[2:4]
    source.answers["/data/changelist-2.xml"] = first(1, status(404), body(write_document(lists[0])))
    await destination.catch_up()
    assert destination.equals_source()
    assert source.gets["/data/resourcelist.xml"] == 0


async def test_an_archive_that_names_what_is_gone_for_good_leads_to_the_resource_list(
    source: PackedSource, destination: Destination, log: pytest.LogCaptureFixture
) -> None:
    await away(source, destination, packed=False)
    source.answers["/data/changelist-2.xml"] = status(410)
    await destination.catch_up()
    assert destination.equals_source()
    assert told(log, "baseline from the Resource List")


async def test_a_resource_list_that_stays_broken_gives_way_to_the_dump(
    source: PackedSource, destination: Destination, log: pytest.LogCaptureFixture
) -> None:
    source.archive = False
    source.offered = (*LISTS, Capability.RESOURCE_DUMP)
    await away(source, destination)
    source.pack_resources()
    source.answers["/data/resourcelist.xml"] = body(truncated(write_document(Document("x"))))
    await destination.catch_up()
    assert destination.equals_source()
    assert told(log, "the Resource List could not be used")
    assert told(log, "baseline from the Resource Dump")


async def test_an_archived_list_is_compared_where_no_other_is_left(
    source: PackedSource, destination: Destination, log: pytest.LogCaptureFixture
) -> None:
    source.offered = (*LISTS, Capability.RESOURCE_LIST_ARCHIVE)
    source.documents["old.xml"] = source._resource_list()
    at = source.documents["old.xml"].at
    source.documents["resourcelist-archive.xml"] = Document(
        Capability.RESOURCE_LIST_ARCHIVE, (Resource("old.xml", at=at),)
    )
    source.put("r1", b"changed since")
    source.answers["/data/resourcelist.xml"] = status(404)
    await destination.catch_up()
    assert destination.equals_source()
    assert told(log, "baseline from the Resource List Archive")


async def test_a_dump_alone_that_is_broken_changes_nothing_and_is_named(
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
