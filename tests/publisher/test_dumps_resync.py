"""The library of PyPI's `resync` reads our dumps as what they are."""

from __future__ import annotations

import hashlib
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from resync.change_dump import ChangeDump
from resync.change_dump_manifest import ChangeDumpManifest
from resync.resource_dump import ResourceDump
from resync.resource_dump_manifest import ResourceDumpManifest

from rsnotify.format.model import ChangeType, Link, Resource
from rsnotify_publisher.documents.dump_writer import DumpWriter, WrittenPackage

BASE = "http://source.example/data/"
UP = BASE + "capabilitylist.xml"
AT = datetime(2026, 11, 20, 12, 0, 0, 250_000, tzinfo=UTC)
END = AT + timedelta(minutes=1)
CONTENTS = {BASE + "a.ttl": b"<a> <b> <c> .", BASE + "b?x=1&y=2": b"\0\1"}


def parse(document: object, text: bytes) -> None:
    document.parse(str_data=text.decode())  # type: ignore[attr-defined]


def check_packages(folder: Path, document: ResourceDump, packages: list[WrittenPackage]) -> None:
    listed = list(document.resources)
    assert [entry.uri for entry in listed] == [package.entry.uri for package in packages]
    for entry in listed:
        content = (folder / entry.uri.removeprefix(BASE)).read_bytes()
        assert (entry.mime_type, entry.length) == ("application/zip", len(content))
        assert entry.sha256 == hashlib.sha256(content).hexdigest()
        manifest = entry.link("contents")["href"].removeprefix(BASE)
        assert (folder / manifest).is_file()


def test_a_resource_dump(tmp_path: Path):
    writer = DumpWriter(tmp_path, BASE, UP, max_resources=1)
    packages = writer.resource_packages(
        "dump",
        AT,
        [Resource(uri, lastmod=AT, links=(Link("via", BASE + "v"),)) for uri in CONTENTS],
        lambda resource: CONTENTS[resource.uri],
        now=lambda: END,
    )
    writer.write_resource_dump("resourcedump.xml", AT, END, [p.entry for p in packages])
    dump = ResourceDump()
    parse(dump, (tmp_path / "resourcedump.xml").read_bytes())
    assert dump.parsed_index is False
    assert dump.capability == "resourcedump"
    assert (dump.up, dump.md_at, dump.md_completed) == (
        UP,
        "2026-11-20T12:00:00.250000Z",
        mark(END),
    )
    check_packages(tmp_path, dump, packages)

    found = {}
    for package in packages:
        with zipfile.ZipFile(tmp_path / package.files[0]) as archive:
            manifest = ResourceDumpManifest()
            parse(manifest, archive.read("manifest.xml"))
            for entry in manifest.resources:
                found[entry.uri] = archive.read(entry.path.removeprefix("/"))
                assert entry.length == len(found[entry.uri])
                assert entry.sha256 == hashlib.sha256(found[entry.uri]).hexdigest()
                assert entry.link("via") == {"rel": "via", "href": BASE + "v"}
    assert found == CONTENTS


def test_a_change_dump(tmp_path: Path):
    writer = DumpWriter(tmp_path, BASE, UP)
    changes = [
        Resource(
            uri,
            change=kind,
            datetime=AT + timedelta(seconds=number),
            hash=f"sha-256:{hashlib.sha256(CONTENTS.get(uri, b'')).hexdigest()}",
        )
        for number, (uri, kind) in enumerate(
            [
                (BASE + "a.ttl", ChangeType.CREATED),
                (BASE + "b?x=1&y=2", ChangeType.UPDATED),
                (BASE + "a.ttl", ChangeType.UPDATED),
                (BASE + "c", ChangeType.DELETED),
            ],
            1,
        )
    ]
    packages = writer.change_packages("dump", AT, END, changes, lambda change: CONTENTS[change.uri])
    writer.write_change_dump("changedump.xml", AT, None, [p.entry for p in packages])
    dump = ChangeDump()
    parse(dump, (tmp_path / "changedump.xml").read_bytes())
    assert (dump.capability, dump.up, dump.md_from, dump.md_until) == (
        "changedump",
        UP,
        mark(AT),
        None,
    )
    check_packages(tmp_path, dump, packages)

    manifest = ChangeDumpManifest()
    parse(manifest, (tmp_path / packages[0].files[1]).read_bytes())
    assert (manifest.md_from, manifest.md_until) == (mark(AT), mark(END))
    assert [(entry.uri, entry.change) for entry in manifest.resources] == [
        (change.uri, change.change) for change in changes
    ]
    assert [entry.path is not None for entry in manifest.resources] == [True, True, True, False]


def mark(instant: datetime) -> str:
    return instant.isoformat(timespec="microseconds").replace("+00:00", "Z")
