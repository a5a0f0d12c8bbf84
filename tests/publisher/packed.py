"""Writes packages of a few resources, and reads them."""

from __future__ import annotations

import hashlib
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rsnotify.format.model import Document, Resource
from rsnotify.format.reader import read_document
from rsnotify_publisher.documents.dump_packages import DumpWriter, WrittenPackage

BASE = "http://source.example/data/"
UP = BASE + "capabilitylist.xml"
AT = datetime(2026, 11, 20, 12, 0, 1, tzinfo=UTC)
COMPLETED = AT + timedelta(minutes=5)
STEM = "resourcesync/resourcedump-1"


def writer(folder: Path, **settings: Any) -> DumpWriter:
    return DumpWriter(folder, BASE, UP, **settings)


def pack(
    folder: Path,
    contents: dict[str, Any],
    *,
    resources: list[Resource] | None = None,
    **settings: Any,
) -> list[WrittenPackage]:
    """Pack a set of resources. `contents` is keyed by the last part of their URIs."""
    return writer(folder, **settings).resource_packages(
        STEM,
        AT,
        resources if resources is not None else [Resource(BASE + name) for name in contents],
        lambda resource: contents.get(resource.uri.removeprefix(BASE)),
        now=lambda: COMPLETED,
    )


def manifest(folder: Path, package: WrittenPackage) -> Document:
    """Read the manifest of a package, and check that its copy beside the package is the same."""
    with zipfile.ZipFile(folder / package.files[0]) as zip:
        within = zip.read("manifest.xml")
    assert within == (folder / package.files[1]).read_bytes()
    return read_document(within)


def bitstreams(folder: Path, package: WrittenPackage) -> list[tuple[Resource, bytes | None]]:
    """Return the entries of a package's manifest with their bitstreams, after checking both."""
    found = []
    document = manifest(folder, package)
    assert len(document.resources) == package.count
    with zipfile.ZipFile(folder / package.files[0]) as zip:
        for entry in document.resources:
            content = None
            if entry.path is not None:
                content = zip.read(entry.path.removeprefix("/"))
                assert (entry.hash, entry.length) == (sha256(content), len(content))
            found.append((entry, content))
    return found


def unpacked(folder: Path, packages: list[WrittenPackage]) -> dict[str, bytes | None]:
    """Return the contents in the packages of a Resource Dump, keyed by URI."""
    found: dict[str, bytes | None] = {}
    for package in packages:
        with zipfile.ZipFile(folder / package.files[0]) as zip:
            members = set(zip.namelist())
        for entry, content in bitstreams(folder, package):
            assert entry.uri not in found
            members.remove((entry.path or "").removeprefix("/"))
            found[entry.uri] = content
        assert members == {"manifest.xml"}, "the manifest omits members"
    return found


def sha256(content: bytes) -> str:
    return f"sha-256:{hashlib.sha256(content).hexdigest()}"


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
