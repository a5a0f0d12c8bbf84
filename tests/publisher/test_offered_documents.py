"""Every document that a Source offers exists: from the first document on, and after the end."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from rsnotify.format.model import Resource
from rsnotify.format.reader import read_document
from rsnotify_publisher import Publisher
from tests.publisher.helpers import BASE, PATIENCE, QUICK, eventually
from tests.publisher.published import QUIET, Published, read, uris

SCRIPT = """
import sys
from rsnotify_publisher import Publisher

publisher = Publisher(sys.argv[1], "http://source.example/data/")
publisher.created("http://source.example/data/one")
"""


def offered(documents: Path) -> set[str]:
    """Return the documents that are named from the well-known URI on."""
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
    """Return the documents that are named, and are not there."""
    return {name for name in offered(documents) if not (documents / name).exists()}


def test_a_program_that_ends_at_once_has_written_every_document_it_offers(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", SCRIPT, tmp_path], check=True, timeout=PATIENCE)
    documents = tmp_path / "documents"
    assert "resourcelist.xml" in offered(documents)
    assert not missing(documents)
    assert uris(read_document((documents / "resourcelist.xml").read_bytes())) == [BASE + "one"]


def test_closing_finishes_a_first_resource_list_that_was_begun(tmp_path: Path) -> None:
    begun = threading.Event()

    def resources() -> Iterator[Resource]:
        begun.set()
        for number in range(20_000):
            yield Resource(f"{BASE}{number}")

    with Publisher(tmp_path, BASE, resources=resources) as publisher:
        assert begun.wait(PATIENCE)
    assert "resourcelist.xml" in offered(publisher.source.documents_folder)
    assert len(read(publisher, "resourcelist.xml").resources) == 20_000


def test_nothing_leads_to_a_source_before_its_first_resource_list_is_written(
    tmp_path: Path,
) -> None:
    goes_on = threading.Event()

    def resources() -> Iterator[Resource]:
        goes_on.wait(PATIENCE)
        yield Resource(BASE + "one")

    with Publisher(tmp_path, BASE, options=QUICK, resources=resources) as publisher:
        documents = publisher.source.documents_folder
        eventually((documents / "changelist.xml").exists)
        publisher.updated(BASE + "one")
        eventually(lambda: uris(read(publisher, "changelist.xml")) == [BASE + "one"])
        assert not (documents / "capabilitylist.xml").exists()
        assert not offered(documents)
        goes_on.set()
        assert publisher.wait_published(PATIENCE)
        assert "resourcelist.xml" in offered(documents)
        assert not missing(documents)


def test_a_resource_dump_is_offered_once_it_is_written(tmp_path: Path) -> None:
    with Published(tmp_path) as published:
        published.update("one")
    with Published(tmp_path, replace(QUIET, resource_dump_every=1)) as published:
        eventually(lambda: "resourcedump.xml" in offered(published.folder))
        assert not missing(published.folder)


def test_what_is_offered_no_longer_is_named_no_longer(tmp_path: Path) -> None:
    with Published(tmp_path, replace(QUIET, resource_list_archive=True)) as published:
        assert "resourcelist-archive.xml" in offered(published.folder)
    with Published(tmp_path) as published:
        eventually(lambda: "resourcelist-archive.xml" not in offered(published.folder))
        assert not missing(published.folder)


def test_a_process_that_did_not_lead_publishes_what_it_recorded_last(tmp_path: Path) -> None:
    leading, other = (Publisher(tmp_path, BASE) for _ in range(2))
    with leading:
        assert leading.wait_published(PATIENCE)
        other.start()
    other.updated(BASE + "one")
    other.close()
    assert uris(read(other, "changelist.xml")) == [BASE + "one"]
