"""Each way up to level, taken over HTTP and told in the log, and each broken in the middle."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from rsnotify.errors import RsnotifyError, Unavailable
from rsnotify.model import Document, Resource
from rsnotify.vocabulary import Capability
from rsnotify.writing import write_document
from tests.subscriber.conftest import Destination
from tests.subscriber.packed_source import NAMES, PackedSource, zipped
from tests.subscriber.source import Answer, body, first, status

LISTS = (Capability.RESOURCE_LIST, Capability.CHANGE_LIST)
DUMPS = (Capability.RESOURCE_DUMP, Capability.CHANGE_DUMP)


@pytest.fixture
async def source() -> AsyncIterator[PackedSource]:
    source = PackedSource()
    await source.server.start()
    for n in range(10):
        source.put(f"r{n}", b"%d" % n * 100)
    yield source
    await source.server.stop()


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "rsnotify.subscriber")
    return caplog


def told(log: pytest.LogCaptureFixture, *parts: str) -> bool:
    return any(all(part in line for part in parts) for line in log.messages)


def fetched(source: PackedSource) -> set[str]:
    """Return which resources were asked for by themselves."""
    return {path for path in source.gets if path.removeprefix("/data/") in source.contents}


async def away(source: PackedSource, destination: Destination, *, packed: bool = True) -> None:
    """Get level, and let then much happen that the open Change List does not tell."""
    await destination.catch_up()
    for n in range(5):
        source.put(f"r{n}", b"new %d" % n * 100)
        source.put("often", b"%d" % n * 1000)
        source.delete(f"r{n + 5}")
        source.pack_changes() if packed else source.rotate()
    source.put("last", b"of all")
    source.gets.clear()


# Each way taken


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
    assert set(source.gets) == {"/data/changelist.xml", "/data/r1"}


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


# Each way broken in the middle


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
    assert told(log, "the copy of its manifest has to do", "changes-2.zip")
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
