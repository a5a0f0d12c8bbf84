"""A fleet in several processes that are killed and suspended: `make shared-fleet`.

    python shared_fleet.py [SOURCES] [PROCESSES]

Small Sources (`small_sources.py`) are polled by equal processes of `rsnotify follow --config` over
one PostgreSQL. It prints the requests while nothing changes, of all processes and of one alone, and
how long it takes until processes have their shares after one is killed, suspended, ended or added.
In the end, every copy must be right, and no change may have had its effect twice.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import psycopg
from fanout import processor_seconds
from fleet import serving

from rsnotify.runtime.processes import Process, allow_files
from tests.ports import free_port
from tests.postgresql import running_postgresql
from tests.subscriber import aggregator

SOURCES, PROCESSES = 1000, 3
#: Seconds between two polls of a Source, and for which nothing changes.
POLL, REST = 20.0, 60.0
#: Seconds that anything here may take.
PATIENCE = 600
#: Seconds for which a process is suspended, which is longer than its lease.
SUSPENDED = 12.0
ROOT = Path(__file__).resolve().parents[1]

OWNERS = """
SELECT name, count(*) FROM rsnotify_fleet.leases JOIN rsnotify_fleet.members ON owner = id
    GROUP BY name
"""


class Trial:
    def __init__(self, folder: Path, database: str, url: str, count: int) -> None:
        self._folder = folder
        self._database = database
        self._url = url
        self._count = count
        self._file = folder / "fleet.toml"
        self._log = folder / "follow.log"
        self._session = aiohttp.ClientSession()
        self._running: list[Process] = []
        aggregator.prepare(database)
        with psycopg.connect(database) as connection:
            connection.execute("CREATE INDEX ON effects (uri, at)")
        lines = [
            "[defaults]\nvia = 'poll'\nschema = 's{name}'\nallow_private_addresses = true",
            f"poll = {POLL}\nhandler = 'tests.subscriber.aggregator:Aggregator'",
            f"postgresql = '{database}'",
        ]
        lines += [
            f"[[source]]\nname = '{number}'\nurl = '{url}{number}/capabilitylist.xml'"
            for number in range(count)
        ]
        self._file.write_text("\n".join(lines))

    async def start(self) -> Process:
        command = ("follow", "--config", str(self._file), "--quiet")
        return await Process.start(*command, log=self._log)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._database, autocommit=True) as connection:
            return connection.execute(query.encode()).fetchall()

    def shares(self) -> list[int]:
        return sorted(count for _, count in self.rows(OWNERS))

    async def seen(self) -> dict[str, Any]:
        async with self._session.get(self._url + "seen") as answer:
            found: dict[str, Any] = await answer.json()
            return found

    async def change(self) -> None:
        async with self._session.post(self._url + "change") as answer:
            answer.raise_for_status()

    async def equal(self) -> bool:
        seen = (await self.seen())["contents"]
        rows = await asyncio.to_thread(self.rows, "SELECT uri, content FROM copy")
        return {uri: bytes(content).decode() for uri, content in rows} == seen

    async def until(self, what: str, condition: Callable[[], Any]) -> None:
        """Wait for a condition, and print for how long."""
        began = time.monotonic()
        async with asyncio.timeout(PATIENCE):
            while True:
                result = condition()
                if await result if asyncio.iscoroutine(result) else result:
                    break
                await asyncio.sleep(0.1)
        print(f"  {what:58} {time.monotonic() - began:6.1f} s", flush=True)

    async def rest(self, what: str) -> None:
        """Print the requests of all Sources while nothing changes."""
        await asyncio.sleep(2 * POLL)  # a change, or a new process, is followed by more polls
        before, began = (await self.seen())["requests"], time.monotonic()
        used = self.processor_seconds()
        await asyncio.sleep(REST)
        took = time.monotonic() - began
        after = (await self.seen())["requests"]
        each = Counter(one - other for one, other in zip(after, before, strict=True))
        cpu = (self.processor_seconds() - used) / took * 1000
        total = sum(number * count for number, count in each.items())
        print(
            f"  {what}: {total / took:.1f} requests/s, {min(each)} to {max(each)} of each Source "
            f"in {took:.0f} s; one poll each {POLL:.0f} s makes {self._count / POLL:.1f}/s; "
            f"{cpu:.0f} ms of CPU a second",
            flush=True,
        )

    def is_divided(self, processes: int) -> bool:
        shares = self.shares()
        is_equal = bool(shares) and shares[-1] - shares[0] <= 1
        return sum(shares) == self._count and len(shares) == processes and is_equal

    def processor_seconds(self) -> float:
        return sum(processor_seconds(one.pid) for one in self._running)

    async def run(self, processes: int, stack: AsyncExitStack) -> None:
        running = self._running = [await self.start()]
        stack.push_async_callback(lambda: stop(running))
        stack.push_async_callback(self._session.close)
        print(f"{self._count} Sources, followed by one process, and then by {processes}")
        await self.until("all copied by one process", self.equal)
        await self.rest("one process, idle")
        running += [await self.start() for _ in range(processes - 1)]
        await self.until(
            f"{processes - 1} more have their shares", lambda: self.is_divided(processes)
        )
        await self.change()
        await self.until("a change in each is applied", self.equal)
        await self.rest(f"{processes} processes, idle")
        for _ in range(2):
            await self.change()
            await running.pop(0).kill()
            await self.until(
                "kill -9: the others have its Sources",
                lambda: self.is_divided(processes - 1),
            )
            await self.until("… and the changes are applied", self.equal)
            running.append(await self.start())
            await self.until("a new process has its share", lambda: self.is_divided(processes))
        await self.change()
        victim = running[0]
        os.kill(victim.pid, signal.SIGSTOP)
        await self.until(
            "SIGSTOP: the others have its Sources", lambda: self.is_divided(processes - 1)
        )
        await self.change()
        await self.until("… and the changes are applied", self.equal)
        await asyncio.sleep(SUSPENDED)
        os.kill(victim.pid, signal.SIGCONT)
        await self.until("SIGCONT: it has its share again", lambda: self.is_divided(processes))
        await self.change()
        await self.until("a change in each is applied", self.equal)
        await running.pop(0).stop()
        await self.until(
            "SIGTERM: the others have its Sources", lambda: self.is_divided(processes - 1)
        )
        await self.change()
        await self.until("a change in each is applied", self.equal)
        twice = self.rows("SELECT uri, at FROM effects GROUP BY uri, at HAVING count(*) > 1")
        connections = self.rows("SELECT count(*) FROM pg_stat_activity WHERE client_port > 0")
        print(f"  every copy is right; effects that happened twice: {len(twice)}")
        print(f"  connections to PostgreSQL: {connections[0][0]}")
        assert not twice, twice
        errors = [line for line in self._log.read_text().splitlines() if "Traceback" in line]
        print(f"  {len(errors)} tracebacks in the log", flush=True)


async def stop(running: list[Process]) -> None:
    for process in running:
        await process.stop()


async def run(count: int, processes: int) -> None:
    allow_files(4 * count + 1000)
    url = f"http://127.0.0.1:{free_port()}/"
    folders = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    os.environ["PYTHONPATH"] = folders
    with running_postgresql() as server, tempfile.TemporaryDirectory() as name:
        async with serving("", url, count), AsyncExitStack() as stack:
            await Trial(Path(name), server.database(), url, count).run(processes, stack)


def main() -> None:
    """Run it, with so many Sources and processes as the command line says."""
    numbers = [*map(int, sys.argv[1:]), *(SOURCES, PROCESSES)[len(sys.argv) - 1 :]]
    asyncio.run(run(*numbers))


if __name__ == "__main__":
    main()
