"""A first copy of many small resources, and catching up, for ours and `resync`.

The same `rsnotify source` serves both. `rsnotify follow --once` and `resync-sync` each copy
everything into an empty folder and then, after every resource has changed, catch up; in turns, and
each in a process of its own. Another Source offers a Resource Dump, which `resync-sync` cannot use.

    python first_copy.py 50000

The costs are for each resource, and those of starting a process are among them. The design has
50,000 resources; without an argument there are fewer, so that it takes some minutes.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from urllib.error import URLError

import targets
from fanout import processor_seconds, running

from tests.ports import free_port

RESOURCES = 10_000
SIZE = 500
RUNS = 2
#: Milliseconds of a processor for each resource: at the Destination and at the Source.
TARGETS = (0.35, 0.25)
#: By work and measure: what there is one of, the column of its costs, and how much of those of
#: `resync-sync` they may be.
RATIOS = {
    ("first copy", "CPU"): ("resources", 0, 0.5),
    ("first copy", "elapsed"): ("resources", 2, 1.0),
    ("catching up", "CPU"): ("changes", 0, 1.0),
    ("catching up", "elapsed"): ("changes", 2, 0.4),
}
#: Seconds until a Source has all files in its documents.
PATIENCE = 600

#: Destination, Source and elapsed, in milliseconds for each resource.
Costs = tuple[float, float, float]

OURS, THEIRS, DUMP, FILES = "rsnotify follow", "resync-sync", "from a dump", "the files alone"


class MeasuredSource:
    """A Source of files, and the Destinations that copy it."""

    def __init__(self, files: Path, stack: ExitStack, *options: str) -> None:
        self._files = files
        self._root = files.parent
        self._runs = 0
        port = free_port()
        self.url = f"http://127.0.0.1:{port}/"
        common = ["--base-url", self.url, "--port", str(port), *options]
        command = [sys.executable, "-m", "rsnotify", "source", str(files), *common]
        self._process = stack.enter_context(running(command, self._root))
        self.wait_for("resourcelist.xml")

    def wait_for(self, document: str, entries: int = 1) -> None:
        """Wait until a document has so many entries."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                with urllib.request.urlopen(self.url + document, timeout=PATIENCE) as answer:
                    if answer.read().count(b"<url>") >= entries:
                        return
            except URLError:
                pass  # it does not listen yet, or has not written the document
            time.sleep(1)
        raise AssertionError(f"{document} has fewer than {entries} entries")

    def measure(self, command: list[str], folder: Path) -> Costs:
        """Run a Destination to its end; its copy must be that of the files."""
        pid = self._process.pid
        began, before, served = time.perf_counter(), _children(), processor_seconds(pid)
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        passed = time.perf_counter() - began
        took = (_children() - before, processor_seconds(pid) - served, passed)
        names = os.listdir(self._files)
        for name in names:
            if (folder / "copy" / name).read_bytes() != (self._files / name).read_bytes():
                raise AssertionError(f"{command[0]} has another {name}")
        destination, source, elapsed = (seconds / len(names) * 1000 for seconds in took)
        return destination, source, elapsed

    def folder(self) -> Path:
        self._runs += 1
        folder = self._root / f"{self.url.rpartition(':')[2].strip('/')} {self._runs}"
        (folder / "copy").mkdir(parents=True)
        return folder


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def write_files(folder: Path, count: int, version: int) -> None:
    for number in range(count):
        content = f"{number} {version} ".encode().ljust(SIZE, b"x")
        (folder / f"{number}.txt").write_bytes(content)


def _follow(url: str) -> list[str]:
    return [sys.executable, "-m", "rsnotify", "follow", url, "copy", "--once"]


def _resync(mode: str) -> Callable[[str], list[str]]:
    program = str(Path(sys.executable).with_name("resync-sync"))
    return lambda url: [program, mode, url, "copy"]


def copy_alone(files: Path, folder: Path) -> Costs:
    """Return what the disk costs: files that are written, put in their places and flushed."""
    contents = {path.name: path.read_bytes() for path in files.iterdir()}
    began, before = time.perf_counter(), time.process_time()
    (folder / "new").mkdir()
    for name, content in contents.items():
        descriptor = os.open(folder / "new" / name, os.O_WRONLY | os.O_CREAT)
        os.write(descriptor, content)
        os.close(descriptor)
        os.replace(folder / "new" / name, folder / "copy" / name)
    for name in contents:
        descriptor = os.open(folder / "copy" / name, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    each = 1000 / len(contents)
    return (time.process_time() - before) * each, 0, (time.perf_counter() - began) * each


def compare(files: Path, stack: ExitStack, count: int) -> dict[str, dict[str, list[Costs]]]:
    """Return the costs of each run, by what was done and the name of the Destination."""
    write_files(files, count, 0)
    dumping = MeasuredSource(
        files, stack, "--resource-dump-every", "86400", "--data", str(files.parent / "data")
    )
    dumping.wait_for("resourcedump.xml")
    first: dict[str, list[Costs]] = {OURS: [], THEIRS: [], DUMP: [], FILES: []}
    for _ in range(RUNS):
        first[DUMP].append(dumping.measure(_follow(dumping.url), dumping.folder()))
        first[FILES].append(copy_alone(files, dumping.folder()))
    stack.close()  # it would read the changed files too
    # `resync-sync` reads the open list only.
    source = MeasuredSource(files, stack, "--rotate", f"{2 * count} changes")
    later: dict[str, list[Costs]] = {OURS: [], THEIRS: []}
    folders = []
    for _ in range(RUNS):
        for name, each in ((OURS, _follow), (THEIRS, _resync("--baseline"))):
            folders.append((name, source.folder()))
            first[name].append(source.measure(each(source.url), folders[-1][1]))
    write_files(files, count, 1)
    source.wait_for("changelist.xml", count)
    for name, folder in folders:
        command = _follow if name == OURS else _resync("--incremental")
        later[name].append(source.measure(command(source.url), folder))
    return {"first copy": first, "catching up": later}


def main(count: int = RESOURCES) -> None:
    """Measure and print."""
    print(f"{count:,} resources of {SIZE} bytes, ms for each (the design has 50,000)")
    print(f"{'':36}{'Destination':>12}{'Source':>10}{'elapsed':>10}")
    with tempfile.TemporaryDirectory(prefix="rsnotify-bench-") as name, ExitStack() as stack:
        files = Path(name, "files")
        files.mkdir()
        found = compare(files, stack, count)
    costs: dict[tuple[str, str], Costs] = {}
    for work, by_name in found.items():
        for name, runs in by_name.items():
            destination, source, elapsed = map(median, zip(*runs, strict=True))
            costs[work, name] = (destination, source, elapsed)
            print(f"{work + ', ' + name:36}{destination:12.3f}{source:10.3f}{elapsed:10.3f}")
    ours = costs["first copy", OURS]
    for what, column, limit in zip(("Destination", "Source"), (0, 1), TARGETS, strict=True):
        targets.compare(f"CPU for each resource of a first copy, {what}", ours[column], limit, "ms")
    by_dump = costs["first copy", DUMP][0] / ours[0]
    targets.compare("the same from a Resource Dump, of a single GET", by_dump, 0.4)
    for (work, what), (title, column, limit) in RATIOS.items():
        ratio = costs[work, OURS][column] / costs[work, THEIRS][column]
        targets.compare(f"{count:,} {title}, {work}, {what}, of resync-sync", ratio, limit)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
    targets.show()
