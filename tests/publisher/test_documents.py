"""The documents in the folder: what they hold, how they join, and what is never rewritten."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Self

import pytest
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError
from rsnotify.format.datetimes import Instant
from rsnotify.format.model import ChangeType, Resource
from rsnotify.format.reader import read_document
from rsnotify_publisher import Publisher, Record
from rsnotify_publisher.documents.change_list_files import OpenChangeList
from rsnotify_publisher.source_documents import SourceDocuments
from tests.publisher.helpers import BASE, PATIENCE, QUICK, eventually
from tests.publisher.published import numbered, publish, read, uris


def test_a_new_source_has_every_document_though_all_are_empty(tmp_path: Path) -> None:
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


def test_the_description_leads_to_the_capability_list_alone(tmp_path: Path) -> None:
    description = read(publish(tmp_path), ".well-known/resourcesync")
    assert description.capability == "description"
    assert [entry.uri for entry in description.resources] == [BASE + "capabilitylist.xml"]


def test_the_capability_list_offers_documents_channel_and_hubs(tmp_path: Path) -> None:
    publisher = publish(tmp_path, hubs=("http://hub.invalid/",))
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


def test_changes_are_in_the_open_list_with_datetime_and_lastmod(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path, BASE, options=QUICK)
    with publisher:
        reported = [publisher.created(BASE + "a", length=1), publisher.deleted(BASE + "a")]
    entries = read(publisher, "changelist.xml").resources
    assert [entry.datetime for entry in entries] == [change.datetime for change in reported]
    assert [entry.lastmod for entry in entries] == [change.datetime for change in reported]
    assert [entry.change for entry in entries] == [ChangeType.CREATED, ChangeType.DELETED]
    assert read(publisher, "channel.xml") == read(publisher, "changelist.xml")


def test_closed_lists_and_the_open_one_join_without_a_gap(tmp_path: Path) -> None:
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


def test_a_flood_is_closed_in_lists_of_bounded_length(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path, BASE, options=replace(QUICK, rotate="10 changes", refresh=30))
    with publisher:
        publisher.record(
            [Resource(BASE + name, change=ChangeType.UPDATED) for name in numbered(95)]
        )
    archive = read(publisher, "changelist-archive.xml")
    lengths = [len(read(publisher, entry.uri).resources) for entry in archive.resources]
    assert max(lengths) == 10
    assert sum(lengths) + len(read(publisher, "changelist.xml").resources) == 95


def test_closed_lists_are_never_touched_again(tmp_path: Path) -> None:
    options = replace(QUICK, rotate="10 changes")
    closed = publish(tmp_path, *numbered(40), options=options)
    files = list((closed.source.documents_folder / "resourcesync").glob("changelist-*"))
    before = {file: (file.stat().st_ino, file.stat().st_mtime_ns) for file in files}
    publish(tmp_path, *numbered(40), options=options)
    assert len(before) > 2
    assert {file: (file.stat().st_ino, file.stat().st_mtime_ns) for file in files} == before


def test_the_oldest_closed_lists_are_dropped(tmp_path: Path) -> None:
    options = replace(QUICK, rotate="10 changes", keep="2 lists", linger=0)
    publisher = Publisher(tmp_path, BASE, options=options)
    folder = publisher.source.documents_folder / "resourcesync"
    last = BASE + numbered(60)[-1]

    def closed() -> list[str]:
        return sorted(BASE + "resourcesync/" + file.name for file in folder.glob("changelist-*"))

    with publisher:
        assert publisher.wait_published(PATIENCE)
        for name in numbered(60):
            publisher.updated(BASE + name)
        # Two are there on the way up as well: what counts is how many stay when all is written.
        eventually(lambda: uris(read(publisher, "changelist.xml"))[-1:] == [last])
        eventually(lambda: len(closed()) == 2)
    archive = read(publisher, "changelist-archive.xml")
    assert closed() == [entry.uri for entry in archive.resources]
    assert archive.resources[-1].until == read(publisher, "changelist.xml").from_


def test_the_journal_is_pruned_behind_closed_lists(tmp_path: Path) -> None:
    options = replace(QUICK, rotate="10 changes")
    publisher = publish(tmp_path, *numbered(60), options=options)
    with publisher.source.open_journal() as journal:
        assert len(journal.changes(0)) < 10
    assert len(read(publisher, "changelist.xml").resources) < 10


def test_a_restart_goes_on_with_the_same_lists(tmp_path: Path) -> None:
    before = read(publish(tmp_path, "a"), "changelist.xml")
    after = read(publish(tmp_path, "b"), "changelist.xml")
    assert after.from_ == before.from_
    assert after.resources[:1] == before.resources
    assert len(after.resources) == 2


def test_readers_never_see_a_list_ahead_of_the_archive(tmp_path: Path) -> None:
    options = replace(QUICK, rotate="10 changes", refresh=0.001)
    publisher = Publisher(tmp_path, BASE, options=options)
    gaps: list[tuple[object, object]] = []
    done = threading.Event()

    def read_documents() -> None:
        while not done.is_set():
            opened = read(publisher, "changelist.xml")
            archive = read(publisher, "changelist-archive.xml")
            covered = {entry.until for entry in archive.resources} | {origin}
            if opened.from_ not in covered:
                gaps.append((opened.from_, covered))

    with publisher:
        assert publisher.wait_published(PATIENCE)
        origin = read(publisher, "changelist.xml").from_
        reading = threading.Thread(target=read_documents)
        reading.start()
        for name in numbered(400):
            publisher.updated(BASE + name)
        done.set()
        reading.join()
    assert gaps == []
    assert len(read(publisher, "changelist-archive.xml").resources) > 3


def test_a_folder_that_cannot_be_written_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = Publisher(tmp_path, BASE, options=QUICK)
    documents = publisher.source.documents_folder
    elsewhere, wall, link = (tmp_path / name for name in ("elsewhere", "wall", "link"))
    elsewhere.mkdir()
    wall.write_text("in the way")
    # What stands there is replaced in one step: were nothing there, the folder would be made anew.
    for location in (documents, link):
        location.symlink_to(elsewhere, target_is_directory=True)
    with publisher:
        assert publisher.wait_published(PATIENCE)
        wall.replace(documents)
        publisher.updated(BASE + "a")
        eventually(lambda: "retrying" in caplog.text)
        link.replace(documents)
    assert [entry.uri for entry in read(publisher, "changelist.xml").resources] == [BASE + "a"]


@pytest.mark.parametrize("in_the_way", ["", "documents", "documents/resourcesync"])
def test_a_folder_that_cannot_be_written_is_refused_at_the_start(
    tmp_path: Path, in_the_way: str
) -> None:
    location = tmp_path / "state" / in_the_way
    location.parent.mkdir(parents=True, exist_ok=True)
    location.write_text("in the way")
    publisher = Publisher(tmp_path / "state", BASE, options=QUICK)
    with pytest.raises(ConfigurationError, match=r"is no folder|cannot be written"):
        publisher.start()


def test_the_open_list_is_written_from_entries_it_already_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    entry = SourceDocuments.entry

    def count(documents: SourceDocuments, resource: Resource) -> bytes:
        written.append(resource.uri)
        return entry(documents, resource)

    monkeypatch.setattr(SourceDocuments, "entry", count)
    publisher = Publisher(tmp_path, BASE, options=replace(QUICK, resource_list_every=900))
    shown = OpenChangeList(SourceDocuments(BASE, ()))
    # The Resource List, whose entries are others, is written once, while there is none.
    assert publisher.wait_published(PATIENCE)
    with publisher.source.open_journal() as journal:
        for name in ("a", "b", "c"):
            publisher.updated(BASE + name)
            shown.refresh(journal)
            assert b"".join(shown.chunks()).count(b"<url>") == len(set(written))
    publisher.close()
    assert sorted(set(written)) == [BASE + "a", BASE + "b", BASE + "c"]
    # Once for this list and at most once for the one in the folder.
    assert all(written.count(uri) <= 2 for uri in written)


async def test_documents_are_there_for_a_second_process_too(tmp_path: Path) -> None:
    async with Publisher(tmp_path, BASE, options=QUICK) as first:
        assert await asyncio.to_thread(first.wait_published, PATIENCE)
        async with Publisher(tmp_path, BASE, options=QUICK) as second:
            assert await asyncio.to_thread(second.wait_published, PATIENCE)


def test_documents_go_on_when_the_clock_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    back = timedelta(0)

    class PutBack(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return super().now(tz) + back

    monkeypatch.setattr("apscheduler.schedulers.base.datetime", PutBack)
    with Publisher(tmp_path, BASE, options=QUICK) as publisher:
        assert publisher.wait_published(PATIENCE)
        back = timedelta(hours=-1)
        for name in numbered(3):
            publisher.created(BASE + name)
            eventually(lambda: uris(read(publisher, "changelist.xml"))[-1:] == [BASE + name])  # noqa: B023


def test_a_backlog_is_closed_as_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rsnotify_publisher.documents.document_store._AT_ONCE", 50)
    publisher = Publisher(tmp_path, BASE, options=replace(QUICK, rotate="20 changes"))
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


def test_what_ends_as_soon_as_it_has_begun_has_published(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path, BASE, options=QUICK)
    with publisher.source.open_journal() as journal, journal.transaction():
        journal.record([Record(Resource(BASE + "a", change=ChangeType.CREATED))])
    publisher.start()
    publisher.close()
    assert uris(read(publisher, "changelist.xml")) == [BASE + "a"]


def test_a_script_that_just_ends_has_published_without_a_word(tmp_path: Path) -> None:
    script = (
        "from rsnotify_publisher import Publisher\n"
        f"Publisher({str(tmp_path)!r}, {BASE!r}).updated({BASE + 'a'!r})\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    changes = read_document((tmp_path / "documents/changelist.xml").read_bytes())
    assert uris(changes) == [BASE + "a"]
