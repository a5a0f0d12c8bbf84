"""The library of PyPI's `resync` reads every kind of document that our Source writes."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from resync.archives import (
    ChangeDumpArchive,
    ChangeListArchive,
    ResourceDumpArchive,
    ResourceListArchive,
)
from resync.capability_list import CapabilityList
from resync.change_dump import ChangeDump
from resync.change_dump_manifest import ChangeDumpManifest
from resync.change_list import ChangeList
from resync.list_base import ListBase
from resync.resource_dump import ResourceDump
from resync.resource_dump_manifest import ResourceDumpManifest
from resync.resource_list import ResourceList
from resync.source_description import SourceDescription

from rsnotify.datetimes import format_datetime
from rsnotify.reading import read_document
from rsnotify.vocabulary import Capability
from tests.publisher.helpers import SourceProcess, eventually

READERS: dict[str, type[ListBase]] = {
    Capability.DESCRIPTION: SourceDescription,
    Capability.CAPABILITY_LIST: CapabilityList,
    Capability.RESOURCE_LIST: ResourceList,
    Capability.CHANGE_LIST: ChangeList,
    Capability.RESOURCE_DUMP: ResourceDump,
    Capability.RESOURCE_DUMP_MANIFEST: ResourceDumpManifest,
    Capability.CHANGE_DUMP: ChangeDump,
    Capability.CHANGE_DUMP_MANIFEST: ChangeDumpManifest,
    Capability.RESOURCE_LIST_ARCHIVE: ResourceListArchive,
    Capability.RESOURCE_DUMP_ARCHIVE: ResourceDumpArchive,
    Capability.CHANGE_LIST_ARCHIVE: ChangeListArchive,
    Capability.CHANGE_DUMP_ARCHIVE: ChangeDumpArchive,
}


def is_valid(url: str) -> bool:
    """Tell what `rsnotify validate` says of all documents."""
    description = f"{url}.well-known/resourcesync"
    command = [sys.executable, "-m", "rsnotify", "validate", "--deep", description]
    return subprocess.run(command, capture_output=True, timeout=60).returncode == 0


def documents(url: str) -> dict[str, str]:
    """Return a URI for each kind of document that there is, as `rsnotify inspect` finds them."""
    command = [sys.executable, "-m", "rsnotify", "inspect", url, "--json"]
    done = subprocess.run(command, capture_output=True, check=True, timeout=60)

    def walk(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
        assert "problem" not in found, found
        if found.get("entries"):
            yield found["capability"], found["uri"]
        for part in found.get("parts", []):
            yield from walk(part)

    return dict(walk(json.loads(done.stdout)))


@pytest.mark.parametrize("options", [(), ("--profile", "1.0", "--gzip")])
def test_it_reads_what_we_write(
    folder: Path, source: Callable[..., SourceProcess], options: tuple[str, ...]
) -> None:
    process = source(
        *("--rotate", "2 changes", "--keep", "2 lists", *options),
        *("--resource-list-every", "0.2", "--resource-list-archive"),
        *("--resource-dump-every", "0.2", "--resource-dump-archive"),
        *("--change-dump", "--change-dump-archive"),
    )
    # More than enough for an archive of packages: ten closed lists stay in the Change Dump.
    for number in range(30):
        (folder / f"{number}.ttl").write_text(f"<a> <b> {number} .")
    eventually(lambda: READERS.keys() <= documents(process.url).keys())
    for capability, uri in documents(process.url).items():
        with urllib.request.urlopen(uri) as answer:
            ours = read_document(answer.read())
        theirs = READERS[capability]()
        theirs.read(uri=uri)
        assert theirs.capability == capability
        assert sorted(one.uri for one in theirs) == sorted(one.uri for one in ours.resources)
        for name, instant in (("at", ours.at), ("from", ours.from_), ("until", ours.until)):
            assert theirs.md.get(f"md_{name}") == (format_datetime(instant) if instant else None)
    assert is_valid(process.url)
