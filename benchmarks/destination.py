"""The Destination for `latency.py` in a separate process: when changes are visible and durable.

It prints `ready` once it is level, and push is in the expected state, then two lines per change:
`visible` once its file is in place and `durable` once it is committed, each followed by the
change's datetime and the time, both in microseconds since 1970. It runs as `rsnotify follow` does:
on uvloop, and with little garbage collection.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from rsnotify.format.coverage import Change
from rsnotify.format.datetimes import Instant, to_microseconds
from rsnotify.runtime.command_line import run
from rsnotify.runtime.tasks import running
from rsnotify.sync.pace import Pace
from rsnotify_subscriber import FolderMirror, FollowOptions, Received, Subscriber

#: What has not been printed yet: printing each line at once would be a part of the CPU time.
_lines: list[str] = []


def note(what: str, changed: Iterable[Instant]) -> None:
    now = time.time_ns() // 1000
    _lines.extend([f"{what} {to_microseconds(at)} {now}\n" for at in changed])


def note_committed(changes: Sequence[Change]) -> None:
    note("durable", (change.at for change in changes))


async def print_lines() -> None:
    while True:
        await asyncio.sleep(0.2)
        count = len(_lines)
        sys.stdout.write("".join(_lines[:count]))
        sys.stdout.flush()
        del _lines[:count]


class TimedMirror(FolderMirror):
    """A mirror that notes when changes are visible."""

    def apply_unflushed(self, changes: Sequence[Received]) -> None:
        super().apply_unflushed(changes)
        note("visible", (change.at for change in changes))


async def in_step(subscriber: Subscriber, push: str) -> None:
    """Wait until the copy is level, and push is in some state."""
    while True:
        status = subscriber.status
        if status.level and status.push == push:
            return
        await asyncio.sleep(0.05)


async def main(url: str, folder: Path, push: str) -> None:
    subscriber = Subscriber(
        url,
        TimedMirror(folder),
        state=folder.with_suffix(".state"),
        options=FollowOptions(allow_private_addresses=True, pace=Pace(poll=1.0)),
        on_committed=note_committed,
    )
    async with subscriber:
        await in_step(subscriber, push)
        print("ready", flush=True)
        async with running(print_lines()):
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    run(lambda _: main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
