"""A Source whose set and contents come from callbacks, so the Publisher stores neither."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rsnotify.errors import ConfigurationError
from rsnotify.format.model import ChangeType, Link, Rel, Resource
from tests.publisher.helpers import BASE, PATIENCE, eventually, quick_publisher
from tests.publisher.published import members, read, recorded

EXAMPLE = Path(__file__).resolve().parents[2] / "publisher/examples/database.py"


def peak(count: int) -> float:
    """Run the example, and return its peak memory use in megabytes."""
    done = subprocess.run(
        [
            *(sys.executable, EXAMPLE, "--count", str(count), "--changes", "20", "--dump"),
            *("--entries", "1000"),  # a package remembers the names in it
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE * 4,
    )
    assert done.returncode == 0, done.stderr
    assert f"{count:,} resources and 20 changes published" in done.stdout
    found = re.search(r"peak memory: ([\d.]+) MB", done.stdout)
    return float(found[1])


def test_memory_does_not_grow_with_the_database():
    few, many = peak(1_000), peak(9_000)
    assert many - few < 6.4


def test_the_resource_list_shows_the_set_of_the_source(tmp_path: Path):
    held = {"b": 1, "a": 2}

    def resources() -> Iterator[Resource]:
        for name, length in held.items():
            yield Resource(BASE + name, length=length)

    with quick_publisher(tmp_path, resources=resources) as publisher:
        assert publisher.wait_published(PATIENCE)
        entries = read(publisher, "resourcelist.xml").resources
        assert entries == (Resource(BASE + "b", length=1), Resource(BASE + "a", length=2))
        held["c"] = 3
        publisher.created(BASE + "c", length=3)
        eventually(lambda: len(read(publisher, "resourcelist.xml").resources) == 3)
    with publisher.source.open_journal() as journal:
        assert journal.count() == 0
    changes = read(publisher, "changelist.xml").resources
    assert [(entry.uri, entry.change) for entry in changes] == [(BASE + "c", ChangeType.CREATED)]


def test_the_resource_list_omits_fields_of_changes(tmp_path: Path):
    links = (Link(Rel.PATCH, BASE + "diff"), Link(Rel.MEMENTO, BASE + "a/1"))
    reported = Resource(BASE + "a", change=ChangeType.UPDATED, links=links)
    with quick_publisher(tmp_path, resources=lambda: [reported]) as publisher:
        assert publisher.wait_published(PATIENCE)
    (entry,) = read(publisher, "resourcelist.xml").resources
    assert entry == Resource(BASE + "a", links=links[1:])


@pytest.mark.parametrize("failing", ["at once", "in the middle", "with a bad resource"])
def test_a_database_that_fails_only_delays_the_resource_list(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, failing: str
):
    broken = True

    def resources() -> Iterator[Resource]:
        if broken and failing == "at once":
            raise ZeroDivisionError
        yield Resource(BASE + "a")
        if broken and failing == "in the middle":
            raise ZeroDivisionError
        yield Resource("no URI" if broken else BASE + "b")

    with quick_publisher(tmp_path, resources=resources) as publisher:
        publisher.updated(BASE + "a")
        changed = publisher.source.documents_folder / "changelist.xml"
        eventually(lambda: "retrying" in caplog.text)
        eventually(lambda: changed.exists() and b"/a<" in changed.read_bytes())
        assert not (changed.parent / "resourcelist.xml").exists()
        broken = False
        assert publisher.wait_published(PATIENCE)
    assert len(read(publisher, "resourcelist.xml").resources) == 2
    assert not list((changed.parent / "resourcesync").iterdir())


def test_a_dump_succeeds_after_the_deletion_of_missing_content_is_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    def resources() -> Iterator[Resource]:
        for name in ("a", "b", "c"):
            yield Resource(BASE + name)
        if is_recorded:
            publisher.deleted(BASE + "b")

    is_recorded = False

    def content(uri: str) -> bytes | None:
        return None if uri.endswith("b") else b"x"

    publisher = quick_publisher(
        tmp_path, resources=resources, content=content, resource_dump_every=3600
    )
    dump = publisher.source.documents_folder / "resourcedump.xml"
    with publisher:
        eventually(
            lambda: "b was not deleted, but `content` returned nothing for it" in caplog.text
        )
        assert not dump.exists()
        is_recorded = True
        eventually(dump.exists)
    (package,) = read(publisher, "resourcedump.xml").resources
    assert [entry.uri for entry, _ in members(publisher, package)] == [BASE + "a", BASE + "c"]


def test_a_callback_may_record_while_the_publisher_closes(tmp_path: Path):
    requested, started = threading.Event(), threading.Event()

    def resources() -> Iterator[Resource]:
        requested.set()
        started.wait(PATIENCE)
        eventually(publisher._lock.locked)  # by `close`, which waits for this job
        yield Resource(publisher.updated(BASE + "a").uri)

    publisher = quick_publisher(tmp_path, resources=resources)
    publisher.start()
    started.set()
    assert requested.wait(PATIENCE)
    closing = threading.Thread(target=publisher.close, daemon=True)
    closing.start()
    closing.join(PATIENCE)
    assert not closing.is_alive()
    assert [change.uri for change in recorded(publisher)] == [BASE + "a"]


def test_nothing_can_be_loaded_if_a_callback_returns_the_set(tmp_path: Path):
    publisher = quick_publisher(tmp_path, resources=list)
    with pytest.raises(ConfigurationError, match="nothing to load"):
        publisher.load([Resource(BASE + "a")])


def test_a_callback_for_the_set_must_be_passed_again(tmp_path: Path):
    with quick_publisher(tmp_path, resources=list) as publisher:
        publisher.created(BASE + "a")
    with pytest.raises(ConfigurationError, match="pass that again"):
        quick_publisher(tmp_path).start()
