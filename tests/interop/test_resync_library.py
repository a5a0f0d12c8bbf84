"""The library of PyPI's `resync` reads every kind of document that our Source writes."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

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

from rsnotify.format.datetimes import format_datetime
from rsnotify.format.model import Capability, Resource
from rsnotify.format.reader import read_document
from tests.publisher.helpers import SourceProcess, eventually, put

#: Seconds; only what hangs takes them.
PATIENCE = 120
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
    description = f"{url}.well-known/resourcesync"
    command = [sys.executable, "-m", "rsnotify", "validate", "--deep", description]
    return subprocess.run(command, capture_output=True, timeout=PATIENCE).returncode == 0


def documents(url: str) -> dict[str, str]:
    """Return a URI for each kind of document that there is, as `rsnotify inspect` finds them."""
    command = [sys.executable, "-m", "rsnotify", "inspect", url, "--json"]
    # Of a Source that goes on, some may be gone before it is looked at.
    done = subprocess.run(command, capture_output=True, timeout=PATIENCE)

    def walk(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
        if found.get("entries"):
            yield found["capability"], found["uri"]
        for part in found.get("parts", []):
            yield from walk(part)

    return dict(walk(json.loads(done.stdout)))


def entry(one: Resource) -> tuple[object, ...]:
    change = None if one.change is None else str(one.change)
    links = tuple((link.rel, link.href) for link in one.links)
    return (one.uri, one.length, one.type, one.hash, one.path, change, *links)


def is_read(capability: str, uri: str) -> bool:
    """Hold what they read against what we read; tell if there was something to read."""
    try:
        with urllib.request.urlopen(uri, timeout=PATIENCE) as answer:
            body = answer.read()
    except HTTPError as error:  # it was taken away meanwhile
        error.close()
        return False
    theirs = READERS[capability]()
    theirs.parse(fh=BytesIO(body))
    ours = read_document(body)
    assert theirs.capability == capability
    entries = [
        (
            *(one.uri, one.length, one.mime_type, one.hash, one.path, one.change),
            *((link["rel"], link["href"]) for link in one.ln or ()),
        )
        for one in theirs
    ]
    assert sorted(entries, key=str) == sorted(map(entry, ours.resources), key=str)
    for name, instant in (("at", ours.at), ("from", ours.from_), ("until", ours.until)):
        assert theirs.md.get(f"md_{name}") == (format_datetime(instant) if instant else None)
    return True


@pytest.mark.parametrize("options", [(), ("--profile", "1.0", "--gzip")])
def test_it_reads_what_we_write(
    folder: Path, source: Callable[..., SourceProcess], options: tuple[str, ...]
):
    process = source(
        *("--rotate", "2 changes", "--keep", "30 lists", *options),
        *("--resource-list-every", "0.2", "--resource-list-archive"),
        *("--resource-dump-every", "0.2", "--resource-dump-archive"),
        *("--change-dump", "--change-dump-archive"),
    )
    numbers = count()

    def is_packed_away() -> bool:
        """Change something; tell if there are so many packages that some are in the archive."""
        name = f"{next(numbers)}.ttl"
        put(folder / name, f"<a> <b> <{name}> .")
        process.wait_for_change("created", name)
        return bool(read_document(process.get("changedump-archive.xml")).resources)

    eventually(is_packed_away)
    unread = set(READERS)

    def read_the_rest() -> bool:
        found = documents(process.url)
        unread.difference_update([one for one in unread & found.keys() if is_read(one, found[one])])
        return not unread

    eventually(read_the_rest)
    eventually(lambda: is_valid(process.url))
