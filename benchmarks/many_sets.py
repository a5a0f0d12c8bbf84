"""The cost of publishing hundreds of sets in one process: `python benchmarks/many_sets.py COUNT`.

A hub is a separate process. This one publishes all sets, records a change in each, and ends; it
prints its sockets, and what each step took.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from fleet import counted

from rsnotify.runtime.processes import Process, allow_files
from rsnotify_publisher import Publisher, SourceDescription
from tests.ports import free_port

SETS = 300
_BASE = "http://source.example/"
#: Seconds until all channels are open at the hub.
_REST = 3.0


def measure(name: str, what: Callable[[], object]) -> None:
    """Do something, and print its duration and the resources in use afterwards."""
    began = time.monotonic()
    what()
    print(f"  {name:18} {time.monotonic() - began:6.1f} s {counted()}", flush=True)


def publish(folder: Path, hub: str, count: int) -> float:
    """Publish so many sets; return the seconds of CPU that this took until the end."""
    began = time.process_time()
    urls = [f"{_BASE}{number}/" for number in range(count)]
    sets = [Publisher(folder / str(n), url, hubs=[hub]) for n, url in enumerate(urls)]
    source = SourceDescription(_BASE, sets)

    def start() -> None:
        source.start()
        for each in sets:
            each.wait_published()

    def change() -> None:
        for each, url in zip(sets, urls, strict=True):
            each.updated(url + "resource", content=b"changed")

    measure("all published", start)
    measure("a change in each", change)
    measure("at rest", lambda: time.sleep(_REST))
    measure("after the end", source.close)
    return time.process_time() - began


async def run(count: int) -> float:
    """Start a hub, and `publish`."""
    allow_files(count * 16 + 1000)
    hub = f"http://127.0.0.1:{free_port()}/"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = ("--port", str(urlsplit(hub).port), "--data", str(folder / "hub"))
        process = await Process.start("hub", *options, log=folder / "hub.log")
        try:
            await process.url()
            print(f"{count} sets, published by one process")
            return await asyncio.to_thread(publish, folder, hub, count)
        finally:
            await process.stop()


if __name__ == "__main__":
    asyncio.run(run(int(sys.argv[1]) if len(sys.argv) > 1 else SETS))
