"""The Resource List in the folder: what it holds, in how many parts, and for how long."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from rsnotify.format.model import Resource
from rsnotify_publisher import Publisher
from tests.publisher.helpers import BASE, PATIENCE, QUICK, Clock, eventually
from tests.publisher.published import QUIET, numbered, read


def test_the_resource_list_holds_the_current_set(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path, BASE, options=QUICK)
    publisher.load([Resource(BASE + "base", length=1), Resource(BASE + "gone")])
    with publisher:
        change = publisher.created(BASE + "new", hash="md5:00")
        publisher.deleted(BASE + "gone")
        listed = publisher.source.documents_folder / "resourcelist.xml"
        eventually(lambda: listed.exists() and b"/new" in listed.read_bytes())
        # A list may have been written between the two changes, or have seen only one.
        eventually(lambda: b"/gone" not in listed.read_bytes())
    document = read(publisher, "resourcelist.xml")
    base, new = document.resources
    assert (base.uri, base.length) == (BASE + "base", 1)
    assert (new.uri, new.hash, new.lastmod) == (BASE + "new", "md5:00", change.datetime)
    assert new.change is None
    assert document.at is not None
    assert document.completed is not None
    assert change.datetime is not None
    assert document.at <= document.completed
    assert document.completed >= change.datetime


def test_resources_that_another_process_loads_are_listed_at_once(tmp_path: Path) -> None:
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


def test_no_later_change_is_at_or_before_the_instant_of_the_resource_list(
    tmp_path: Path,
) -> None:
    stopped = 5_000_000

    publisher = Publisher(tmp_path, BASE, options=QUICK, clock=lambda: stopped)
    with publisher:
        assert publisher.wait_published(PATIENCE)
        at = read(publisher, "resourcelist.xml").at
        change = publisher.updated(BASE + "a")
    assert at is not None
    assert change.datetime is not None
    assert change.datetime > at


@pytest.mark.parametrize(("entries", "parts"), [(10, 1), (4, 3), (5, 2), (1, 10)])
def test_a_long_resource_list_gets_an_index(tmp_path: Path, entries: int, parts: int) -> None:
    publisher = Publisher(tmp_path, BASE, options=replace(QUICK, max_entries=entries))
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


def test_bytes_too_make_a_resource_list_long(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path, BASE, options=replace(QUICK, max_bytes=1_000))
    publisher.load(Resource(BASE + name) for name in numbered(20))
    with publisher:
        assert publisher.wait_published(PATIENCE)
    folder = publisher.source.documents_folder / "resourcesync"
    assert read(publisher, "resourcelist.xml").index
    assert all(part.stat().st_size <= 1_000 for part in folder.glob("resourcelist-*"))


def test_parts_of_a_replaced_resource_list_linger_and_then_go(tmp_path: Path) -> None:
    clock = Clock()
    options = replace(QUICK, max_entries=1, linger=600)
    publisher = Publisher(tmp_path, BASE, options=options, clock=clock)
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
