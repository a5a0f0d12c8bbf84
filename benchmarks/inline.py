"""What inline content saves the Source: GETs after one change, with a thousand Destinations.

A Source, a hub, and Destinations in a few processes, all over real HTTP and WebSocket. The same
resource of 2 KiB changes again and again, at first without its content in the fragment, then with
it. Requests are counted until every Destination has applied the change.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from statistics import median

from aiohttp import web
from aiohttp.typedefs import Handler
from latency import percentiles

from rsnotify.format.datetimes import to_microseconds
from rsnotify.runtime.processes import Process
from rsnotify_publisher import Publisher, routes
from tests.ports import free_port

SIZE = 2048
PROCESSES = 4
ROUNDS = 5
#: Seconds in which all have to apply a change, and in which a process has to start.
PATIENCE = 300


class CountingSource:
    """One resource in memory, with counters of requests."""

    def __init__(self, root: Path, url: str, hub: str) -> None:
        self.uri = url + "resource"
        self.url = url
        self.gets: Counter[str] = Counter()
        self.inline = False
        self._content = b""
        self._random = Random(1)
        self.publisher = Publisher(root, url, hubs=[hub], content=self._small)

    def _small(self, uri: str) -> bytes | None:
        return self._content if self.inline else None

    async def change(self) -> int:
        """Change the resource; return the datetime of the change, in microseconds since 1970."""
        self._content = self._random.randbytes(SIZE)
        digest = "sha-256:" + hashlib.sha256(self._content).hexdigest()
        change = await self.publisher.aupdated(self.uri, hash=digest, length=SIZE)
        assert change.datetime is not None
        return to_microseconds(change.datetime)

    @asynccontextmanager
    async def serving(self, port: int) -> AsyncIterator[None]:
        """Publish and serve."""
        app = web.Application(middlewares=[self._count])
        app.router.add_get("/resource", self._get)
        app.add_routes(routes(self.publisher))
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, backlog=2000).start()
        try:
            async with self.publisher:
                yield
        finally:
            await runner.cleanup()

    async def _get(self, request: web.Request) -> web.Response:
        return web.Response(body=self._content)

    @web.middleware
    async def _count(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.gets["resource" if request.path == "/resource" else "document"] += 1
        return await handler(request)


class ManyDestinations:
    """The processes with Destinations."""

    def __init__(self, processes: list[asyncio.subprocess.Process]) -> None:
        self._processes = processes
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()
        self._reading = [asyncio.create_task(self._read(process)) for process in processes]

    @classmethod
    async def start(cls, url: str, count: int, folder: Path) -> ManyDestinations:
        """Start them, and wait until all are in step."""
        script = str(Path(__file__).with_name("many_destinations.py"))
        processes = [
            await asyncio.create_subprocess_exec(
                *(sys.executable, script, url, str(count // PROCESSES), str(folder / str(number))),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            for number in range(PROCESSES)
        ]
        destinations = cls(processes)
        async with asyncio.timeout(PATIENCE):
            ready = 0
            while ready < PROCESSES:
                ready += await destinations._lines.get() == b"ready\n"
        return destinations

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            self._lines.put_nowait(line)

    async def applied(self, at: int, count: int) -> list[float]:
        """Wait until all have applied a change; return after how many milliseconds each had."""
        lags: list[float] = []
        async with asyncio.timeout(PATIENCE):
            while len(lags) < count:
                _, change, committed = (await self._lines.get()).split()
                if int(change) == at:
                    lags.append((int(committed) - at) / 1000)
        return lags

    async def stop(self) -> None:
        """End them."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        await asyncio.gather(*(process.wait() for process in self._processes))
        await asyncio.gather(*self._reading)


async def measure(
    source: CountingSource, destinations: ManyDestinations, count: int, title: str
) -> None:
    """Change the resource some times, and print what that cost."""
    resources, documents, seconds, lags = [], [], [], []
    for _ in range(ROUNDS):
        source.gets.clear()
        began = time.perf_counter()
        lags += await destinations.applied(await source.change(), count)
        seconds.append(time.perf_counter() - began)
        resources.append(source.gets["resource"])
        documents.append(source.gets["document"])
    p50, p99 = percentiles(lags)
    numbers = f"{median(resources):>12.0f}{median(documents):>12.0f}"
    print(f"{title:18}{numbers}{p50:>10.0f}{p99:>10.0f}{median(seconds):>10.2f}", flush=True)


async def run(root: Path, count: int) -> None:
    """Measure without and with inline content."""
    hub = await Process.start("hub", "--port", "0", "--data", str(root / "hub"), log=root / "log")
    port = free_port()
    source = CountingSource(root / "source", f"http://127.0.0.1:{port}/", await hub.url())
    try:
        async with source.serving(port):
            await source.change()
            await asyncio.to_thread(source.publisher.wait_published, 10)
            destinations = await ManyDestinations.start(source.url, count, root / "destinations")
            for inline in (False, True):
                source.inline = inline
                await measure(source, destinations, count, "inline" if inline else "not inline")
            await destinations.stop()
    finally:
        await hub.stop()


def main(count: int = 1000) -> None:
    """Measure and print."""
    print(f"one change of a resource of {SIZE} B, {count} Destinations, median of {ROUNDS} changes")
    print(f"{'':18}{'GETs of it':>12}{'of lists':>12}{'p50 ms':>10}{'p99 ms':>10}{'all, s':>10}")
    with tempfile.TemporaryDirectory(prefix="rsnotify-bench-") as name:
        asyncio.run(run(Path(name), count))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
