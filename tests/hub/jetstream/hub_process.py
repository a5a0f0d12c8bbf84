"""A hub of a cluster in a process of its own, which can be stopped and continued."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from subprocess import Popen

from msgspec import Struct

from rsnotify_jetstream.nats_settings import NatsSettings
from tests.hub.helpers import Clock
from tests.hub.jetstream.callbacks import CallbackPorts
from tests.hub.jetstream.hubs import SHORT_LEASES, ClusterHub, running_hubs, settled
from tests.hub.jetstream.nodes import prefixed
from tests.waiting import PATIENCE, until


@contextmanager
def hub_process(settings: NatsSettings, name: str, module: str) -> Iterator[Popen[bytes]]:
    """Run a hub until the end of the block."""
    (url,) = settings.servers
    command = (sys.executable, "-m", module, url, settings.prefix, name)
    process = Popen(command, cwd=Path(__file__).parents[3])
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE)


class TwoHubs(Struct, frozen=True):
    """A hub in this process, and one in another.

    Attributes:
        here: The hub in this process.
        process: The other process.
        other: The node of the other hub.
        theirs: The callbacks that the other hub delivers to.
        published: The second that all callbacks have received.
    """

    here: ClusterHub
    process: Popen[bytes]
    other: str
    theirs: set[str]
    published: int


@asynccontextmanager
async def two_hubs(
    settings: NatsSettings,
    clock: Clock,
    callbacks: CallbackPorts,
    module: str = "tests.hub.jetstream.hub_process",
) -> AsyncIterator[TwoHubs]:
    """Run two hubs that deliver to all callbacks, the other one from a module."""
    async with running_hubs(settings, clock, SHORT_LEASES) as hubs:
        here = await hubs.start("here")
        nodes = here.store.node.nodes
        await settled([here])
        with hub_process(settings, "other", module) as process:
            await until(lambda: len(nodes) == 2)
            (other,) = nodes.keys() - {here.store.node.id}
            await settled([here], other)
            for url in callbacks.urls:
                await here.request(url)
            mine = {url for url in callbacks.urls if here.owns(url)}
            await until(lambda: here.urls == mine)
            theirs = set(callbacks.urls) - mine
            # Its subscriptions are confirmed once it has stored them, which it alone knows.
            second = 0
            while not all(url in callbacks.received for url in theirs):
                second += 1
                await here.publish(second)
                await callbacks.all_have(second, mine)
            await callbacks.all_have(second)
            yield TwoHubs(here, process, other, theirs, second)


async def main(url: str, prefix: str, name: str) -> None:
    async with running_hubs(prefixed(url, prefix), Clock(), SHORT_LEASES) as hubs:
        await hubs.start(name)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
