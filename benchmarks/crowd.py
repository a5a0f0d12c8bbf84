"""Many Destinations of `inline.py` in a process of their own; each keeps a state, and no content.

`crowd.py URL COUNT FOLDER` prints `ready` once all are level and push works, then a line for each
change that one of them has applied, durably: the change's datetime and the time of its commit,
both in microseconds since 1970.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from destination import in_step, told

from rsnotify_subscriber import FollowOptions, Received, Subscriber

#: How many begin at once.
_AT_ONCE = 25


async def take(change: Received) -> None:
    """Have no use for the content, which was brought and verified."""


def subscriber(url: str, folder: Path) -> Subscriber:
    return Subscriber(
        url,
        take,
        state=folder,
        on_committed=told,
        options=FollowOptions(allow_private_addresses=True),
    )


async def main(url: str, count: int, folder: Path) -> None:
    crowd = [subscriber(url, folder / str(number)) for number in range(count)]
    async with AsyncExitStack() as stack:
        for first in range(0, count, _AT_ONCE):
            some = crowd[first : first + _AT_ONCE]
            for one in some:
                await stack.enter_async_context(one)
            await asyncio.gather(*map(in_step, some))
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
