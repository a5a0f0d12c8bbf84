"""The cost of publishing hundreds of sets in one process: `make publishing`.

A hub and a Source with many small folders are separate processes; this process follows some of
the sets. It prints the threads, open files and memory of the Source during its start, when it is
ready, at rest, and after a file was changed in each of the followed sets, one by one.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median

import aiohttp

from rsnotify.runtime.processes import Process
from rsnotify_subscriber import FollowOptions, Received, Subscriber
from tests.ports import free_port

SETS = 300
FILES = 5
FOLLOWED = 10
ROUNDS = 5
#: Seconds for which nothing happens.
REST = 30
#: Seconds that anything here may take.
PATIENCE = 600
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = os.sysconf("SC_CLK_TCK")


class Counted:
    """Counts the threads, open files and memory of a process."""

    def __init__(self, process: Process) -> None:
        self._folder = Path(f"/proc/{process.pid}")
        self._began = time.monotonic()

    def show(self, when: str) -> None:
        """Print it, and how long the process has been running."""
        threads = len(os.listdir(self._folder / "task"))
        files = len(os.listdir(self._folder / "fd"))
        memory = int((self._folder / "statm").read_text().split()[1]) * _PAGE / 1e6
        print(
            f"  {when:26} {time.monotonic() - self._began:6.1f} s {threads:5} threads "
            f"{files:6} files {memory:7.1f} MB {self.cpu():6.1f} s of CPU",
            flush=True,
        )

    def cpu(self) -> float:
        """Return how many seconds it has computed."""
        fields = (self._folder / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICK


class Copy:
    """Follows one set, without storing its content."""

    def __init__(self, url: str, folder: Path) -> None:
        self._came = asyncio.Event()
        self._at = 0.0
        self.subscriber = Subscriber(
            url, self._take, state=folder, options=FollowOptions(allow_private_addresses=True)
        )

    async def _take(self, change: Received) -> None:
        self._at = time.monotonic()
        self._came.set()

    async def after(self, file: Path) -> float:
        """Change a file, and return the milliseconds until the change arrives."""
        self._came.clear()
        began = time.monotonic()
        await asyncio.to_thread(file.write_text, f"changed at {began}")
        await self._came.wait()
        return (self._at - began) * 1000


def write_sets(folder: Path, count: int) -> Path:
    """Make the folders and the configuration."""
    lines = []
    for number in range(count):
        (folder / f"s{number}").mkdir(parents=True)
        for file in range(FILES):
            (folder / f"s{number}" / f"r{file}.txt").write_text(f"{file} of {number}\n")
        lines += ["[[set]]", f'name = "s{number}"', f'folder = "{folder}/s{number}"']
    config = folder / "source.toml"
    config.write_text("\n".join(lines) + "\n")
    return config


async def answered(url: str, counted: Counted, when: str) -> None:
    """Send requests until there is an answer."""
    async with aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(url) as answer:
                    if answer.status == 200:
                        return counted.show(when)
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.05)


async def all_serving(source: Process, count: int) -> None:
    """Wait for the line of every set."""
    lines = source.lines()
    for _ in range(count):
        await anext(lines)


@asynccontextmanager
async def started(name: str, *options: str, folder: Path) -> AsyncIterator[Process]:
    """Run a process, within the context."""
    process = await Process.start(name, *options, log=folder / f"{name}.log")
    try:
        yield process
    finally:
        began = time.monotonic()
        await process.stop()
        print(f"  {name} ended within {time.monotonic() - began:.1f} s")


async def change(folder: Path, url: str, count: int) -> None:
    """Change files of sets that are followed, one after the other."""
    numbers = [round(n * (count - 1) / (FOLLOWED - 1)) for n in range(FOLLOWED)]
    sets = list(dict.fromkeys(f"s{number}" for number in numbers))
    async with AsyncExitStack() as stack:
        copies = [Copy(f"{url}{one}/capabilitylist.xml", folder / "copies" / one) for one in sets]
        for copy in copies:
            await stack.enter_async_context(copy.subscriber)
            await copy.subscriber.until(lambda status: status.level and status.push == "up")
        lags = [
            await copy.after(folder / one / "r0.txt")
            for _ in range(ROUNDS)
            for one, copy in zip(sets, copies, strict=True)
        ]
    print(f"  a change reached its copy after {median(lags):.0f} ms, at most {max(lags):.0f} ms")


async def publish(folder: Path, hub: str, count: int) -> None:
    """Publish the sets, and count."""
    config = write_sets(folder, count)
    port = free_port()
    url = f"http://127.0.0.1:{port}/"
    options = ("--config", str(config), "--port", str(port), "--data", str(folder / "state"))
    for when in ("the first time", "again"):
        print(f" {when}")
        async with started("source", *options, "--hub", hub, folder=folder) as source:
            counted = Counted(source)
            ready = asyncio.create_task(all_serving(source, count))
            await answered(url + ".well-known/resourcesync", counted, "described")
            await answered(f"{url}s{count - 1}/capabilitylist.xml", counted, "the last set")
            await ready
            counted.show("all ready")
            before = counted.cpu()
            await asyncio.sleep(REST)
            counted.show("at rest for a while")
            print(f"  at rest {(counted.cpu() - before) / REST:.0%} of a processor")
            await change(folder, url, count)
            counted.show("after the changes")


async def run(count: int) -> None:
    """Start the hub, and publish."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        port = free_port()
        options = ("--port", str(port), "--data", str(folder / "hub"))
        async with asyncio.timeout(PATIENCE), started("hub", *options, folder=folder) as hub:
            await hub.url()
            print(f"{count} sets of {FILES} files, published by one process")
            await publish(folder, f"http://127.0.0.1:{port}/", count)


def main() -> None:
    """Run it, with so many sets as the command line says."""
    asyncio.run(run(int(sys.argv[1]) if len(sys.argv) > 1 else SETS))


if __name__ == "__main__":
    main()
