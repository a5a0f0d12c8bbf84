"""A Source that changes its resources all the time, and reports each change on standard output.

    python -m tests.harnesses.torture.live_source FOLDER --url URL --port PORT --hub URL \\
        --advertise URL

When it begins, it reports the datetime at which its journal ends. It reports a new state before it
writes the file, and once more with the datetime of the change when `record` has returned. It reads
commands from standard input: `again NAME`, for a resource that was changed and perhaps not recorded
when the process before was killed; `go`; `pause`, which it confirms; and `die`, to kill itself with
SIGKILL as soon as it has reported the next datetime. It ends when standard input does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from random import Random

from aiohttp import web
from msgspec.structs import replace

from rsnotify.errors import StorageError
from rsnotify.format.datetimes import format_datetime, from_microseconds
from rsnotify.format.model import ChangeType
from rsnotify_publisher import Options, Publisher
from rsnotify_publisher.changes import change_record
from rsnotify_publisher.folder.file_names import FileNames
from rsnotify_publisher.folder.folder_publishing import PublishedFolder
from rsnotify_publisher.folder.server import folder_application
from rsnotify_publisher.hubs import parse_hub
from rsnotify_publisher.journal.journal import Journal
from rsnotify_publisher.publisher import transact
from tests.end_to_end.history import NAMES, remove_empty

#: Seconds until the first documents are written, however full its disk.
PATIENCE = 300.0
_NAMES = [*NAMES, *(f"bulk/{number}.ttl" for number in range(20))]
_SIZES = [10, 200, 3_000, 20_000, 60_000]
_LARGE = 800_000


class LiveSource:
    """A folder, every change of which is recorded."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._files = arguments.folder / "files"
        self._files.mkdir(parents=True, exist_ok=True)
        self._names = FileNames(self._files, arguments.url)
        self._port = arguments.port
        self._random = Random(arguments.seed)
        self._rate = arguments.rate
        self._number = 0
        self._dies = False
        self._running = asyncio.Event()
        self._busy = asyncio.Lock()
        hub, seen = parse_hub(arguments.hub), parse_hub(arguments.advertise)
        self._publisher = Publisher(
            arguments.folder / "state",
            arguments.url,
            hubs=[replace(hub, advertised=seen.advertised, documents=seen.documents)],
            options=Options(
                heartbeat=0.3,
                refresh=0.1,
                rotate=arguments.rotate,
                keep=arguments.keep,
                resource_list_every=1.0,
                linger=5.0,
            ),
        )

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        folder = PublishedFolder(self._names, self._publisher)
        runner = web.AppRunner(
            folder_application(self._publisher, [folder]), access_log=None, shutdown_timeout=1
        )
        async with self._publisher:
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", self._port).start()
            try:
                assert await self._publisher.await_published(PATIENCE)
                folder.ready.set()
                yield
            finally:
                await runner.cleanup()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        commands = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
        async with self._serving():
            changing = asyncio.create_task(self._change_forever())
            changing.add_done_callback(lambda task: task.cancelled() or task.result())
            last = await asyncio.wrap_future(transact(self._publisher, _last_change))
            report("serving", last=format_datetime(from_microseconds(last)))
            async for line in commands:
                command, _, name = line.decode().rstrip("\n").partition(" ")
                if command == "again":
                    async with self._busy:
                        await self._record({name: self._content(name)})
                elif command == "go":
                    self._running.set()
                elif command == "die":
                    self._dies = True
                else:
                    self._running.clear()
                    async with self._busy:
                        report("paused")
            changing.cancel()

    async def _change_forever(self) -> None:
        while True:
            await self._running.wait()
            wanted = self._random.sample(_NAMES, self._random.choice([1, 1, 1, 2, 5]))
            async with self._busy:
                await self._record({name: self._new_content(name) for name in wanted}, write=True)
            # So many changes a second, however long they take.
            await asyncio.sleep(self._random.expovariate(self._rate / 2))

    def _new_content(self, name: str) -> bytes | None:
        there = (self._files / name).exists()
        if there and self._random.random() < 0.3:
            return None
        self._number += 1
        line = f"# {os.getpid()} {self._number} {name}\n".encode()
        size = _LARGE if self._random.random() < 0.01 else self._random.choice(_SIZES)
        return line + self._random.randbytes(64) * (size // 64)

    def _content(self, name: str) -> bytes | None:
        try:
            return (self._files / name).read_bytes()
        except FileNotFoundError:
            return None

    async def _record(self, contents: dict[str, bytes | None], *, write: bool = False) -> None:
        """Write files and record them; again as long as the disk is full."""
        for name, content in contents.items():
            report("intended", name=name, hash=_hash(content))
        there = {name for name in contents if (self._files / name).exists()}
        while True:
            try:
                for name, content in contents.items() if write else ():
                    self._write(name, content)
                recorded = await self._publisher.arecord(
                    change_record(self._names.uri(self._files / name), kind, {}, content)
                    for name, content in contents.items()
                    for kind in [_kind(content, there=write and name in there)]
                )
            except (OSError, StorageError) as error:
                report("failed", error=str(error))
                await asyncio.sleep(0.1)
                continue
            for (name, content), change in zip(contents.items(), recorded, strict=True):
                assert change.datetime is not None
                at = format_datetime(change.datetime)
                report("recorded", name=name, hash=_hash(content), at=at)
            if self._dies:
                os.kill(os.getpid(), signal.SIGKILL)
            return

    def _write(self, name: str, content: bytes | None) -> None:
        path = self._files / name
        if content is None:
            path.unlink(missing_ok=True)
            if path.parent.exists():
                remove_empty(path.parent, self._files)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._files / ".new"
        temporary.write_bytes(content)
        temporary.replace(path)


def _last_change(journal: Journal) -> int:
    return journal.state().last_change


def _hash(content: bytes | None) -> str | None:
    return None if content is None else sha256(content).hexdigest()


def _kind(content: bytes | None, *, there: bool) -> ChangeType:
    if content is None:
        return ChangeType.DELETED
    return ChangeType.UPDATED if there else ChangeType.CREATED


def report(event: str, **facts: object) -> None:
    """Print a line with one system call, so that a kill leaves whole lines only."""
    os.write(1, json.dumps({"event": event, **facts}).encode() + b"\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--url")
    parser.add_argument("--port", type=int)
    parser.add_argument("--hub")
    parser.add_argument("--advertise")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--rotate")
    parser.add_argument("--keep")
    arguments = parser.parse_args()

    async def run() -> None:
        await LiveSource(arguments).run()

    asyncio.run(run())


if __name__ == "__main__":
    main()
