"""The documents in the folder: contents, intervals, and what is never rewritten."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, tzinfo
from itertools import count
from pathlib import Path
from typing import Self

import pytest
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError, StorageError
from rsnotify.format.datetimes import Instant
from rsnotify.format.model import ChangeType, Resource
from rsnotify.format.reader import read_document
from rsnotify_publisher import Options, Publisher, Record
from rsnotify_publisher.documents.open_change_list import OpenChangeList
from rsnotify_publisher.journal import Journal
from rsnotify_publisher.source_documents import SourceDocuments
from tests.fork_server import forked
from tests.publisher.helpers import (
    BASE,
    PATIENCE,
    QUICK,
    Clock,
    WaitingCallback,
    eventually,
    quick_publisher,
)
from tests.publisher.published import QUIET, Published, numbered, publish, read, recorded, uris


def test_a_new_source_has_every_document(tmp_path: Path):
    publisher = publish(tmp_path)
    for name, capability in {
        "resourcelist.xml": "resourcelist",
        "changelist.xml": "changelist",
        "changelist-archive.xml": "changelist-archive",
        "channel.xml": "changelist",
    }.items():
        document = read(publisher, name)
        assert (document.capability, document.resources) == (capability, ())
        assert document.link("up") == BASE + "capabilitylist.xml"
    assert read(publisher, "changelist.xml").link("archives") == BASE + "changelist-archive.xml"
    assert read(publisher, "resourcelist.xml").at is not None
    assert read(publisher, "changelist.xml").from_ is not None
    assert read(publisher, "changelist.xml").until is None


def test_the_capability_list_offers_documents_channel_and_hubs(tmp_path: Path):
    publisher = publish(tmp_path, hubs=("http://hub.invalid/",))
    description = read(publisher, ".well-known/resourcesync")
    assert (description.capability, uris(description)) == (
        "description",
        [BASE + "capabilitylist.xml"],
    )
    document = read(publisher, "capabilitylist.xml")
    assert document.link("up") == BASE + ".well-known/resourcesync"
    offered = {entry.capability: entry for entry in document.resources}
    assert {name: entry.uri for name, entry in offered.items()} == {
        "resourcelist": BASE + "resourcelist.xml",
        "changelist": BASE + "changelist.xml",
        "changelist-archive": BASE + "changelist-archive.xml",
        "change-notification": BASE + "channel.xml",
    }
    links = offered["change-notification"].links
    assert [(link.rel, link.href) for link in links] == [
        ("hub", "http://hub.invalid/websub"),
        ("hub", "ws://hub.invalid/ws"),
    ]


def test_changes_are_in_the_open_list_with_datetime_and_lastmod(tmp_path: Path):
    with quick_publisher(tmp_path) as publisher:
        reported = [publisher.created(BASE + "a", length=1), publisher.deleted(BASE + "a")]
    entries = read(publisher, "changelist.xml").resources
    assert [entry.datetime for entry in entries] == [change.datetime for change in reported]
    assert [entry.lastmod for entry in entries] == [change.datetime for change in reported]
    assert [entry.change for entry in entries] == [ChangeType.CREATED, ChangeType.DELETED]
    assert read(publisher, "channel.xml") == read(publisher, "changelist.xml")


def test_closed_lists_and_the_open_one_join_without_a_gap(tmp_path: Path):
    options = replace(QUICK, rotate="10 changes")
    publisher = publish(tmp_path, *numbered(57), options=options)
    archive = read(publisher, "changelist-archive.xml")
    opened = read(publisher, "changelist.xml")
    assert len(archive.resources) > 3
    lists = [read(publisher, entry.uri) for entry in archive.resources] + [opened]
    through: Instant | None = lists[0].from_
    for document in lists:
        assert document.from_ == through
        assert document.capability == "changelist"
        assert document.link("archives") == BASE + "changelist-archive.xml"
        last = document.resources[-1].datetime
        assert document is opened or document.until == last
        through = last
    for entry, document in zip(archive.resources, lists, strict=False):
        assert (entry.from_, entry.until) == (document.from_, document.until)
    names = [entry.uri.removeprefix(BASE) for d in lists for entry in d.resources]
    assert names == numbered(57)
    assert 5 <= len(opened.resources) < 10
    assert len(recorded(publisher)) < 10, "the journal is pruned behind closed lists"


def test_closed_lists_are_never_rewritten(tmp_path: Path):
    options = replace(QUICK, rotate="10 changes")
    closed = publish(tmp_path, *numbered(40), options=options)
    files = list((closed.source.documents_folder / "resourcesync").glob("changelist-*"))
    before = {file: (file.stat().st_ino, file.stat().st_mtime_ns) for file in files}
    publish(tmp_path, *numbered(40), options=options)
    assert len(before) > 2
    assert {file: (file.stat().st_ino, file.stat().st_mtime_ns) for file in files} == before


def test_the_oldest_closed_lists_are_dropped(tmp_path: Path):
    publisher = quick_publisher(tmp_path, rotate="10 changes", keep="2 lists", linger=0)
    folder = publisher.source.documents_folder / "resourcesync"
    last = BASE + numbered(60)[-1]

    def closed() -> list[str]:
        return sorted(BASE + "resourcesync/" + file.name for file in folder.glob("changelist-*"))

    with publisher:
        assert publisher.wait_published(PATIENCE)
        for name in numbered(60):
            publisher.updated(BASE + name)
        # There may be two earlier, too. What counts is the number after everything is written.
        eventually(lambda: uris(read(publisher, "changelist.xml"))[-1:] == [last])
        eventually(lambda: len(closed()) == 2)
    archive = read(publisher, "changelist-archive.xml")
    assert closed() == [entry.uri for entry in archive.resources]
    assert archive.resources[-1].until == read(publisher, "changelist.xml").from_


def test_a_restarted_source_continues_the_same_lists(tmp_path: Path):
    before = read(publish(tmp_path, "a"), "changelist.xml")
    after = read(publish(tmp_path, "b"), "changelist.xml")
    assert after.from_ == before.from_
    assert after.resources[:1] == before.resources
    assert len(after.resources) == 2


def test_writing_is_retried_if_the_folder_is_not_writable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    publisher = quick_publisher(tmp_path)
    documents = publisher.source.documents_folder
    elsewhere, wall, link = (tmp_path / name for name in ("elsewhere", "wall", "link"))
    elsewhere.mkdir()
    wall.write_text("in the way")
    # It is replaced in one step. Otherwise, the folder would be created again.
    for location in (documents, link):
        location.symlink_to(elsewhere, target_is_directory=True)
    with publisher:
        assert publisher.wait_published(PATIENCE)
        wall.replace(documents)
        publisher.updated(BASE + "a")
        eventually(lambda: "retrying" in caplog.text)
        link.replace(documents)
    assert uris(read(publisher, "changelist.xml")) == [BASE + "a"]


def test_a_file_system_without_hard_links_has_every_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    with quick_publisher(tmp_path) as publisher:
        publisher.updated(BASE + "a")
    for name in ("resourcelist.xml", "changelist.xml"):
        assert uris(read(publisher, name)) == [BASE + "a"]
    assert read(publisher, "channel.xml")


@pytest.mark.parametrize("in_the_way", ["", "documents", "documents/resourcesync"])
def test_an_unwritable_folder_is_refused_at_the_start(tmp_path: Path, in_the_way: str):
    location = tmp_path / "state" / in_the_way
    location.parent.mkdir(parents=True, exist_ok=True)
    location.write_text("in the way")
    publisher = quick_publisher(tmp_path / "state")
    with pytest.raises(ConfigurationError, match=r"is not a folder|cannot be written"):
        publisher.start()


def test_each_entry_of_the_open_list_is_serialized_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    written: list[str] = []
    entry = SourceDocuments.entry

    def count(documents: SourceDocuments, resource: Resource) -> bytes:
        written.append(resource.uri)
        return entry(documents, resource)

    monkeypatch.setattr(SourceDocuments, "entry", count)
    publisher = quick_publisher(tmp_path, resource_list_every=900)
    shown = OpenChangeList(SourceDocuments(BASE, (), Options()))
    # The Resource List has other entries, so it is written once, while there are none.
    assert publisher.wait_published(PATIENCE)
    with publisher.source.open_journal() as journal:
        for name in ("a", "b", "c"):
            publisher.updated(BASE + name)
            shown.refresh(journal)
            assert b"".join(shown.chunks()).count(b"<url>") == len(set(written))
    publisher.close()
    assert sorted(set(written)) == [BASE + "a", BASE + "b", BASE + "c"]
    # Once for this list, and at most once for the one in the folder.
    assert all(written.count(uri) <= 2 for uri in written)


async def test_a_second_process_also_waits_for_published_documents(tmp_path: Path):
    async with quick_publisher(tmp_path) as first:
        assert await first.await_published(PATIENCE)
        async with quick_publisher(tmp_path) as second:
            assert await second.await_published(PATIENCE)


def test_documents_are_written_after_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    back = timedelta(0)

    class PutBack(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return super().now(tz) + back

    monkeypatch.setattr("rsnotify_publisher.job_schedule.datetime", PutBack)
    with quick_publisher(tmp_path) as publisher:
        assert publisher.wait_published(PATIENCE)
        back = timedelta(hours=-1)
        for name in numbered(3):
            publisher.created(BASE + name)
            eventually(lambda: uris(read(publisher, "changelist.xml"))[-1:] == [BASE + name])  # noqa: B023


def test_a_backlog_is_closed_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rsnotify_publisher.documents.change_lists._MAX_BATCH", 50)
    publisher = quick_publisher(tmp_path, rotate="20 changes")
    with publisher.source.open_journal() as journal, journal.transaction():
        journal.record(
            Record(Resource(BASE + name, change=ChangeType.CREATED)) for name in numbered(500)
        )
    with publisher:
        assert publisher.wait_published(PATIENCE)
    lists = [
        read(publisher, entry.uri.removeprefix(BASE))
        for entry in read(publisher, "changelist-archive.xml").resources
    ]
    lists.append(read(publisher, "changelist.xml"))
    assert [uri for one in lists for uri in uris(one)] == [BASE + name for name in numbered(500)]
    assert all(len(one.resources) <= 20 for one in lists)


def test_a_publisher_that_closes_at_once_publishes(tmp_path: Path):
    publisher = quick_publisher(tmp_path)
    with publisher.source.open_journal() as journal, journal.transaction():
        journal.record([Record(Resource(BASE + "a", change=ChangeType.CREATED))])
    publisher.start()
    publisher.close()
    assert uris(read(publisher, "changelist.xml")) == [BASE + "a"]


# The Resource List in the folder: its contents, its parts, and their deletion.


def test_the_resource_list_contains_the_current_set(tmp_path: Path):
    publisher = quick_publisher(tmp_path)
    publisher.load([Resource(BASE + "base", length=1), Resource(BASE + "gone")])
    with publisher:
        change = publisher.created(BASE + "new", hash="md5:00")
        publisher.deleted(BASE + "gone")
        listed = publisher.source.documents_folder / "resourcelist.xml"
        eventually(lambda: listed.exists() and b"/new" in listed.read_bytes())
        # A list may have been written between the two changes, and contain only one.
        eventually(lambda: b"/gone" not in listed.read_bytes())
    document = read(publisher, "resourcelist.xml")
    base, new = document.resources
    assert (base.uri, base.length) == (BASE + "base", 1)
    assert (new.uri, new.hash, new.lastmod) == (BASE + "new", "md5:00", change.datetime)
    assert new.change is None
    assert document.at <= document.completed
    assert document.completed >= change.datetime


def test_resources_that_another_process_loads_are_listed_at_once(tmp_path: Path):
    with Publisher(tmp_path, BASE, options=QUIET) as publisher:
        assert publisher.wait_published(PATIENCE)
        assert not read(publisher, "resourcelist.xml").resources
        other = Publisher(tmp_path, BASE)
        other.load([Resource(BASE + "a")])
        other.updated(BASE + "b")
        eventually(lambda: read(publisher, "changelist.xml").resources)
        eventually(lambda: read(publisher, "resourcelist.xml").resources)
        other.close()
    assert read(publisher, "resourcelist.xml").resources[0].uri == BASE + "a"


def test_no_later_change_is_at_or_before_the_instant_of_the_resource_list(tmp_path: Path):
    stopped = 5_000_000

    with quick_publisher(tmp_path, clock=lambda: stopped) as publisher:
        assert publisher.wait_published(PATIENCE)
        at = read(publisher, "resourcelist.xml").at
        change = publisher.updated(BASE + "a")
    assert change.datetime > at


@pytest.mark.parametrize(("entries", "parts"), [(10, 1), (4, 3), (5, 2)])
def test_a_long_resource_list_gets_an_index(tmp_path: Path, entries: int, parts: int):
    publisher = quick_publisher(tmp_path, max_entries=entries)
    publisher.load(Resource(BASE + name) for name in numbered(10))
    with publisher:
        assert publisher.wait_published(PATIENCE)
    top = read(publisher, "resourcelist.xml")
    assert top.link("up") == BASE + "capabilitylist.xml"
    if parts == 1:
        assert not top.index
        lists = [top]
    else:
        assert top.index
        lists = [read(publisher, entry.uri) for entry in top.resources]
        assert {part.link("index") for part in lists} == {BASE + "resourcelist.xml"}
    assert len(lists) == parts
    assert {document.at for document in lists} == {top.at}
    names = [entry.uri.removeprefix(BASE) for part in lists for entry in part.resources]
    assert names == numbered(10)


def test_a_resource_list_with_too_many_bytes_gets_an_index(tmp_path: Path):
    publisher = quick_publisher(tmp_path, max_bytes=1_000)
    publisher.load(Resource(BASE + name) for name in numbered(20))
    with publisher:
        assert publisher.wait_published(PATIENCE)
    folder = publisher.source.documents_folder / "resourcesync"
    assert read(publisher, "resourcelist.xml").index
    assert all(part.stat().st_size <= 1_000 for part in folder.glob("resourcelist-*"))


def test_parts_of_a_replaced_resource_list_are_deleted_later(tmp_path: Path):
    clock = Clock()
    publisher = quick_publisher(tmp_path, clock=clock, max_entries=1, linger=600)
    folder = publisher.source.documents_folder / "resourcesync"

    def parts() -> set[str]:
        return {BASE + "resourcesync/" + part.name for part in folder.glob("resourcelist-*")}

    def listed() -> set[str]:
        return {entry.uri for entry in read(publisher, "resourcelist.xml").resources}

    publisher.load([Resource(BASE + "a"), Resource(BASE + "b")])
    with publisher:
        assert publisher.wait_published(PATIENCE)
        before = listed()
        publisher.created(BASE + "c")
        eventually(lambda: len(listed()) == 3)
        assert before | listed() <= parts()

        def gone_in_time() -> bool:
            clock.pass_seconds(601)  # again, as the list may have been written twice
            return parts() == listed()

        eventually(gone_in_time)


# Every document that a Source offers exists, from the beginning and after the end.


SCRIPT = """
import sys
from rsnotify_publisher import Publisher

