"""A large set that has not changed: an audit, a comparison with the whole set, and a start.

A Source lists all resources with their hashes, in parts of 50,000, and its Destination has them
all, with their state.

- Audit: `rsnotify audit` reads every file.
- Comparison: `rsnotify follow --once --compare 0` compares the state with the lists, and the files
  with the state by their sizes and times.
- Start: `rsnotify follow --once` does only the latter, and reads the Change List.

`resync-sync` does the same with up to 50,000 resources: its audit with hashes, and its baseline,
which compares sizes and times.

    python large_sets.py 1000000

The files have a few bytes, since the content of large ones would only measure the disk.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from urllib.error import URLError

import targets
from backlog import SAMPLE, megabytes_of
from fanout import running

from rsnotify.format.model import Capability, Document, Link, Resource
from rsnotify.format.writer import write_document
from rsnotify_subscriber.storage.destination_state import DestinationState
from rsnotify_subscriber.storage.resource_state import ResourceState
from tests.ports import free_port

RESOURCES = 50_000
#: The most resources with which `resync-sync` is compared, and in a part of a list.
THEIRS, PART = 50_000, 50_000
PER_FOLDER = 1_000
#: Tenths of a second until the server has to answer.
PATIENCE = 300
#: The CPU of each, of that of `resync-sync`, and megabytes.
RATIOS = {"audit": 0.75, "comparison": 0.5}
MEMORY = 150
_AT = datetime(2026, 1, 1, tzinfo=UTC)


class ListedSource:
    """A Source of static documents, and a Destination that has all of its resources."""

    def __init__(self, folder: Path, count: int, stack: ExitStack) -> None:
        self.folder = folder
        self._documents = folder / "documents"
        (self._documents / ".well-known").mkdir(parents=True)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}/"
        serve = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)]
        stack.enter_context(running([*serve, "--directory", str(self._documents)], folder))
        self._describe()
        wait_for(self.url)
        self._list([])
        run(self.command("follow", "--once"), folder)  # so that the state has an identity
        self._copy(count)

    def command(self, name: str, *options: str) -> list[str]:
        return [sys.executable, "-m", "rsnotify", name, self.url, "copy", "--quiet", *options]

    def _describe(self) -> None:
        description, capabilities = self.url + "description.xml", self.url + "capabilitylist.xml"
        self._write(
            ".well-known/resourcesync",
            Document(
                Capability.DESCRIPTION,
                (Resource(capabilities, capability=Capability.CAPABILITY_LIST),),
            ),
        )
        lists = (Capability.RESOURCE_LIST, Capability.CHANGE_LIST)
        listed = tuple(Resource(f"{self.url}{kind}.xml", capability=kind) for kind in lists)
        self._write(
            "capabilitylist.xml",
            Document(Capability.CAPABILITY_LIST, listed, links=(Link("up", description),)),
        )
        self._write("changelist.xml", Document(Capability.CHANGE_LIST, from_=_AT))

    def _write(self, name: str, document: Document) -> None:
        (self._documents / name).write_bytes(write_document(document))

    def _list(self, parts: list[str]) -> None:
        members = tuple(Resource(self.url + name, at=_AT) for name in parts)
        is_index = bool(parts)
        document = Document(Capability.RESOURCE_LIST, members, index=is_index, at=_AT)
        self._write("resourcelist.xml", document)

    def _copy(self, count: int) -> None:
        """Write the lists, and all files with their state."""
        state = DestinationState(self.folder / "copy.rsnotify")
        entries, parts = self._entries(count), []
        while part := list(islice(entries, PART)):
            parts.append(f"resourcelist-{len(parts):04}.xml")
            self._write(parts[-1], Document(Capability.RESOURCE_LIST, tuple(part), at=_AT))
            state.commit([self._written(one) for one in part], None)
        state.close()
        self._list(parts)

    def _entries(self, count: int) -> Iterator[Resource]:
        for number in range(count):
            uri = f"{self.url}{number // PER_FOLDER}/{number % PER_FOLDER}.txt"
            yield Resource.of(uri, _content(uri), lastmod=_AT)

    def _written(self, entry: Resource) -> ResourceState:
        path = self.folder / "copy" / entry.uri.removeprefix(self.url)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(_content(entry.uri))
        seconds = int(_AT.timestamp())
        os.utime(path, (seconds, seconds))
        at = seconds * 1_000_000
        return ResourceState(
            entry.uri, at, "updated", entry.hash, entry.length, at, mtime=seconds * 1_000_000_000
        )


def _content(uri: str) -> bytes:
    return f"the content of {uri}\n".encode()


def wait_for(url: str) -> None:
    """Wait until a server answers."""
    for _ in range(PATIENCE):
        try:
            urllib.request.urlopen(url + "capabilitylist.xml").close()
        except URLError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError(f"{url} does not answer")


def run(command: list[str], folder: Path) -> tuple[float, float]:
    """Return the seconds of CPU and the megabytes that a process took."""
    ended, megabytes = 0, 0.0
    with open(os.devnull, "wb") as nothing:
        process = subprocess.Popen(command, cwd=folder, stdout=nothing, stderr=nothing)
        while not ended:
            megabytes = megabytes_of(process.pid) or megabytes
            time.sleep(SAMPLE)
            ended, status, used = os.wait4(process.pid, os.WNOHANG)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise AssertionError(f"{command} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime, megabytes


def measure(count: int, work: dict[str, tuple[str, ...]]) -> dict[str, tuple[float, float]]:
    """Return what each command takes for a set, by the name of the program and of the work."""
    found = {}
    program = str(Path(sys.executable).with_name("resync-sync"))
    theirs = {"audit": ("--audit", "--hash", "sha-256"), "comparison": ("--baseline",)}
    with tempfile.TemporaryDirectory(prefix="rsnotify-bench-") as name, ExitStack() as stack:
        source = ListedSource(Path(name), count, stack)
        for what, options in work.items():
            found["rsnotify " + what] = run(source.command(*options), source.folder)
            if count <= THEIRS and what in theirs:
                mode = theirs[what]
                sitemap = ("--sitemap", source.url + "resourcelist.xml")
                command = [program, *mode, *sitemap, source.url, "copy"]
                found["resync-sync " + what] = run(command, source.folder)
    for name, (seconds, megabytes) in found.items():
        print(f"{count:10,}  {name:24}{seconds:10.2f}{megabytes:10.0f}")
    return found


def main(count: int = RESOURCES) -> None:
    """Measure and print."""
    follow = ("follow", "--once")
    work = {"audit": ("audit",), "comparison": (*follow, "--compare", "0"), "start": follow}
    print(f"{'':10}  {'unchanged resources':24}{'s of CPU':>10}{'MB':>10}")
    small = measure(min(count, THEIRS), work)
    large = small if count <= THEIRS else measure(count, work)
    for what in work:
        if (theirs := small.get("resync-sync " + what)) is not None:
            ratio = small["rsnotify " + what][0] / theirs[0]
            text = f"{what} of an unchanged set, CPU, of resync-sync"
            targets.compare(text, ratio, RATIOS[what])
        megabytes = large["rsnotify " + what][1]
        targets.compare(f"{what} of {count:,} unchanged resources", megabytes, MEMORY, "MB")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
    targets.show()
