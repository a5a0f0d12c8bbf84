"""When dumps are written, what they contain, and when they are dropped."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError, StorageError
from rsnotify.format.model import ChangeType, Resource
from rsnotify.sync.retry import Retry
from rsnotify_publisher import Publisher, Record
from rsnotify_publisher.documents.dumps import CheckedContents
from rsnotify_publisher.journal import Journal
from rsnotify_publisher.source_contents import SourceContents
from tests.publisher.helpers import BASE, PATIENCE, eventually
from tests.publisher.packed import sha256
from tests.publisher.published import QUIET, Published, join, members, names, read

#: Of `abc`.
MD5 = "900150983cd24fb0d6963f7d28e17f72"


def wait_packed(source: Published) -> tuple[Resource, ...]:
    """Wait until all closed lists are packed, and return them."""
    source.wait_written()
    closed = source.read("changelist-archive.xml").resources
    ends = lambda: [one.until for one in source.read("changedump.xml").resources]  # noqa: E731
    eventually(lambda: ends()[-1:] == [closed[-1].until])
    return closed


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "journal.sqlite3", BASE) as journal:
        yield journal


def test_a_limited_number_of_missing_contents_is_kept(journal: Journal, tmp_path: Path):
    with journal.transaction():
        journal.load([Record(Resource(BASE + "last"))])
    contents = CheckedContents(SourceContents(lambda uri: None), 0, journal, tmp_path)
    for number in range(2_000):
        assert contents.get(f"{BASE}{number}") is None
        assert len(contents.missing) <= 1_000
    contents.get(BASE + "last")
    with pytest.raises(StorageError, match="last was not deleted, but `content` returned nothing"):
        contents.get(BASE + "the-next")


def test_missing_content_that_has_come_back_is_not_reported(journal: Journal, tmp_path: Path):
    with journal.transaction():
        journal.load([Record(Resource(BASE + "a"))])
    found: list[bytes | None] = [None, b"1"]
    source = SourceContents(lambda uri: found.pop(0))
    contents = CheckedContents(source, 0, journal, tmp_path)
    assert contents.get(BASE + "a") is None
    contents.check()
    assert found == contents.missing == []


def test_only_deletions_explain_missing_content_if_a_callback_returns_the_set(
    journal: Journal, tmp_path: Path
):
    with journal.transaction():
        journal.set_tracked(False)
        for name, change in (("a", "deleted"), ("b", "deleted"), ("a", "created")):
            journal.record([Record(Resource(BASE + name, change=ChangeType(change)))])
    for name, is_reported in {"a": True, "b": False, "c": True}.items():
        contents = CheckedContents(SourceContents(lambda uri: None), 0, journal, tmp_path)
        contents.get(BASE + name)
        with pytest.raises(StorageError) if is_reported else nullcontext():
            contents.check()


def test_the_set_is_packed_in_a_resource_dump(tmp_path: Path):
    source = Published(tmp_path, resource_dump_every=0.05)
    source.publisher.load([Resource(BASE + "a"), Resource(BASE + "b")])
    with source:
        eventually(lambda: "resourcedump" in source.offered())
        dump = source.read("resourcedump.xml")
    assert (dump.capability, dump.link("archives")) == ("resourcedump", None)
    assert dump.at <= dump.completed
    found = [pair for package in dump.resources for pair in members(source.publisher, package)]
    assert [(entry.uri, content) for entry, content in found] == [
        (BASE + name, (BASE + name).encode()) for name in ("a", "b")
    ]


def test_former_resource_dumps_are_archived_with_their_packages(tmp_path: Path):
    with Published(
        tmp_path, resource_dump_every=0.05, resource_dump_archive=True, linger=0
    ) as source:
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


def test_a_resource_without_content_aborts_the_dump(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    source = Published(tmp_path, resource_dump_every=0.05)
    source.publisher.load([Resource(BASE + "a"), Resource(BASE + "b")])
    source.gone.add(BASE + "b")
    with source:
        eventually(lambda: "`content` returned nothing for it" in caplog.text)
    assert not source.has("resourcedump.xml")
    assert "resourcedump" not in source.offered()
    assert not list((source.folder / "resourcesync").glob("*.zip"))


def test_each_closed_list_is_packed_in_the_change_dump(tmp_path: Path):
    with Published(tmp_path, rotate="10 changes", change_dump=True) as source:
        source.update(*range(12))
        source.publisher.deleted(BASE + "3")
        source.update(*range(13, 30))
        closed = wait_packed(source)
    assert len(closed) > 1
    dump = source.read("changedump.xml")
    assert source.offered()["changedump"] == "changedump.xml"
    assert (dump.capability, dump.until) == ("changedump", None)
    assert dump.from_ == dump.resources[0].from_
    lists = [source.read(entry.uri) for entry in closed]
    for package, changes in zip(dump.resources, lists, strict=True):
        assert (package.from_, package.until) == (changes.from_, changes.until)
        found = members(source.publisher, package)
        assert [(entry.uri, entry.change, entry.datetime) for entry, _ in found] == [
            (change.uri, change.change, change.datetime) for change in changes.resources
        ]
        for entry, content in found:
            deleted = entry.change is ChangeType.DELETED
            assert content == (b"" if deleted else entry.uri.encode())
    # Captured content remains only for changes in the open list.
    kept = list((source.folder.parent / "captured").iterdir())
    assert len(kept) <= len(source.read("changelist.xml").resources)


def test_older_change_dumps_move_to_their_archive(tmp_path: Path):
    with Published(
        tmp_path, rotate="2 changes", change_dump=True, change_dump_archive=True
    ) as source:
        source.update(*range(30))
        closed = wait_packed(source)
    archive = source.read("changedump-archive.xml").resources
    live = source.read("changedump.xml")
    assert len(archive) > 3
    assert len(live.resources) == 10
    assert len(archive) + 10 == len(closed)
    assert live.link("archives") == BASE + "changedump-archive.xml"
    assert archive[-1].until == live.from_
    former = [source.read(entry.uri) for entry in archive]
    join([*former, live])
    assert [(entry.from_, entry.until) for entry in archive] == [
        (dump.from_, dump.until) for dump in former
    ]
    assert all(source.has(package.uri) for dump in former for package in dump.resources)


def test_change_dumps_are_kept_by_the_policy(tmp_path: Path):
    with Published(
        tmp_path, rotate="2 changes", change_dump=True, keep="3 dumps", linger=0
    ) as source:
        source.update(*range(20))
        assert len(wait_packed(source)) > 3
        assert len(source.read("changedump.xml").resources) == 3
        zips = (source.folder / "resourcesync").glob
        eventually(lambda: len(list(zips("*.zip"))) == 3)
    dump = source.read("changedump.xml")
    assert dump.from_ == dump.resources[0].from_


def test_an_empty_change_dump_begins_after_dropped_packages(tmp_path: Path):
    with Published(tmp_path, rotate="4 changes", change_dump=True, keep="1 h", linger=0) as source:
        source.update(*range(8))
        eventually(lambda: bool(source.read("changedump.xml").resources))
        packed = source.read("changedump.xml").resources[-1].until
        source.clock.pass_seconds(3_700)
        eventually(lambda: not source.read("changedump.xml").resources)
        begin = source.read("changedump.xml").from_
    assert begin >= packed


@pytest.mark.parametrize("tracked", [True, False])
def test_a_change_whose_content_is_missing_is_still_in_the_manifest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, tracked: bool
):
    source = Published(tmp_path, tracked=tracked, rotate="4 changes", change_dump=True)
    source.gone.add(BASE + "0")
    with source:
        source.update(*range(6))
        wait_packed(source)
    lost, kept = packed(source.publisher)[:2]
    assert (lost[0].uri, lost[0].path) == (BASE + "0", None)
    assert lost[0].hash is not None
    assert kept == (kept[0], (BASE + "1").encode())
    assert "the content of 1 change was not kept" in caplog.text


def test_a_dump_is_retried_until_the_source_returns_contents(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    away = [True]

    def content(uri: str) -> bytes:
        if away[0]:
            raise OSError("the database is away")
        return uri.encode()

    options = replace(QUIET, rotate="4 changes", change_dump=True)
    publisher = Publisher(tmp_path, BASE, options=options, content=content)
    with publisher:
        for number in range(6):
            publisher.updated(f"{BASE}{number}", hash=sha256(f"{BASE}{number}".encode()))
        eventually(lambda: "documents could not be written; retrying" in caplog.text)
        assert not read(publisher, "changedump.xml").resources
        away.clear()
        away.append(False)
        eventually(lambda: bool(read(publisher, "changedump.xml").resources))
    assert "was not kept" not in caplog.text


def test_each_version_of_a_quickly_changing_resource_is_packed(tmp_path: Path):
    """Content is captured before `updated` returns, or passed to it."""
    now: dict[str, bytes] = {}
    options = replace(QUIET, rotate="10 changes", change_dump=True, refresh=3600)
    publisher = Publisher(tmp_path, BASE, options=options, content=now.get)
    reported: list[bytes] = []
    with publisher:
        assert publisher.wait_published(PATIENCE)
        for number in range(20):
            now[BASE + "requested"] = b"version %d" % number
            publisher.updated(BASE + "requested", hash=sha256(now[BASE + "requested"]))
            publisher.updated(BASE + "given", content=b"content %d" % number)
            reported += [now[BASE + "requested"], b"content %d" % number]
        now.clear()
    # The next leader finds lists that are closed but not packed.
    again = Publisher(tmp_path, BASE, options=replace(options, refresh=0.02), content=now.get)
    with again:
        eventually(lambda: len(packed(again)) >= 30)
    found = packed(again)
    assert [content for _, content in found] == reported[: len(found)]
    assert [entry.hash for entry, _ in found] == [sha256(content) for _, content in found]


def packed(publisher: Publisher) -> list[tuple[Resource, bytes]]:
    """Return the entries of all packages, each with its bitstream."""
    packages = read(publisher, "changedump.xml").resources
    return [pair for package in packages for pair in members(publisher, package)]


def test_content_with_another_hash_than_the_change_is_refused(tmp_path: Path):
    with Publisher(tmp_path, BASE, options=QUIET) as publisher:
        change = publisher.created(BASE + "a", content=b"abc")
        assert (change.hash, change.length) == (sha256(b"abc"), 3)
        for wrong in ({"hash": sha256(b"abd")}, {"length": 4}):
            with pytest.raises(
                ConfigurationError, match="the hash or length does not match the content"
            ):
                publisher.updated(BASE + "a", content=b"abc", **wrong)
        with pytest.raises(ConfigurationError, match="has no content"):
            publisher.record([Record(Resource(BASE + "a", change=ChangeType.DELETED), content=b"")])
        assert publisher.updated(BASE + "a", content=b"abc", hash="md5:" + MD5).hash == "md5:" + MD5


def test_disabled_dumps_are_removed(tmp_path: Path):
    with Published(
        tmp_path, rotate="4 changes", change_dump=True, resource_dump_every=0.05
    ) as source:
        source.update(*range(10))
        eventually(lambda: bool(source.read("changedump.xml").resources))
        eventually(lambda: source.has("resourcedump.xml"))
    with Published(tmp_path, linger=0) as off:
        packages = (source.folder / "resourcesync").glob
        eventually(lambda: not list(packages("*dump-*")))
    assert not off.has("changedump.xml")
    assert not off.has("resourcedump.xml")
    assert not (tmp_path / "captured").exists()


def test_outdated_parts_of_a_change_dump_are_deleted(tmp_path: Path):
    with Published(
        tmp_path, rotate="2 changes", change_dump=True, max_entries=2, linger=0
    ) as source:
        source.update(*range(20))
        # Only the index, because its parts are deleted when it is replaced.
        grown = lambda: source.read("changedump.xml")  # noqa: E731
        eventually(lambda: (dump := grown()).index and len(dump.resources) > 3)
    with source:  # current parts are not deleted like those from a crash
        source.update("another")
        eventually(lambda: "another" in names([source.read("changelist.xml")]))
        parts = (source.folder / "resourcesync").glob
        eventually(
            lambda: (
                {f"{BASE}resourcesync/{path.name}" for path in parts("changedump-part-*")}
                == {entry.uri for entry in source.read("changedump.xml").resources}
            )
        )
    assert all(part.resources for part in source.parts("changedump.xml"))
    join(source.parts("changedump.xml"))


def test_packages_left_by_a_crash_are_rewritten_and_kept(tmp_path: Path):
    with Published(tmp_path, rotate="4 changes", change_dump=True, linger=0) as source:
        source.update(*range(10))
        eventually(lambda: len(source.read("changedump.xml").resources) > 1)
    with source.publisher.source.open_journal() as journal, journal.transaction():
        (*_, last) = journal.finished("changedump")
        journal.drop([last])
    with source:
        eventually(lambda: source.keeps([BASE + name for name in last.files], "changedump"))
        source.clock.pass_seconds(1)
        source.update("another")
        eventually(lambda: "another" in names([source.read("changelist.xml")]))
        assert all(source.has(name) for name in last.files)


def test_a_full_disk_leaves_no_partial_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """All documents are flushed before they are renamed, and these flushes fail here."""
    options = replace(
        QUIET,
        **dict.fromkeys(("change_dump", "change_dump_archive", "gzip"), True),
        **dict.fromkeys(("resource_list_archive", "resource_dump_archive"), True),
        **dict.fromkeys(("resource_list_every", "resource_dump_every"), 0.05),
        rotate="6 changes",
        max_entries=4,
    )
    chance, full, flush = Random(1), False, os.fsync

    def fsync(descriptor: int) -> None:
        if full and chance.random() < 0.2:
            raise OSError(errno.ENOSPC, "No space left on device")
        flush(descriptor)

    monkeypatch.setattr("rsnotify_publisher.files.os.fsync", fsync)
    monkeypatch.setattr("rsnotify_publisher.background.leader._RETRY", Retry(first=0.01, most=0.02))
    with Published(tmp_path, options) as source:
        full = True
        for number in range(60):
            source.update(number)
        full = False
        source.update("last")
        eventually(lambda: names(source.parts("changelist.xml"))[-1:] == ["last"])
        closed = lambda: names(source.parts("changelist-archive.xml"))  # noqa: E731
        dumps = lambda: [  # noqa: E731
            *source.parts("changedump-archive.xml"),
            *source.parts("changedump.xml"),
        ]
        eventually(lambda: closed() != [] and bool(names(dumps())))
        eventually(lambda: len(names(source.parts("resourcelist.xml"))) == 61)
    lists = [source.read(name) for name in closed()] + source.parts("changelist.xml")
    join(lists)
    assert names(lists) == [*map(str, range(60)), "last"]
    with source, source.publisher.source.open_journal() as journal:
        files = lambda: {str(p.relative_to(source.folder)) for p in source.folder.rglob("*.zip")}  # noqa: E731
        eventually(lambda: files() <= journal.files())


def test_packages_of_a_restored_source_have_new_names(tmp_path: Path):
    options = replace(QUIET, rotate="4 changes", change_dump=True)
    with Published(tmp_path / "state", options) as source:
        source.update("before")
        source.wait_written()
    shutil.copytree(tmp_path / "state", tmp_path / "backup")
    packages = []
    for state in ("state", "backup"):
        with Published(tmp_path / state, options) as source:
            source.update(*range(6))
            wait_packed(source)
            packages.append(source.read("changedump.xml").resources)
    lost, new = packages
    assert lost[0].from_ == new[0].from_
    assert {one.uri for one in lost}.isdisjoint({one.uri for one in new})
