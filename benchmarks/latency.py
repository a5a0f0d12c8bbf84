"""From `record` in the Source to visible and to durable in the Destination, and the CPU of each.

Source, hub and Destination are three processes. The Source embeds a Publisher and records
changes of small resources at a steady rate; their content travels inline.

A change is visible once its file is in place, which needs one flush: that of the Source's journal.
It is durable in the Destination after a second one, that of its state. The hub flushes its log
meanwhile. The same flushes alone are measured on the same disk in the same run, since the targets
are relative to them. The processor time of the Source includes what makes the changes. That of a
process that only commits what it reads, and of one that also writes files, stands beside it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from statistics import quantiles

import bare_commit
from aiohttp import web
from fanout import processor_seconds
from targets import compare

from rsnotify.format.datetimes import to_microseconds
from rsnotify.format.model import ChangeType, Resource
from rsnotify.runtime.processes import Process
from rsnotify_publisher import Publisher, routes
from tests.ports import free_port

RATE = 200
RESOURCES = 200
SIZE = 500
#: How much longer than its flushes a change may take until it is visible (p50 and p99), and until
#: it is durable (p50), in milliseconds.
VISIBLE, DURABLE = (1.5, 6.0), 1.5
#: The processor time for each change, as a multiple of that of a bare commit.
CPU = {"Source": 1.5, "hub": 1.2, "Destination": 1.7}
#: Processes that only write, for comparison (`bare_commit`).
BARE = {"a bare commit": "commit", "a bare commit and file": "place"}


class LiveSource:
    """Resources in memory that change, published by an embedded Publisher."""

    def __init__(self, root: Path, url: str, hubs: Sequence[str], resources: int) -> None:
        self.url = url
        self._resources = range(resources)
        self._contents: dict[str, bytes] = {}
        self._random = Random(1)
        self.publisher = Publisher(root, url, hubs=hubs, content=self._contents.get)
        self.recorded: dict[int, int] = {}

    async def change(self, count: int = 1) -> None:
        """Change resources, and record the changes together."""
        began = time.time_ns() // 1000
        changes = []
        for number in self._random.sample(self._resources, count):
            uri = f"{self.url}r/{number}"
            self._contents[uri] = content = self._random.randbytes(SIZE // 2).hex().encode()
            digest = "sha-256:" + hashlib.sha256(content).hexdigest()
            changes.append(
                Resource(
                    uri, change=ChangeType.UPDATED, hash=digest, length=SIZE, type="text/plain"
                )
            )
        for change in await self.publisher.arecord(changes):
            assert change.datetime is not None
            self.recorded[to_microseconds(change.datetime)] = began

    async def change_for(self, seconds: float, rate: int = RATE) -> None:
        """Record at the rate whatever each record takes, as an open loop does."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        # Above a thousand a second, a Source records what has gathered in a millisecond.
        count = max(1, round(rate / 1_000))
        async with asyncio.TaskGroup() as changes:
            for _ in range(round(rate * seconds / count)):
                changes.create_task(self.change(count))
                due += count / rate
                await asyncio.sleep(max(0.0, due - loop.time()))

    def application(self) -> web.Application:
        async def resource(request: web.Request) -> web.Response:
            return web.Response(body=self._contents[f"{self.url}r/{request.match_info['name']}"])

        app = web.Application()
        app.router.add_get("/r/{name}", resource)
        app.add_routes(routes(self.publisher))
        return app


def rounds(folder: Path, count: int = 300) -> tuple[list[float], list[float]]:
    """Return how long one commit to SQLite takes, and how long two do, in milliseconds."""
    database = sqlite3.connect(folder / "rounds.sqlite", isolation_level=None)
    database.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; CREATE TABLE t (b)")

    def flush() -> None:
        database.execute("INSERT INTO t VALUES (?)", (b"x" * SIZE,))

    def flush_twice() -> None:
        flush()
        flush()

    took = timed(flush, count), timed(flush_twice, count)
    database.close()
    return took


def timed(work: Callable[[], None], count: int) -> list[float]:
    """Return how long each call takes, in milliseconds."""
    took = []
    for _ in range(count):
        began = time.perf_counter()
        work()
        took.append((time.perf_counter() - began) * 1000)
    return took


