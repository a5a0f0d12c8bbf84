"""What a change costs the Source: processor time, and the time until it is durable.

The Source embeds a Publisher, and feeds a hub in a process of its own. Changes of small resources
are recorded one at a time at a steady rate, with their content returned by a callback or given with
the change, and in batches. The journal is first written until its write-ahead log has its usual
size, since each flush also writes the new length of a file that grows.

What makes the changes, with a timer and a task for each, takes nearly as long as half a commit. It
is measured alone before there is a Publisher, and subtracted: the rest is what the Source's program
pays for publishing. A process that only commits what it reads is measured in the same run
(`bare_commit`), as the target is relative to it.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from statistics import quantiles

import bare_commit
from msgspec.structs import replace
from targets import compare

from rsnotify.format.model import ChangeType, Resource
from rsnotify.runtime.processes import Process
from rsnotify_publisher import Publisher, Record

BASE = "https://source.example/data/"
RATE = 200
RESOURCES = 200
SIZE = 500
BATCH, BATCHES = 100, 10
#: Changes that fill the write-ahead log.
WARM_UP = 25_000
#: The processor time of one change in bare commits, and milliseconds of it in batches.
SINGLE, BATCHED = 1.5, 0.1
#: Seconds in which the changes that filled the log are written into the documents.
REST = 3.0


class MeasuredSource:
    """Resources in memory that change."""

    def __init__(self, folder: Path, hub: str) -> None:
        self._contents: dict[str, bytes] = {}
        self._random = Random(1)
        self.publisher = Publisher(folder, BASE, hubs=[hub], content=self._contents.get)

    def change(self, *, given: bool) -> Record:
        """Change a resource; its content is given with the change, or only to the callback."""
        uri = f"{BASE}{self._random.randrange(RESOURCES)}"
        content = self._random.randbytes(SIZE // 2).hex().encode()
        self._contents[uri] = content
        resource = Resource(uri, change=ChangeType.UPDATED, type="text/plain")
        if given:
            return Record(resource, content=content)
        digest = "sha-256:" + hashlib.sha256(content).hexdigest()
        return Record(replace(resource, hash=digest, length=SIZE))

    async def nothing(self) -> None:
        self.change(given=False)

    async def by_callback(self) -> None:
        await self.publisher.arecord([self.change(given=False)])

    async def given(self) -> None:
        await self.publisher.arecord([self.change(given=True)])

    async def batch(self) -> None:
        await self.publisher.arecord([self.change(given=True) for _ in range(BATCH)])


async def measure(work: Callable[[], Awaitable[None]], rate: float, seconds: float) -> list[float]:
    """Call at a rate whatever each call takes; return how long each took, in milliseconds."""
    took: list[float] = []

    async def timed() -> None:
        began = time.perf_counter()
        await work()
        took.append((time.perf_counter() - began) * 1000)

    loop = asyncio.get_running_loop()
    due = loop.time()
    async with asyncio.TaskGroup() as calls:
        for _ in range(round(rate * seconds)):
            calls.create_task(timed())
            due += 1 / rate
            await asyncio.sleep(max(0.0, due - loop.time()))
    return took


async def cpu_of(
    work: Callable[[], Awaitable[None]], rate: float, seconds: float
) -> tuple[float, list[float]]:
    """Return the milliseconds of a processor for each call, and how long each took."""
    before = time.process_time()
    took = await measure(work, rate, seconds)
    return (time.process_time() - before) * 1000 / len(took), took


async def run(folder: Path, seconds: float) -> None:
    """Measure each way of recording, and print."""
    bare = await bare_commit.measure(folder / "bare", "commit", RATE, 2 * SIZE, seconds)
    hub = await Process.start(
        "hub", "--port", "0", "--data", str(folder / "hub"), log=folder / "log"
    )
    source = MeasuredSource(folder / "source", await hub.url())
    made, _ = await cpu_of(source.nothing, RATE, seconds)
    print(f"{'a bare commit':24}{bare:16.3f}\n{'what makes a change':24}{made:16.3f}")
    ways = {
        "no change": (source.nothing, 1),
        "content by a callback": (source.by_callback, 1),
        "content given": (source.given, 1),
        f"in batches of {BATCH}": (source.batch, BATCH),
    }
    try:
        async with source.publisher:
            await source.publisher.await_published(30)
            for _ in range(WARM_UP // BATCH):
                await source.batch()
            await asyncio.sleep(REST)
            for title, (work, count) in ways.items():
                used, took = await cpu_of(work, RATE if count == 1 else BATCHES, seconds)
                cpu = used / count if count > 1 else used - made
                work_of = f"CPU per change at the Source, {title}"
                if count > 1:
                    compare(work_of, cpu, BATCHED, "ms")
                elif work != source.nothing:
                    compare(f"{work_of}, commits", cpu / bare, SINGLE)
                cuts = quantiles(took, n=100)
                print(
                    f"{title:24}{cpu / bare:8.2f}{cpu:8.3f}{cuts[49]:13.2f}{cuts[98]:8.2f}",
                    flush=True,
                )
    finally:
        await hub.stop()


def main(seconds: float = 10.0) -> None:
    """Measure and print."""
    print(f"the Source, {RATE} changes a second, {SIZE} bytes inline")
    print(f"{'':24}{'commits':>8}{'CPU/ms':>8}{'durable p50':>13}{'p99':>8}")
    with tempfile.TemporaryDirectory(prefix="rsnotify-bench-") as name:
        (Path(name) / "bare").mkdir()
        asyncio.run(run(Path(name), seconds))


if __name__ == "__main__":
    main()
