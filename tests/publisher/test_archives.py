"""What is closed: how it stands in indexes, archives and dumps, and how it leaves them."""

from __future__ import annotations

import gzip
import hashlib
import threading
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Self

import pytest
from msgspec.structs import replace

from rsnotify.commands.processes import free_port
from rsnotify.model import Document, Resource
from rsnotify.reading import read_document
from rsnotify.vocabulary import ChangeType
from rsnotify_publisher import Options, Publisher
from tests.publisher.helpers import BASE, PATIENCE, QUICK, Clock, eventually

QUIET = replace(QUICK, resource_list_every=900, grace=0)


class Published:
    """A Source whose contents are its names, and what it has published."""

    def __init__(self, folder: Path, options: Options = QUIET) -> None:
        self.clock = Clock()
        self.gone: set[str] = set()
        self.publisher = Publisher(
            folder, BASE, options=options, clock=self.clock, content=self._content
        )
        self.folder = self.publisher.source.documents_folder

    def __enter__(self) -> Self:
        self.publisher.start()
        assert self.publisher.wait_published(PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        self.publisher.close()

    def _content(self, uri: str) -> bytes | None:
        return None if uri in self.gone else uri.encode()

    def update(self, *names: object) -> None:
        for name in names:
            uri = f"{BASE}{name}"
            digest = "sha-256:" + hashlib.sha256(uri.encode()).hexdigest()
            self.publisher.updated(uri, hash=digest, type="text/plain")

    def read(self, name: str) -> Document:
        data = (self.folder / name.removeprefix(BASE)).read_bytes()
        return read_document(gzip.decompress(data) if name.endswith(".gz") else data, source=name)

    def has(self, name: str) -> bool:
        return (self.folder / name.removeprefix(BASE)).exists()

    def parts(self, name: str) -> list[Document]:
        """Read a document, or in its place what its index lists."""
        top = self.read(name)
        return [self.read(entry.uri) for entry in top.resources] if top.index else [top]

    def offered(self) -> dict[str | None, str]:
        return {
            entry.capability: entry.uri.removeprefix(BASE)
            for entry in self.read("capabilitylist.xml").resources
        }


def names(documents: list[Document]) -> list[str]:
    return [entry.uri.removeprefix(BASE) for part in documents for entry in part.resources]


def join(documents: list[Document]) -> None:
    """Check that Change Lists or Dumps follow on each other without a hole."""
    for before, after in pairwise(documents):
        assert before.until == after.from_


def test_an_open_period_that_outgrows_a_document_gets_an_index(tmp_path: Path) -> None:
    source = Published(tmp_path, replace(QUIET, rotate="1000 changes", max_entries=10))
    with source:
        source.update(*range(35))
    top = source.read("changelist.xml")
    assert top.index
    assert (top.capability, top.until) == ("changelist", None)
    assert top.link("up") == BASE + "capabilitylist.xml"
    assert top.link("archives") == BASE + "changelist-archive.xml"
    *closed, opened = source.parts("changelist.xml")
    assert len(closed) == 3
    join([*closed, opened])
    assert opened.until is None
    assert names([*closed, opened]) == [str(number) for number in range(35)]
    assert {part.link("index") for part in [*closed, opened]} == {BASE + "changelist.xml"}
    for entry, part in zip(top.resources, [*closed, opened], strict=True):
        assert (entry.from_, entry.until) == (part.from_, part.until)
    assert top.from_ == closed[0].from_
    assert source.read("channel.xml") == opened
    assert source.read("changelist-archive.xml").resources == ()


def test_bytes_too_make_the_open_period_outgrow_a_document(tmp_path: Path) -> None:
    source = Published(tmp_path, replace(QUIET, rotate="1000 changes", max_bytes=4_000))
    with source:
        source.update(*range(40))
    assert source.read("changelist.xml").index
    assert names(source.parts("changelist.xml")) == [str(number) for number in range(40)]
    sizes = [path.stat().st_size for path in (source.folder / "resourcesync").glob("changelist-*")]
    assert len(sizes) > 3
    assert max(sizes) <= 4_000


def test_parts_of_an_index_move_to_the_archive_as_they_are(tmp_path: Path) -> None:
    source = Published(tmp_path, replace(QUIET, rotate="40 changes", max_entries=10))
    with source:
        source.update(*range(35))
        eventually(lambda: len(source.read("changelist.xml").resources) == 4)
        first = source.folder / source.read("changelist.xml").resources[0].uri.removeprefix(BASE)
        before = first.stat()
        source.update(*range(35, 62))
    archive = source.read("changelist-archive.xml")
    top = source.read("changelist.xml")
    assert archive.resources
    assert archive.resources[0].uri.endswith(first.name)
    assert (first.stat().st_ino, first.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    everything = [source.read(entry.uri) for entry in archive.resources]
    everything += source.parts("changelist.xml")
    join(everything)
    assert names(everything) == [str(number) for number in range(62)]
    assert sum(len(part.resources) for part in source.parts("changelist.xml")) >= 20
    assert top.from_ == archive.resources[-1].until


def test_an_open_period_may_become_one_document_again(tmp_path: Path) -> None:
    source = Published(tmp_path, replace(QUIET, rotate="30 changes or 1 h", max_entries=10))
    with source:
        source.update(*range(15))
        eventually(lambda: source.read("changelist.xml").index)
        source.clock.pass_seconds(3_601)
        source.update("new")
        eventually(lambda: not source.read("changelist.xml").index)
    assert source.read("changelist.xml").resources[-1].uri == BASE + "new"
    # Whoever polls the open part goes on with what is open now.
    assert source.read("resourcesync/changelist-open.xml") == source.read("changelist.xml")


def test_changes_are_closed_by_age(tmp_path: Path) -> None:
    source = Published(tmp_path, replace(QUIET, rotate="1 h"))
    with source:
        source.update("a", "b")
        source.clock.pass_seconds(2_400)
        source.update("c")
        source.clock.pass_seconds(1_300)
        eventually(lambda: bool(source.read("changelist-archive.xml").resources))
    (entry,) = source.read("changelist-archive.xml").resources
    assert names([source.read(entry.uri)]) == ["a", "b"]
    assert names([source.read("changelist.xml")]) == ["c"]


def test_what_was_closed_is_offered_for_the_stated_time_and_lingers_as_a_file(
    tmp_path: Path,
) -> None:
    options = replace(QUIET, rotate="4 changes", keep="1 h", linger=600, resource_list_every=0.05)
    source = Published(tmp_path, options)

    def archived() -> list[str]:
        return [entry.uri for entry in source.read("changelist-archive.xml").resources]

    with source:
        source.update(*range(8))
        eventually(lambda: bool(archived()))
        closed = archived()
        source.clock.pass_seconds(3_500)
        source.update("x")
        eventually(lambda: "x" in names([source.read("changelist.xml")]))
        assert archived()[: len(closed)] == closed
        source.clock.pass_seconds(200)
        source.update("y")
        eventually(lambda: not set(closed) & set(archived()))
        assert all(source.has(uri) for uri in closed)
        source.clock.pass_seconds(601)
        eventually(lambda: not any(source.has(uri) for uri in closed))


def test_old_changes_leave_the_open_list_too_where_little_happens(tmp_path: Path) -> None:
    source = Published(tmp_path, replace(QUIET, keep="1 h", linger=0, resource_list_every=0.05))
    with source:
        source.update("a")
        eventually(lambda: names([source.read("changelist.xml")]) == ["a"])
        source.clock.pass_seconds(3_700)
        eventually(lambda: names([source.read("changelist.xml")]) == [])
        eventually(lambda: not source.read("changelist-archive.xml").resources)
        source.update("b")
    assert names([source.read("changelist.xml")]) == ["b"]


def test_changes_that_a_baseline_still_needs_are_not_dropped(tmp_path: Path) -> None:
    # The Resource List stays as it was at the start, so each later change is needed.
    source = Published(tmp_path, replace(QUIET, rotate="4 changes", keep="1 list", refresh=0.01))
    with source:
        source.update(*range(40))
        source.clock.pass_seconds(10)
    archive = source.read("changelist-archive.xml").resources
    at = source.read("resourcelist.xml").at
    assert len(archive) > 3
    assert archive[0].from_ is not None
    assert at is not None
    assert archive[0].from_ <= at


def test_a_hub_that_never_comes_back_does_not_keep_changes_for_ever(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = replace(QUIET, rotate="4 changes", keep="1 list", resource_list_every=0.05)
    hub = f"http://127.0.0.1:{free_port()}/"
    with Publisher(tmp_path, BASE, options=options, hubs=[hub]) as publisher:
        for number in range(40):
            publisher.updated(f"{BASE}{number}")
        eventually(lambda: "will have a gap" in caplog.text)
        assert caplog.text.count("will have a gap") == 1

        def kept() -> int:
            with publisher.source.open_journal() as journal:
                return len(journal.changes(0))

        eventually(lambda: kept() < 20)


@pytest.mark.parametrize("max_entries", [50_000, 2])
def test_former_resource_lists_are_archived(tmp_path: Path, max_entries: int) -> None:
    options = replace(
        QUIET, resource_list_archive=True, max_entries=max_entries, resource_list_every=0.05
    )
    source = Published(tmp_path, options)
    with source:
        seen = []
        for number in range(3):
            source.update(f"{number}a", f"{number}b")
            eventually(lambda n=number: f"{n}b" in names(source.parts("resourcelist.xml")))  # type: ignore[misc]
            seen.append(source.read("resourcelist.xml"))
        eventually(lambda: len(source.read("resourcelist-archive.xml").resources) >= 2)
    assert source.offered()["resourcelist-archive"] == "resourcelist-archive.xml"
    assert seen[0].link("archives") == BASE + "resourcelist-archive.xml"
    former = [
        entry for part in source.parts("resourcelist-archive.xml") for entry in part.resources
    ]
    assert [entry.at for entry in former] == sorted(entry.at for entry in former if entry.at)
    lists = {entry.at: source.read(entry.uri) for entry in former}
    assert lists[seen[0].at] == seen[0]
    assert all(lists[entry.at].completed == entry.completed for entry in former)
    assert seen[-1].at not in lists, "the live one is no former one"
    for entry in former:
        for part in source.parts(entry.uri):
            assert part.capability == "resourcelist"
            assert part.link("index") in (None, entry.uri)


def test_an_archive_that_outgrows_a_document_gets_an_index(tmp_path: Path) -> None:
    source = Published(tmp_path, replace(QUIET, rotate="2 changes", max_entries=5))
    with source:
        source.update(*range(30))
    top = source.read("changelist-archive.xml")
    assert top.index
    assert top.capability == "changelist-archive"
    assert top.link("up") == BASE + "capabilitylist.xml"
    parts = source.parts("changelist-archive.xml")
    assert len(parts) > 1
    assert {part.link("index") for part in parts} == {BASE + "changelist-archive.xml"}
    assert {part.capability for part in parts} == {"changelist-archive"}
    lists = [source.read(entry.uri) for part in parts for entry in part.resources]
    join([*lists, source.read("changelist.xml")])
    assert names([*lists, source.read("changelist.xml")]) == [str(n) for n in range(30)]


def test_readers_never_find_a_hole_between_index_and_archive(tmp_path: Path) -> None:
    options = replace(QUIET, rotate="60 changes", max_entries=10, refresh=0.001)
    source = Published(tmp_path, options)
    holes: list[object] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            top = source.read("changelist.xml")
            archive = source.parts("changelist-archive.xml")
            covered = {entry.until for part in archive for entry in part.resources} | {origin}
            if top.from_ not in covered:
                holes.append(top.from_)
            if top.index:
                last = source.read(top.resources[-1].uri)
                # What has left the open part this moment, the next look at the index tells.
                assert last.from_ is not None
                assert top.resources[-1].from_ is not None
                if last.from_ < top.resources[-1].from_:
                    holes.append((last.from_, top.resources[-1].from_))

    with source:
        origin = source.read("changelist.xml").from_
        looking = threading.Thread(target=look)
        looking.start()
        source.update(*range(400))
        done.set()
        looking.join()
    assert holes == []
    assert len(source.parts("changelist-archive.xml")) > 1


def test_long_documents_may_be_compressed(tmp_path: Path) -> None:
    options = replace(
        QUIET, gzip=True, rotate="10 changes", max_entries=12, resource_list_every=0.05
    )
    source = Published(tmp_path, options)
    with source:
        source.update(*(f"{number:02}" for number in range(20)))
        eventually(lambda: len(names(source.parts("resourcelist.xml"))) == 20)
    archive = source.read("changelist-archive.xml")
    parts = source.read("resourcelist.xml")
    assert all(entry.uri.endswith(".xml.gz") for entry in archive.resources)
    assert all(entry.uri.endswith(".xml.gz") for entry in parts.resources)
    assert len(archive.resources) > 1
    assert len(parts.resources) == 2
    closed = [source.read(entry.uri) for entry in archive.resources]
    assert names([*closed, source.read("changelist.xml")]) == [f"{n:02}" for n in range(20)]
    assert {part.link("up") for part in closed} == {BASE + "capabilitylist.xml"}


def test_a_single_long_document_is_never_compressed(tmp_path: Path) -> None:
    source = Published(tmp_path, replace(QUIET, gzip=True))
    source.publisher.load(Resource(f"{BASE}{number:06}") for number in range(2_000))
    with source:
        pass
    assert len(source.read("resourcelist.xml").resources) == 2_000
    assert source.read("resourcelist.xml").link("index") is None


def test_readers_of_1_0_find_the_datetime_of_changes_in_lastmod_alone(tmp_path: Path) -> None:
    source = Published(tmp_path, replace(QUIET, profile="1.0", rotate="4 changes"))
    with source:
        change = source.publisher.updated(BASE + "a", lastmod=Clock.ORIGIN)
        source.update(*range(5))
    archived = source.read("changelist-archive.xml").resources
    entries = [entry for item in archived for entry in source.read(item.uri).resources]
    entries += source.read("changelist.xml").resources
    assert [entry.datetime for entry in entries] == [None] * 6
    assert entries[0].lastmod == change.datetime


def test_what_is_off_is_not_offered(tmp_path: Path) -> None:
    source = Published(tmp_path)
    with source:
        pass
    assert set(source.offered()) == {
        "resourcelist", "changelist", "changelist-archive", "change-notification",
    }  # fmt: skip
    assert source.read("resourcelist.xml").link("archives") is None


def test_an_archive_that_is_turned_off_goes(tmp_path: Path) -> None:
    options = replace(QUIET, resource_list_archive=True, resource_list_every=0.05, linger=0)
    source = Published(tmp_path, options)
    with source:
        source.update("a")
        eventually(lambda: bool(source.read("resourcelist-archive.xml").resources))
    without = Published(tmp_path, replace(QUIET, linger=0))
    with without:
        dated = source.folder / "resourcesync"
        eventually(lambda: not list(dated.glob("resourcelist-*")))
    assert not without.has("resourcelist-archive.xml")
    assert "resourcelist-archive" not in without.offered()


def test_files_that_a_crash_left_behind_go_after_a_while(tmp_path: Path) -> None:
    source = Published(tmp_path)
    lost = (
        source.folder / "resourcesync/changelist-20200101T000000000000Z-20200102T000000000000Z.xml"
    )
    lost.parent.mkdir(parents=True)
    lost.write_text("half")
    with source:
        assert lost.exists()
        source.clock.pass_seconds(601)
        eventually(lambda: not lost.exists())


# Dumps


def members(source: Published, package: Resource) -> list[tuple[Resource, bytes]]:
    """Return the entries of a package's manifest, each with its bitstream."""
    with zipfile.ZipFile(source.folder / package.uri.removeprefix(BASE)) as archive:
        manifest = read_document(archive.read("manifest.xml"))
        (contents,) = [link.href for link in package.links if link.rel == "contents"]
        assert source.read(contents) == manifest
        return [
            (entry, archive.read(entry.path.lstrip("/")) if entry.path else b"")
            for entry in manifest.resources
        ]


def test_the_set_is_packed_in_a_resource_dump(tmp_path: Path) -> None:
    source = Published(tmp_path, replace(QUIET, resource_dump_every=0.05))
    source.publisher.load([Resource(BASE + "a"), Resource(BASE + "b")])
    with source:
        eventually(lambda: "resourcedump" in source.offered())
        dump = source.read("resourcedump.xml")
    assert (dump.capability, dump.link("archives")) == ("resourcedump", None)
    assert dump.at is not None
    assert dump.completed is not None
    assert dump.at <= dump.completed
    found = [pair for package in dump.resources for pair in members(source, package)]
    assert [(entry.uri, content) for entry, content in found] == [
        (BASE + name, (BASE + name).encode()) for name in ("a", "b")
    ]


def test_former_resource_dumps_are_archived_with_their_packages(tmp_path: Path) -> None:
    options = replace(QUIET, resource_dump_every=0.05, resource_dump_archive=True, linger=0)
    source = Published(tmp_path, options)
    with source:
        eventually(lambda: "resourcedump-archive" in source.offered())
        first = source.read("resourcedump.xml")
        source.update("a")
        eventually(lambda: source.read("resourcedump.xml").at != first.at)
        eventually(lambda: bool(source.read("resourcedump-archive.xml").resources))
    archive = source.read("resourcedump-archive.xml").resources
    assert source.read(archive[0].uri) == first
    assert (archive[0].at, archive[0].completed) == (first.at, first.completed)
    assert first.link("archives") == BASE + "resourcedump-archive.xml"
    assert all(source.has(package.uri) for package in first.resources)


def test_a_resource_without_content_breaks_the_dump_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = Published(tmp_path, replace(QUIET, resource_dump_every=0.05))
    source.publisher.load([Resource(BASE + "a"), Resource(BASE + "b")])
    source.gone.add(BASE + "b")
    with source:
        eventually(lambda: "`content` has nothing for it" in caplog.text)
    assert not source.has("resourcedump.xml")
    assert "resourcedump" not in source.offered()
    assert not list((source.folder / "resourcesync").glob("*.zip"))


def test_each_closed_list_is_packed_in_the_change_dump(tmp_path: Path) -> None:
    source = Published(tmp_path, replace(QUIET, rotate="10 changes", change_dump=True))
    with source:
        source.update(*range(12))
        source.publisher.deleted(BASE + "3")
        source.update(*range(13, 30))
        closed = lambda: source.read("changelist-archive.xml").resources  # noqa: E731
        dumped = lambda: source.read("changedump.xml").resources  # noqa: E731
        eventually(lambda: len(closed()) > 1 and len(dumped()) == len(closed()))
    dump = source.read("changedump.xml")
    assert source.offered()["changedump"] == "changedump.xml"
    assert (dump.capability, dump.until) == ("changedump", None)
    assert dump.from_ == dump.resources[0].from_
    lists = [source.read(entry.uri) for entry in closed()]
    for package, changes in zip(dump.resources, lists, strict=True):
        assert (package.from_, package.until) == (changes.from_, changes.until)
        found = members(source, package)
        assert [(entry.uri, entry.change, entry.datetime) for entry, _ in found] == [
            (change.uri, change.change, change.datetime) for change in changes.resources
        ]
        for entry, content in found:
            deleted = entry.change is ChangeType.DELETED
            assert content == (b"" if deleted else entry.uri.encode())
    # What was kept aside for the packages is only that of changes that are open.
    kept = list((source.folder.parent / "captured").iterdir())
    assert len(kept) <= len(source.read("changelist.xml").resources)


def test_older_change_dumps_move_to_their_archive(tmp_path: Path) -> None:
    options = replace(QUIET, rotate="2 changes", change_dump=True, change_dump_archive=True)
    source = Published(tmp_path, options)
    with source:
        source.update(*range(30))
        eventually(lambda: len(source.read("changedump-archive.xml").resources) > 3)
    archive = source.read("changedump-archive.xml").resources
    live = source.read("changedump.xml")
    assert len(live.resources) == 10
    assert live.link("archives") == BASE + "changedump-archive.xml"
    assert archive[-1].until == live.from_
    former = [source.read(entry.uri) for entry in archive]
    join([*former, live])
    assert [(entry.from_, entry.until) for entry in archive] == [
        (dump.from_, dump.until) for dump in former
    ]
    assert all(source.has(package.uri) for dump in former for package in dump.resources)


def test_change_dumps_are_kept_by_the_policy(tmp_path: Path) -> None:
    options = replace(QUIET, rotate="2 changes", change_dump=True, keep="3 dumps", linger=0)
    source = Published(tmp_path, options)
    with source:
        source.update(*range(20))
        zips = (source.folder / "resourcesync").glob
        eventually(lambda: len(source.read("changedump.xml").resources) == 3)
        eventually(lambda: len(list(zips("*.zip"))) == 3)
    dump = source.read("changedump.xml")
    assert dump.from_ == dump.resources[0].from_


def test_an_empty_change_dump_claims_nothing_that_was_dropped(tmp_path: Path) -> None:
    options = replace(QUIET, rotate="4 changes", change_dump=True, keep="1 h", linger=0)
    source = Published(tmp_path, options)
    with source:
        source.update(*range(8))
        eventually(lambda: bool(source.read("changedump.xml").resources))
        packed = source.read("changedump.xml").resources[-1].until
        assert packed is not None
        source.clock.pass_seconds(3_700)
        eventually(lambda: not source.read("changedump.xml").resources)
        begin = source.read("changedump.xml").from_
    assert begin is not None
    assert begin >= packed