class Latencies:
    """How long changes took until they were visible, and durable, in milliseconds."""

    def __init__(self, source: LiveSource) -> None:
        self._recorded = source.recorded
        self.found: dict[str, dict[int, float]] = {"visible": {}, "durable": {}}

    async def read(self, lines: asyncio.StreamReader) -> None:
        # A change that another of the same resource overtook is applied with that one.
        async for line in lines:
            what, *numbers = line.decode().split()
            at, applied = map(int, numbers)
            if at in self._recorded:
                self.found[what][at] = (applied - self._recorded[at]) / 1000

    async def complete(self) -> None:
        """Wait until the last change is durable."""
        async with asyncio.timeout(120):
            while max(self.found["durable"], default=0) < max(self._recorded):  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def measure(
    root: Path,
    seconds: float,
    rate: int = RATE,
    resources: int = RESOURCES,
    *,
    push: bool = True,
) -> tuple[Latencies, dict[str, float]]:
    """Return the latency of every change, and the milliseconds of CPU of each process for one.

    Without push, the Destination polls every second, and the hub has nothing to do.
    """
    hub = await Process.start("hub", "--port", "0", "--data", str(root / "hub"), log=root / "log")
    port = free_port()
    url = f"http://127.0.0.1:{port}/"
    source = LiveSource(root / "source", url, [await hub.url()] if push else [], resources)
    runner = web.AppRunner(source.application())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        async with source.publisher:
            source.publisher.wait_published(10)
            return await _follow(source, hub.pid, root, seconds, rate, "up" if push else "off")
    finally:
        await runner.cleanup()
        await hub.stop()


async def _follow(
    source: LiveSource, hub: int, root: Path, seconds: float, rate: int, push: str
) -> tuple[Latencies, dict[str, float]]:
    destination = await asyncio.create_subprocess_exec(
        *(sys.executable, str(Path(__file__).with_name("destination.py"))),
        *(source.url, str(root / "copy"), push),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert destination.stdout is not None
    assert destination.stdin is not None
    async with asyncio.timeout(30):
        while await destination.stdout.readline() != b"ready\n":
            pass
    latencies = Latencies(source)
    reading = asyncio.create_task(latencies.read(destination.stdout))
    processes = {"Source": os.getpid(), "hub": hub, "Destination": destination.pid}
    before = {name: processor_seconds(pid) for name, pid in processes.items()}
    await source.change_for(seconds, rate)
    await latencies.complete()
    count = len(source.recorded)
    cpu = {
        name: (processor_seconds(pid) - before[name]) / count * 1000
        for name, pid in processes.items()
    }
    reading.cancel()
    destination.stdin.close()
    await destination.wait()
    return latencies, cpu


def percentiles(values: list[float]) -> tuple[float, float]:
    """Return p50 and p99."""
    cuts = quantiles(values, n=100)
    return cuts[49], cuts[98]


def main(seconds: float = 10.0) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="rsnotify-bench-") as name:
        root = Path(name)
        (root / "before").mkdir()
        (root / "after").mkdir()
        one, two = rounds(root / "before")
        latencies, cpu = asyncio.run(measure(root, seconds))
        for kind in BARE.values():
            (root / kind).mkdir()
        bare = {
            title: asyncio.run(bare_commit.measure(root / kind, kind, RATE, 2 * SIZE, seconds / 2))
            for title, kind in BARE.items()
        }
        for flushed, again in zip((one, two), rounds(root / "after"), strict=True):
            flushed += again
    visible, durable = (list(found.values()) for found in latencies.found.values())
    print(f"record -> applied, {RATE} changes a second, {len(durable)} changes, in ms")
    print(f"{'':24}{'p50':>8}{'p99':>8}")
    rows = {
        "record -> visible": visible,
        "one flush alone": one,
        "record -> durable": durable,
        "two flushes alone": two,
    }
    took = {title: percentiles(values) for title, values in rows.items()}
    for title, (p50, p99) in took.items():
        print(f"{title:24}{p50:8.2f}{p99:8.2f}")
    for name_of, figure in cpu.items():
        print(f"{f'CPU of the {name_of}, each':24}{figure:8.2f}")
    for title, figure in bare.items():
        print(f"{f'CPU of {title}':31}{figure:.2f}")
    over = [a - b for a, b in zip(took["record -> visible"], took["one flush alone"], strict=True)]
    for percentile, figure, limit in zip(("p50", "p99"), over, VISIBLE, strict=True):
        compare(f"record to visible, over a flush, {percentile}", figure, limit, "ms")
    later = took["record -> durable"][0] - took["two flushes alone"][0]
    compare("record to durable, over two flushes, p50", later, DURABLE, "ms")
    for name_of, limit in CPU.items():
        commits = cpu[name_of] / bare["a bare commit"]
        compare(f"CPU per change at the {name_of}", commits, limit, "commits")


if __name__ == "__main__":
    main()
