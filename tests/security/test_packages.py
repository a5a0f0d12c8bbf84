"""Packages of dumps: content is taken from a package only if nothing about it is wrong."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from rsnotify.errors import ContentMismatch, DocumentError, RsnotifyError
from rsnotify.format.model import Capability, Document, Resource
from rsnotify.format.writer import write_document
from rsnotify_subscriber import audit
from rsnotify_subscriber.content.packages import ZipPackage
from rsnotify_validation.target_validation import validate_target
from tests.security.corpus import vectors
from tests.security.zip_recipes import PackageVector
from tests.subscriber.destination import Destination
from tests.subscriber.packed_source import PackedSource
from tests.subscriber.source import body, sha256

GOOD = b"good content"
VECTORS = vectors("packages", PackageVector)
each = pytest.mark.parametrize("vector", VECTORS, ids=[vector.why for vector in VECTORS])
#: What a package may take of memory, whatever it claims.
MOST_MEMORY = 3_000_000


@pytest.fixture
async def source() -> AsyncIterator[PackedSource]:
    source = PackedSource()
    await source.server.start()
    source.put("a", GOOD, type="text/plain")
    yield source
    await source.server.stop()


def manifest(vector: PackageVector, document: Document) -> bytes:
    entries = tuple(replace(entry, path=vector.path) for entry in document.resources)
    return write_document(replace(document, resources=entries))


def serve(source: PackedSource, vector: PackageVector, name: str) -> None:
    """Replace a package, and what its dump says of it."""
    data = vector.made(manifest(vector, source.documents[name + ".xml"]))
    source.answers["/data/" + name] = body(data)
    del source.documents[name + ".xml"]
    for dump in ("resourcedump.xml", "changedump.xml"):
        if dump in source.documents:
            old = source.documents[dump]
            packages = tuple(
                replace(entry, hash=sha256(data), length=len(data)) for entry in old.resources
            )
            source.documents[dump] = replace(old, resources=packages)


def test_every_package_is_read_within_bounds(tmp_path: Path):
    entry = Resource("http://source.example/a", hash=sha256(GOOD), length=len(GOOD))
    document = Document(Capability.RESOURCE_DUMP_MANIFEST, (entry,))
    path = tmp_path / "package"
    wrong = {}
    for vector in VECTORS:
        path.write_bytes(vector.made(manifest(vector, document)))
        tracemalloc.start()
        outcome = read(path, vector.path)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        if outcome != vector.outcome or peak > MOST_MEMORY:
            wrong[vector.why] = outcome, peak
        assert [found.name for found in tmp_path.iterdir()] in ([], ["package"])
    assert not wrong


def read(path: Path, member: str) -> str:
    try:
        package = ZipPackage(path, "http://source.example/a.zip")
    except DocumentError:
        return "package"
    try:
        package.manifest()
    except (DocumentError, ContentMismatch):
        package.close()
        return "package"
    small = package.small(member)
    try:
        content = b"".join(package.pieces(member))
    except ContentMismatch:
        assert small is None
        return "member"
    finally:
        package.close()
    assert small == content or (small is None and content != GOOD)
    return "used" if content == GOOD else "member"  # the hash of its entry shows it


@each
async def test_a_first_copy_is_right_and_its_audit_says_so(
    vector: PackageVector, source: PackedSource, destination: Destination
):
    source.offered = (Capability.RESOURCE_DUMP, Capability.RESOURCE_LIST)
    source.pack_resources()
    serve(source, vector, "resources-0.zip")
    await destination.catch_up()
    assert destination.files() == {"a": GOOD}
    assert source.gets["/data/a"] == (vector.outcome != "used")
    source.offered = (Capability.RESOURCE_DUMP,)
    try:
        found = await audit(source.url, destination.folder, pause=0)
    except RsnotifyError:
        assert vector.outcome == "package"
    else:
        assert found.in_step is True


@each
async def test_what_changed_is_right(
    vector: PackageVector, source: PackedSource, destination: Destination
):
    source.offered = (Capability.RESOURCE_LIST, Capability.CHANGE_DUMP)
    source.put("a", b"old content")
    source.pack_changes()
    await destination.catch_up()
    source.put("a", GOOD)
    source.packages.clear()
    source.pack_changes()
    serve(source, vector, "changes-0.zip")
    source.gets.clear()
    await destination.catch_up()
    assert destination.files() == {"a": GOOD}
    assert bool(source.gets["/data/a"]) == (vector.outcome != "used")


async def test_every_wrong_package_is_reported(source: PackedSource, tmp_path: Path):
    source.pack_resources()
    described = source.documents["resources-0.zip.xml"]
    wrong = {}
    for vector in VECTORS:
        data = vector.made(manifest(vector, described))
        source.answers["/data/resources-0.zip"] = body(data)
        (tmp_path / "package.zip").write_bytes(data)
        for target in (source.base + "resources-0.zip", str(tmp_path / "package.zip")):
            result = await validate_target(target)
            found = {finding.rule for one in result.documents for finding in one.findings}
            is_reported = bool(found - {"package-not-described"})
            if is_reported != (vector.reported or vector.outcome != "used"):
                wrong[vector.why] = found
    assert not wrong
