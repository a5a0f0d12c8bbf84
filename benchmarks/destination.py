"""The Destination for `latency.py` in a separate process, which prints when changes are durable.

It prints `ready` once it is level and push works, then a line per change: the change's datetime
and the time of its commit, both in microseconds since 1970.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rsnotify.format.coverage import Change
from rsnotify.format.datetimes import to_microseconds
from rsnotify_subscriber import FolderMirror, FollowOptions, Subscriber


def print_committed(changes: Sequence[Change]) -> None:
    now = time.time_ns() // 1000
    lines = [f"{to_microseconds(change.at)} {now}\n" for change in changes]
    sys.stdout.write("".join(lines))
    sys.stdout.flush()


async def in_step(subscriber: Subscriber) -> None:
    """Wait until the copy is level and push works."""
    while True:
        status = subscriber.status
        if status.level and status.push == "up":
            return
        await asyncio.sleep(0.05)


async def main(url: str, folder: Path) -> None:
    subscriber = Subscriber(
        url,
        FolderMirror(folder),
        state=folder.with_suffix(".state"),
        options=FollowOptions(allow_private_addresses=True),
        on_committed=print_committed,
    )
    async with subscriber:
        await in_step(subscriber)
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
