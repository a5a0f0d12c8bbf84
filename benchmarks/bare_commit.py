"""A process that only commits what it reads: what the system calls of a change cost alone.

`bare_commit.py FOLDER commit` reads lines from its standard input, commits each as a row, in a
thread, and then writes a line to its standard output. With `place`, it also writes the line to a
file that replaces one of 200. It parses, checks and delivers nothing.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import uvloop
from fanout import processor_seconds

_FILES = 200


class BareWriter:
    """Commits rows, and replaces files."""

    def __init__(self, folder: Path, *, places: bool) -> None:
        self._folder = folder
        self._places = places
        self._count = 0
        self._database = sqlite3.connect(
            folder / "bare.sqlite", isolation_level=None, check_same_thread=False
        )
        self._database.executescript(
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; CREATE TABLE t (b)"
        )

    def write(self, line: bytes) -> None:
        self._database.execute("INSERT INTO t VALUES (?)", (line,))
        if self._places:
            self._count += 1
            part = self._folder / "part"
            part.write_bytes(line)
            part.replace(self._folder / str(self._count % _FILES))


async def serve(folder: Path, *, places: bool) -> None:
    """Read, write and answer until the input ends."""
    loop = asyncio.get_running_loop()
    writer = BareWriter(folder, places=places)
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    with ThreadPoolExecutor(1) as thread:
        while line := await reader.readline():
            await loop.run_in_executor(thread, writer.write, line)
            os.write(1, b"written\n")


async def measure(folder: Path, kind: str, rate: int, size: int, seconds: float) -> float:
    """Return the milliseconds of CPU for each line, at a rate a second; the folder is empty."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, __file__, str(folder), kind),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"first\n")
    await process.stdout.readline()
    before = processor_seconds(process.pid)
    count, due = round(rate * seconds), time.monotonic()
    for _ in range(count):
        process.stdin.write(b"x" * size + b"\n")
        due += 1 / rate
        await asyncio.sleep(max(0.0, due - time.monotonic()))
    for _ in range(count):
        await process.stdout.readline()
    used = processor_seconds(process.pid) - before
    process.stdin.close()
    await process.wait()
    return used / count * 1000


if __name__ == "__main__":
    uvloop.run(serve(Path(sys.argv[1]), places=sys.argv[2] == "place"))
