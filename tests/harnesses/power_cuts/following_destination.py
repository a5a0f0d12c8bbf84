"""A Destination that follows a Source until it is stopped, and flushes more often than others.

python -m tests.harnesses.power_cuts.following_destination URL MIRROR STATE
"""

from __future__ import annotations

import asyncio
import signal
import sys

from rsnotify_subscriber import FolderMirror, FollowOptions, Subscriber
from rsnotify_subscriber.following import following as progress_saver
from tests.subscriber.destination import PACE


async def main() -> None:
    url, mirror, state = sys.argv[1:]
    progress_saver._FLUSH_INTERVAL = 0.2
    options = FollowOptions(pace=PACE, allow_private_addresses=True)
    subscriber = Subscriber(url, FolderMirror(mirror), state=state, options=options)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, subscriber.stop)
    await subscriber.run()


if __name__ == "__main__":
    asyncio.run(main())
