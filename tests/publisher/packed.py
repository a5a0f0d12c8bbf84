"""Packages of a few resources, and what is read of them."""

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
    """Pack a set of resources, given by the last part of their URIs."""
    return writer(folder, **settings).resource_packages(
        STEM,
        AT,
        resources if resources is not None else [Resource(BASE + name) for name in contents],
        lambda resource: contents.get(resource.uri.removeprefix(BASE)),
        now=lambda: COMPLETED,
    )


def manifest(folder: Path, package: WrittenPackage) -> Document:
    """Read the manifest of a package, which is the same within it and beside it."""
    with zipfile.ZipFile(folder / package.files[0]) as zip:
        within = zip.read("manifest.xml")
    assert within == (folder / package.files[1]).read_bytes()
    return read_document(within)


def unpacked(folder: Path, packages: list[WrittenPackage]) -> dict[str, bytes]:
    """Read what packages hold by their manifests, each member of them once."""
    found: dict[str, bytes] = {}
    for package in packages:
        document = manifest(folder, package)
        assert len(document.resources) == package.count
        with zipfile.ZipFile(folder / package.files[0]) as zip:
            members = set(zip.namelist()) - {"manifest.xml"}
            for entry in document.resources:
                assert entry.path is not None
                content = zip.read(entry.path.removeprefix("/"))
                members.remove(entry.path.removeprefix("/"))
                assert entry.length == len(content)
                assert entry.hash == sha256(content)
                assert entry.uri not in found
                found[entry.uri] = content
        assert members == set(), "the manifest leaves members out"
    return found


def sha256(content: bytes) -> str:
    return f"sha-256:{hashlib.sha256(content).hexdigest()}"


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
