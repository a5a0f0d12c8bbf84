"""A hub of a cluster in a process of its own, which can be stopped and continued."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

from rsnotify_jetstream.settings import NatsSettings
from tests.hub.helpers import Clock
from tests.hub.jetstream.hubs import SHORT_LEASES, running_hubs
from tests.hub.jetstream.nodes import prefixed

#: Seconds; only what hangs takes them.
PATIENCE = 60


@contextmanager
def hub_process(
    settings: NatsSettings, name: str, module: str = "tests.hub.jetstream.hub_process"
) -> Iterator[Popen[bytes]]:
    """Run a hub until the end of the block."""
    (url,) = settings.servers
    command = (sys.executable, "-m", module, url, settings.prefix, name)
    process = Popen(command, cwd=Path(__file__).parents[3])
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE)


async def main(url: str, prefix: str, name: str) -> None:
    async with running_hubs(prefixed(url, prefix), Clock(), SHORT_LEASES) as hubs:
        await hubs.start(name)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
