"""The cost of following hundreds of Sources in one process: `make fleet`.

A hub and many small Sources (`small_sources.py`) are separate processes; this process follows all
Sources, by push. It prints its tasks, threads, open files, sockets and memory before, while
following, after a change in each Source, and after the end.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
from small_sources import RESOURCES

from rsnotify.runtime.processes import Process, allow_files
from rsnotify_subscriber import Fleet, FolderMirror, Subscriber
from rsnotify_subscriber.fleet import FollowedSourceStatus, totals
from tests.ports import free_port

SOURCES = 300
#: Seconds for which nothing happens.
REST = 40.0
#: Seconds that anything here may take.
PATIENCE = 600
_PAGE = os.sysconf("SC_PAGE_SIZE")


def counted() -> str:
    """Return the tasks, threads, open files, sockets and memory of this process."""
    files = [_target(name) for name in os.listdir("/proc/self/fd")]
    sockets = sum(one.startswith("socket:") for one in files)
    memory = int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE / 1e6
    seconds = sum(os.times()[:2])
    tasks, threads = _tasks(), threading.active_count()
    return (
        f"{tasks:6} tasks {threads:4} threads {len(files):6} files, {sockets:5} of them sockets "
        f"{memory:7.1f} MB {seconds:6.1f} s of CPU"
    )


def _tasks() -> int:
    """Return the number of tasks of this thread's event loop, if it has one."""
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return 0


def _target(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except FileNotFoundError:
        return ""


async def measure(name: str, what: Callable[[], Awaitable[object]]) -> None:
    """Do something, and print its duration and the resources in use afterwards."""
    began = time.monotonic()
    async with asyncio.timeout(PATIENCE):
        await what()
    print(f"  {name:18} {time.monotonic() - began:6.1f} s {counted()}", flush=True)


def all_pushed(sources: Mapping[str, FollowedSourceStatus]) -> bool:
    sums = totals(sources)
    return sums.level == sums.pushed == sums.sources


async def follow(folder: Path, url: str, count: int, rest: float) -> float:
    """Follow all, change each, and print; return the processor seconds until all are changed."""
    began = time.process_time()
    fleet = Fleet()
    for number in range(count):
        mirror = FolderMirror(folder / "copies" / str(number))
        state = folder / "states" / str(number)
        source = f"{url}{number}/capabilitylist.xml"
        fleet.add(str(number), Subscriber(source, mirror, state=state, shared=fleet.shared))
    applied = count * (RESOURCES + 1)

    async def change() -> None:
        async with aiohttp.ClientSession() as session, session.post(url + "change") as answer:
            answer.raise_for_status()
        await fleet.until(lambda sources: totals(sources).applied >= applied)

    print(f"  {'before':18} {'':8} {counted()}", flush=True)
    async with fleet:
        await measure("all pushed to", lambda: fleet.until(all_pushed))
        await measure("a change in each", change)
        took = time.process_time() - began
        await measure(f"{rest:.0f} s later", lambda: asyncio.sleep(rest))
        print(f"  {totals(fleet.status)}")
        stopped = time.monotonic()
    print(f"  {'after the end':18} {time.monotonic() - stopped:6.1f} s {counted()}")
    return took


@asynccontextmanager
async def serving(hub: str, url: str, count: int) -> AsyncIterator[None]:
    """Serve the Sources, within the context."""
    command = [
        Path(__file__).with_name("small_sources.py"),
        str(urlsplit(url).port),
        hub,
        str(count),
    ]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        await process.stdout.readline()  # it runs
        yield
    finally:
        process.terminate()
        await process.communicate()


async def run(count: int, rest: float = REST) -> float:
    """Start hub and Sources, and `follow`."""
    allow_files(count * 16 + 1000)
    hub, url = (f"http://127.0.0.1:{free_port()}/" for _ in range(2))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = ("--port", str(urlsplit(hub).port), "--data", str(folder / "hub"))
        process = await Process.start("hub", *options, log=folder / "hub.log")
        try:
            await process.url()
            async with serving(hub, url, count):
                print(f"{count} Sources of {RESOURCES} resources, followed by one process")
                return await follow(folder, url, count, rest)
        finally:
            await process.stop()


def main() -> None:
    """Run it, with so many Sources as the command line says."""
    asyncio.run(run(int(sys.argv[1]) if len(sys.argv) > 1 else SOURCES))


if __name__ == "__main__":
    main()
