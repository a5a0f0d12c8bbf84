"""A first copy of many small resources: the processor time of both sides, for ours and `resync`.

The same `rsnotify source` serves both. `rsnotify follow --once` and `resync-sync --baseline` each
copy everything into an empty folder, in turns, and each in a process of its own.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import targets
from fanout import processor_seconds, running

from tests.ports import free_port

RESOURCES = 3_000
SIZE = 500
RUNS = 3
#: Milliseconds of a processor for each resource: at the Destination and at the Source.
TARGETS = (0.35, 0.25)

#: Destination, Source and elapsed, in milliseconds for each resource.
Costs = tuple[float, float, float]


def measure(command: list[str], folder: Path, source: int) -> Costs:
    """Run a Destination to its end."""
    began, before, served = time.perf_counter(), _children(), processor_seconds(source)
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    passed = time.perf_counter() - began
    copied = [path for path in (folder / "copy").rglob("*") if path.is_file()]
    if len(copied) < RESOURCES:
        raise AssertionError(f"{command[0]} copied {len(copied)} resources")
    took = (_children() - before, processor_seconds(source) - served, passed)
    destination, at_source, elapsed = (seconds / RESOURCES * 1000 for seconds in took)
    return destination, at_source, elapsed


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def compare(root: Path, stack: ExitStack) -> dict[str, list[Costs]]:
    """Return the costs of each run, by the name of the Destination."""
    files, port = root / "files", free_port()
    files.mkdir()
    for number in range(RESOURCES):
        (files / f"{number}.txt").write_bytes(f"{number} ".encode().ljust(SIZE, b"x"))
    url = f"http://127.0.0.1:{port}/"
    options = ["--base-url", url, "--port", str(port)]
    command = [sys.executable, "-m", "rsnotify", "source", str(files), *options]
    source = stack.enter_context(running(command, root))
    assert source.stdout is not None
    source.stdout.readline()
    ours = [sys.executable, "-m", "rsnotify", "follow", url, "copy", "--once"]
    theirs = [str(Path(sys.executable).with_name("resync-sync")), "--baseline", url, "copy"]
    found: dict[str, list[Costs]] = {"rsnotify follow": [], "resync-sync": []}
    for number in range(RUNS):
        for name, each in zip(found, (ours, theirs), strict=True):
            folder = root / f"{name} {number}"
            (folder / "copy").mkdir(parents=True)
            found[name].append(measure(each, folder, source.pid))
    return found


def main() -> None:
    """Measure and print."""
    print(f"a first copy of {RESOURCES:,} resources of {SIZE} bytes, ms for each")
    print(f"{'':24}{'Destination':>12}{'Source':>10}{'elapsed':>10}")
    with tempfile.TemporaryDirectory(prefix="rsnotify-bench-") as name, ExitStack() as stack:
        found = compare(Path(name), stack)
    for title, runs in found.items():
        destination, source, elapsed = map(median, zip(*runs, strict=True))
        print(f"{title:24}{destination:12.3f}{source:10.3f}{elapsed:10.3f}")
    for what, column, limit in zip(("Destination", "Source"), (0, 1), TARGETS, strict=True):
        figure = median(run[column] for run in found["rsnotify follow"])
        targets.compare(f"CPU for each resource of a first copy, {what}", figure, limit, "ms")


if __name__ == "__main__":
    main()
