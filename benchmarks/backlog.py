"""Catching up with a long backlog, and a first copy beside an older Resource List.

A Source with a HTTP server counts the requests for its resources. `rsnotify follow --once` copies
it, and then each resource changes ten times, so that the Change List Archive has ten changes of
each. Only the last version of a resource can be fetched. Another Destination begins when the Source
has a Resource List that lacks the changes of a quarter of the resources.

    python backlog.py 50000

The design has 50,000 resources and 500,000 changes; without an argument there are fewer.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from random import Random

import targets
from aiohttp import web

from rsnotify.format.model import ChangeType, Resource
from rsnotify_publisher import Options, Publisher, routes
from tests.ports import free_port

RESOURCES = 10_000
CHANGES_OF_EACH = 10
SIZE = 500
BATCH = 5_000
#: How often a document is written that the benchmark does not wait for.
NEVER = 86_400
#: Seconds between two looks at the memory.
SAMPLE = 0.1
#: The figures of the design.
MOST_REQUESTS, MOST_MEGABYTES = 1.02, 150


class CountingSource:
    """A Source in this process, whose server runs in a thread and counts requests."""

    def __init__(self, folder: Path, resources: int) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}/"
        self._port = port
        self._versions = [0] * resources
        self.requests: Counter[int] = Counter()
        options = Options(resource_list_every=NEVER, grace=0)
        self._publisher = Publisher(folder, self.url, options=options)

    @contextmanager
    def serving(self) -> Iterator[None]:
        publisher = self._publisher
        publisher.load(self._entry(number, None) for number in range(len(self._versions)))
        publisher.start()
        publisher.wait_published()
        loop = asyncio.new_event_loop()
        ready = threading.Event()

        async def serve() -> None:
            application = web.Application()
            application.router.add_get(r"/r/{number:\d+}", self._resource)
            application.add_routes(routes(publisher))
            runner = web.AppRunner(application, access_log=None)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", self._port).start()
            ready.set()

        def run() -> None:
            server = loop.create_task(serve())
            loop.run_forever()
            server.cancel()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            ready.wait()
            yield
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            publisher.close()

    async def _resource(self, request: web.Request) -> web.Response:
        number = int(request.match_info["number"])
        self.requests[number] += 1
        return web.Response(body=self._content(number))

    def _content(self, number: int) -> bytes:
        return f"{number} {self._versions[number]} ".encode().ljust(SIZE, b"x")

    def _entry(self, number: int, change: ChangeType | None) -> Resource:
        digest = sha256(self._content(number)).hexdigest()
        uri = f"{self.url}r/{number}"
        return Resource(uri, change=change, hash=f"sha-256:{digest}", length=SIZE)

    def change(self, numbers: list[int]) -> None:
        """Change resources, in this order, and wait until the documents have all changes."""
        for begin in range(0, len(numbers), BATCH):
            batch = []
            for number in numbers[begin : begin + BATCH]:
                self._versions[number] += 1
                batch.append(self._entry(number, ChangeType.UPDATED))
            self._publisher.record(batch)
        self._publisher.wait_published()


def megabytes_of(pid: int) -> float:
    """Return the peak memory of a process so far, without what it inherited when it started.

    `ru_maxrss` would include that.
    """
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1_000
    return 0.0  # it has just ended


class Run:
    """What one run of `rsnotify follow --once` took."""

    def __init__(self, source: CountingSource, copy: Path) -> None:
        source.requests.clear()
        began = time.perf_counter()
        command = [sys.executable, "-m", "rsnotify", "-v", "follow", source.url]
        with (
            tempfile.TemporaryFile("w+") as log,
            subprocess.Popen([*command, str(copy), "--once"], stdout=log, stderr=log) as process,
        ):
            ended, self.megabytes = 0, 0.0
            while not ended:
                self.megabytes = megabytes_of(process.pid) or self.megabytes
                time.sleep(SAMPLE)
                ended, status, used = os.wait4(process.pid, os.WNOHANG)
            process.returncode = os.waitstatus_to_exitcode(status)
            log.seek(0)
            lines = log.read().splitlines()
        if process.returncode:
            raise AssertionError("\n".join(lines[-20:]))
        self.seconds = time.perf_counter() - began
        self.cpu = used.ru_utime + used.ru_stime
        self.requests = source.requests.total()
        self.failures = sum("could not apply" in line for line in lines)
        self.warnings = sum("WARNING" in line for line in lines)

    def show(self, what: str) -> None:
        print(
            f"{what:34}{self.requests:>10,}{self.failures:>10,}{self.warnings:>10,}"
            f"{self.megabytes:>8.0f}{self.cpu:>8.1f}{self.seconds:>8.1f}",
            flush=True,
        )


def main(count: int = RESOURCES) -> None:
    """Measure and print."""
    changes = CHANGES_OF_EACH * count
    print(f"{count:,} resources of {SIZE} bytes, {changes:,} changes (the design has 500,000)")
    print(f"{'':34}{'GETs':>10}{'failures':>10}{'warnings':>10}{'MB':>8}{'CPU s':>8}{'s':>8}")
    random = Random(1)
    with tempfile.TemporaryDirectory(prefix="rsnotify-bench-") as name:
        source = CountingSource(Path(name, "source"), count)
        with source.serving():
            Run(source, Path(name, "copy")).show("first copy")
            source.change(random.sample(range(count), count // 4))
            beside = Run(source, Path(name, "other"))
            beside.show("first copy, older Resource List")
            source.change([random.randrange(count) for _ in range(changes)])
            backlog = Run(source, Path(name, "copy"))
            backlog.show("backlog")
            changed = len(source.requests)
    each = backlog.requests / changed
    targets.compare("backlog, GETs for each changed resource", each, MOST_REQUESTS)
    targets.compare("backlog, memory", backlog.megabytes, MOST_MEGABYTES, "MB")
    each = beside.requests / count
    targets.compare("first copy beside an older list, GETs for each", each, MOST_REQUESTS)
    targets.compare("first copy beside an older list, warnings", beside.warnings, 0)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
    targets.show()
