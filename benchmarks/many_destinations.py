"""Many Destinations for `inline.py` in a separate process; each stores a state, and no content.

`many_destinations.py URL COUNT FOLDER` prints `ready` once all are level and push works, then a
line for each change that a Destination has durably applied: `durable`, the change's datetime and
the time of its commit, both in microseconds since 1970.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from destination import in_step, note_committed, print_lines

from rsnotify.runtime.tasks import running
from rsnotify_subscriber import FollowOptions, Received, Subscriber

#: How many start at once.
_AT_ONCE = 25


async def ignore(change: Received) -> None:
    """Ignore the content, which was fetched and verified."""


def subscriber(url: str, folder: Path) -> Subscriber:
    options = FollowOptions(allow_private_addresses=True)
    return Subscriber(url, ignore, state=folder, options=options, on_committed=note_committed)


async def main(url: str, count: int, folder: Path) -> None:
    destinations = [subscriber(url, folder / str(number)) for number in range(count)]
    async with AsyncExitStack() as stack:
        for first in range(0, count, _AT_ONCE):
            some = destinations[first : first + _AT_ONCE]
            for destination in some:
                await stack.enter_async_context(destination)
            await asyncio.gather(*(in_step(destination, "up") for destination in some))
        print("ready", flush=True)
        async with running(print_lines()):
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
