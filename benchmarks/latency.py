"""From `record` in the Source to applied in the Destination, durable at every step.

Source, hub and Destination are three processes. The Source embeds a Publisher and records
changes of small resources at a steady rate; their content travels inline.

A change is flushed to the disk five times, one flush after the other: in the Source's journal,
before the hub receives it; in the hub's log, before the Destination receives it; as a file, before
it is renamed into the mirror; with its folder, before the state records it; and with the state.
The duration of these flushes alone, and of one fsync, is measured on the same disk in the same
run. The target of the design is relative to the former: at most a millisecond more in the median,
and five in the 99th percentile.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import quantiles

from aiohttp import web

from rsnotify.format.datetimes import to_microseconds
from rsnotify.runtime.processes import Process
from rsnotify_publisher import Publisher, routes
from tests.ports import free_port

RATE = 200
RESOURCES = 200
SIZE = 500
#: How much longer than its flushes a change may take: p50 and p99, in milliseconds.
FLOOR = (1.0, 5.0)


class LiveSource:
    """Resources in memory that change, published by an embedded Publisher."""

    def __init__(self, root: Path, url: str, hub: str) -> None:
        self.url = url
        self._contents: dict[str, bytes] = {}
        self._random = Random(1)
        self.publisher = Publisher(root, url, hubs=[hub], content=self._contents.get)
        self.recorded: dict[int, int] = {}

    async def change(self) -> None:
        uri = f"{self.url}r/{self._random.randrange(RESOURCES)}"
        content = self._random.randbytes(SIZE // 2).hex().encode()
        began = time.time_ns() // 1000
        self._contents[uri] = content
        digest = "sha-256:" + hashlib.sha256(content).hexdigest()
        change = await self.publisher.aupdated(uri, hash=digest, length=SIZE, type="text/plain")
        assert change.datetime is not None
        self.recorded[to_microseconds(change.datetime)] = began

    async def change_for(self, seconds: float) -> None:
        """Record at the rate whatever each record takes, as an open loop does."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        async with asyncio.TaskGroup() as changes:
            for _ in range(round(RATE * seconds)):
                changes.create_task(self.change())
                due += 1 / RATE
                await asyncio.sleep(max(0.0, due - loop.time()))

    def application(self) -> web.Application:
        async def resource(request: web.Request) -> web.Response:
            return web.Response(body=self._contents[f"{self.url}r/{request.match_info['name']}"])

        app = web.Application()
        app.router.add_get("/r/{name}", resource)
        app.add_routes(routes(self.publisher))
        return app


def fsyncs(folder: Path, count: int = 300) -> list[float]:
    """Return how long each of some appends with fsync takes, in milliseconds."""
    with (folder / "appended").open("wb", buffering=0) as file:

        def append() -> None:
            file.write(b"x" * SIZE)
            os.fsync(file.fileno())

        return timed(append, count)


def rounds(folder: Path, count: int = 300) -> list[float]:
    """Return how long each of some rounds of all flushes of one change takes, in milliseconds.

    Three commits to SQLite, as of the journal, the log and the state, and a file put in place.
    """
    database = sqlite3.connect(folder / "rounds.sqlite", isolation_level=None)
    database.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; CREATE TABLE t (b)")

    def flush() -> None:
        for _ in range(3):
            database.execute("INSERT INTO t VALUES (?)", (b"x" * SIZE,))
        with (folder / "new").open("wb", buffering=0) as file:
            file.write(b"x" * SIZE)
            os.fsync(file.fileno())
        (folder / "new").replace(folder / "old")
        directory = os.open(folder, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)

    took = timed(flush, count)
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


async def measure(root: Path, seconds: float) -> list[float]:
    """Return the latency of every change, in milliseconds."""
    hub = await Process.start("hub", "--port", "0", "--data", str(root / "hub"), log=root / "log")
    port = free_port()
    url = f"http://127.0.0.1:{port}/"
    source = LiveSource(root / "source", url, await hub.url())
    runner = web.AppRunner(source.application())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        async with source.publisher:
            source.publisher.wait_published(10)
            return await _follow(source, root, seconds)
    finally:
        await runner.cleanup()
        await hub.stop()


async def _follow(source: LiveSource, root: Path, seconds: float) -> list[float]:
    destination = await asyncio.create_subprocess_exec(
        *(sys.executable, str(Path(__file__).with_name("destination.py"))),
        *(source.url, str(root / "copy")),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert destination.stdout is not None
    assert destination.stdin is not None
    async with asyncio.timeout(30):
        while await destination.stdout.readline() != b"ready\n":
            pass
    latencies: dict[int, float] = {}
    hearing = asyncio.create_task(_hear(source, destination.stdout, latencies))
    await source.change_for(seconds)
    async with asyncio.timeout(30):
        while max(latencies, default=0) < max(source.recorded):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    hearing.cancel()
    destination.stdin.close()
    await destination.wait()
    return list(latencies.values())


async def _hear(
    source: LiveSource, lines: asyncio.StreamReader, latencies: dict[int, float]
) -> None:
    # A change that another of the same resource overtook is applied with that one.
    async for line in lines:
        at, applied = map(int, line.split())
        if at in source.recorded:
            latencies[at] = (applied - source.recorded[at]) / 1000


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
        one, all_ = fsyncs(root / "before"), rounds(root / "before")
        latencies = asyncio.run(measure(root, seconds))
        one += fsyncs(root / "after")
        all_ += rounds(root / "after")
    print(f"record -> applied, {RATE} changes a second, {len(latencies)} changes, in ms")
    print(f"{'':24}{'p50':>8}{'p99':>8}{'p50+p99':>9}")
    rows = {"record -> applied": latencies, "its flushes alone": all_, "one fsync": one}
    for title, values in rows.items():
        p50, p99 = percentiles(values)
        print(f"{title:24}{p50:8.2f}{p99:8.2f}{p50 + p99:9.2f}")
    took, flushed = percentiles(latencies), percentiles(all_)
    over = [a - b for a, b in zip(took, flushed, strict=True)]
    print(f"{'over its flushes':24}{over[0]:8.2f}{over[1]:8.2f}")
    floor = [a + b for a, b in zip(flushed, FLOOR, strict=True)]
    print(f"{'the floor':24}{floor[0]:8.2f}{floor[1]:8.2f}")


if __name__ == "__main__":
    main()