publisher = Publisher(sys.argv[1], "http://source.example/data/")
publisher.created("http://source.example/data/one")
"""


def offered(documents: Path) -> set[str]:
    """Return the names of all documents that are offered, beginning at the well-known URI."""
    description = documents / ".well-known/resourcesync"
    if not description.exists():
        return set()
    names = {".well-known/resourcesync"}
    for one in uris(read_document(description.read_bytes())):
        names.add(one.removeprefix(BASE))
    for one in uris(read_document((documents / "capabilitylist.xml").read_bytes())):
        names.add(one.removeprefix(BASE))
    return names


def missing(documents: Path) -> set[str]:
    """Return the names of offered documents that do not exist."""
    return {name for name in offered(documents) if not (documents / name).exists()}


def test_a_program_that_ends_at_once_writes_every_document_it_offers(tmp_path: Path):
    ended = subprocess.run(
        [*forked(SCRIPT), tmp_path], capture_output=True, text=True, timeout=PATIENCE
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    documents = tmp_path / "documents"
    assert "resourcelist.xml" in offered(documents)
    assert not missing(documents)
    for name in ("resourcelist.xml", "changelist.xml"):
        assert uris(read_document((documents / name).read_bytes())) == [BASE + "one"]


def test_closing_completes_the_first_resource_list(tmp_path: Path):
    begun = threading.Event()

    def resources() -> Iterator[Resource]:
        begun.set()
        for number in range(20_000):
            yield Resource(f"{BASE}{number}")

    with Publisher(tmp_path, BASE, resources=resources) as publisher:
        assert begun.wait(PATIENCE)
    assert "resourcelist.xml" in offered(publisher.source.documents_folder)
    assert len(read(publisher, "resourcelist.xml").resources) == 20_000


def test_nothing_is_offered_before_the_first_resource_list_is_written(tmp_path: Path):
    resources = WaitingCallback(BASE + "one")
    with quick_publisher(tmp_path, resources=resources) as publisher:
        documents = publisher.source.documents_folder
        eventually((documents / "changelist.xml").exists)
        publisher.updated(BASE + "one")
        eventually(lambda: uris(read(publisher, "changelist.xml")) == [BASE + "one"])
        assert not (documents / "capabilitylist.xml").exists()
        assert not offered(documents)
        resources.go.set()
        assert publisher.wait_published(PATIENCE)
        assert "resourcelist.xml" in offered(documents)
        assert not missing(documents)


def test_a_resource_dump_is_offered_once_it_is_written(tmp_path: Path):
    with Published(tmp_path) as published:
        published.update("one")
    with Published(tmp_path, resource_dump_every=1) as published:
        eventually(lambda: "resourcedump.xml" in offered(published.folder))
        assert not missing(published.folder)


def test_publishing_is_retried_if_the_journal_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    publisher = quick_publisher(tmp_path)
    calls, opened = count(1), publisher.source.open_journal

    def open_journal() -> Journal:
        if next(calls) == 3:  # in the thread that publishes; the first two are in `start`
            raise StorageError("the disk does not answer")
        return opened()

    monkeypatch.setattr(publisher.source, "open_journal", open_journal)
    with publisher:
        assert publisher.wait_published(PATIENCE)
    assert "publishing failed; retrying: the disk does not answer" in caplog.text


def test_a_process_that_did_not_lead_publishes_its_last_change(tmp_path: Path):
    leading, other = (Publisher(tmp_path, BASE) for _ in range(2))
    with leading:
        assert leading.wait_published(PATIENCE)
        other.start()
    other.updated(BASE + "one")
    other.close()
    assert uris(read(other, "changelist.xml")) == [BASE + "one"]
