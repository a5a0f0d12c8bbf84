"""Kill nodes of a hub and NATS servers at any instant while a history is replayed; all end equal.

    python -m tests.end_to_end.cluster_killing --data history.jsonl.xz
    python -m tests.end_to_end.cluster_killing --seed 7 --rate 50

Three nodes share three NATS servers. Callbacks, WebSockets and MQTT clients follow the Source by
the fragments alone, so that whatever was acknowledged to the Source and not delivered would be a
gap. A Destination follows, too.

Exit code 0 means: no subscriber saw a gap, or deliveries of two nodes at once; all have what the
Source has; the Destination is in step, and no change had its effect twice; and no subscription was
lost.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import cycle
from pathlib import Path

import aiohttp

from rsnotify.runtime.processes import Process, ProcessError
from tests.end_to_end import history
from tests.end_to_end.copies import Copy, callback_copies, mqtt_copies, socket_copies
from tests.end_to_end.counting import counting, doubles
from tests.end_to_end.stage import PATIENCE, Stage
from tests.hub.helpers import Client
from tests.hub.jetstream.fast_node import start_fast
from tests.hub.jetstream.hubs import SHARDS
from tests.nats_servers import NatsCluster, running_nats

NODES = ("node1", "node2", "node3")
#: How likely it is that a kill leaves NATS without a majority for a while.
_NO_MAJORITY = 0.1


class ClusterStage(Stage):
    """A Source, three nodes of a hub with a broker, and a Destination."""

    def __init__(self, root: Path, nats: NatsCluster, *, fast: bool) -> None:
        follow = counting("--via", "websocket")
        super().__init__(root, (*NODES, "mqtt"), follow, nats.url)
        self._fast = fast

    @property
    def nodes(self) -> list[str]:
        return [f"http://{at}/" for at in self._hubs.values()]

    async def _start(self, *arguments: str, name: str | None = None) -> Process:
        if not self._fast or arguments[0] != "hub":
            return await super()._start(*arguments, name=name)
        assert name is not None
        log = self.root / f"{name}.log"
        self._processes[name] = process = await start_fast(*arguments, log=log)
        return process

    async def restart(self, name: str) -> None:
        await self._processes[name].stop()
        await self.revive(name)
        await self.shared()

    async def shared(self) -> None:
        """Wait until all shards have owners, and each node has some."""
        async with asyncio.timeout(PATIENCE), aiohttp.ClientSession() as session:
            while True:
                rows = (await Client(self.nodes[0], session).admin("GET", "nodes"))["rows"]
                counts = [row["shards"] for row in rows if row["shards"]]
                if len(counts) == len(NODES) and sum(counts) == (SHARDS if self._fast else 64) + 1:
                    return
                await asyncio.sleep(0.1)


class Killer:
    """Kills nodes and servers, and starts them again."""

    def __init__(
        self, stage: ClusterStage, nats: NatsCluster, chance: random.Random, pause: float
    ) -> None:
        self._stage = stage
        self._nats = nats
        self._chance = chance
        self._pause = pause
        self._down: set[str] = set()
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._began = time.monotonic()
        self.kills = Counter[str]()
        self.refusals = 0

    async def run(self, rounds: int | None) -> None:
        """Kill so often, or until it is cancelled."""
        while rounds is None or self.kills.total() < rounds:
            # At any instant: this wait stands for no event.
            await asyncio.sleep(self._chance.uniform(0, self._pause))
            if self._down and self._chance.random() < 0.5:
                self._revive(self._chance.choice(sorted(self._down)))
            else:
                await self._kill(self._chance.choice([*NODES, *self._nats.servers]))

    async def _kill(self, name: str) -> None:
        down = self._down & self._nats.servers.keys()
        is_safe = name in NODES or not down
        if name in self._down | self._starting.keys():
            return
        if not is_safe and (len(down) > 1 or self._chance.random() >= _NO_MAJORITY):
            return
        self._log(f"kill {name}")
        self.kills[name] += 1
        self._down.add(name)
        if name in NODES:
            await self._stage.kill(name)
        else:
            await asyncio.to_thread(self._nats.servers[name].stop, signal.SIGKILL)

    def _revive(self, name: str) -> None:
        self._log(f"start {name}")
        self._down.discard(name)
        if name in NODES:
            task = self._starting[name] = asyncio.create_task(self._start(name))
            task.add_done_callback(lambda _: self._starting.pop(name))
        else:
            self._nats.servers[name].start()

    async def _start(self, name: str) -> None:
        while True:
            try:
                await self._stage.revive(name)
                return
            except ProcessError:
                self.refusals += 1

    def _log(self, event: str) -> None:
        print(f"{time.monotonic() - self._began:7.2f} s: {event}", flush=True)

    async def end(self) -> None:
        for name in sorted(self._down):
            self._revive(name)
        await asyncio.to_thread(self._nats.wait)
        await asyncio.gather(*self._starting.values())


async def subscribe(stage: ClusterStage, topic: str, urls: Sequence[str]) -> None:
    """Subscribe callbacks at the nodes in turn, and wait until all are confirmed."""
    async with aiohttp.ClientSession() as session:
        clients = [Client(node, session) for node in stage.nodes]
        for client, url in zip(cycle(clients), urls, strict=False):
            form = {"mode": "subscribe", "topic": topic, "callback": url}
            # Shards have no owner yet.
            while (await client.form(**form))[0] == 503:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.1)
        await clients[0].subscriptions(lambda rows: len(rows) == len(urls), limit="1000")


def hashes_of(folder: Path) -> Counter[str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return Counter("sha-256:" + hashlib.sha256(file.read_bytes()).hexdigest() for file in files)


async def all_equal(copies: Sequence[Copy], folder: Path) -> None:
    wanted = await asyncio.to_thread(hashes_of, folder)
    deadline = time.monotonic() + PATIENCE
    while different := [c for c in copies if Counter(c.hashes.values()) != wanted]:
        if time.monotonic() > deadline:
            names = ", ".join(copy.name for copy in different)
            raise AssertionError(f"not equal: {names}")
        await asyncio.sleep(0.2)


def check(copies: Sequence[Copy]) -> None:
    """Check that nothing happened to a copy that must not."""
    faults = [f"{copy.name}: {fault}" for copy in copies for fault in copy.faults]
    assert not faults, faults[:10]
    for copy in copies:
        assert copy.hashes == copies[0].hashes, copy.name


async def killing(
    root: Path,
    nats: NatsCluster,
    steps: Sequence[history.Step],
    *,
    chance: random.Random,
    callbacks: int,
    sockets: int,
    clients: int,
    rate: float,
    rounds: int | None = None,
    pause: float = 6.0,
    fast: bool = False,
) -> None:
    """Replay, kill, and check; print figures."""
    async with AsyncExitStack() as stack:
        stage = ClusterStage(root, nats, fast=fast)
        stack.push_async_callback(stage.stop)
        await stage.start()
        topic = stage.url + "channel.xml"
        assert stage.broker is not None
        called = await stack.enter_async_context(callback_copies(callbacks))
        await subscribe(stage, topic, [copy.url for copy in called])
        connected = await stack.enter_async_context(socket_copies(sockets, topic, stage.nodes))
        listening = await stack.enter_async_context(mqtt_copies(clients, topic, stage.broker.url))
        copies: list[Copy] = [*called, *connected, *listening]
        await stage.hears_by("websocket")
        history.apply(steps[:1], stage.source_folder)
        await all_equal(copies, stage.source_folder)

        began = time.monotonic()
        killer = Killer(stage, nats, chance, pause)
        killing = asyncio.create_task(killer.run(rounds))
        await asyncio.to_thread(history.apply, steps[1:], stage.source_folder, rate)
        if rounds is None:
            killing.cancel()
        await asyncio.gather(killing, return_exceptions=rounds is None)
        await killer.end()
        ended = time.monotonic()
        print(f"{len(steps)} changes in {ended - began:.0f} s; all is started again", flush=True)
        try:
            await all_equal(copies, stage.source_folder)
        finally:
            print_figures(killer, called, connected, listening)
            await print_state(stage)
        print(f"all subscribers are equal {time.monotonic() - ended:.1f} s after", flush=True)
        check(copies)
        assert await stage.in_step(), stage.difference()[:2000]
        assert not doubles(stage.destination)
        async with aiohttp.ClientSession() as session:
            for node in stage.nodes:
                await Client(node, session).subscriptions(
                    lambda rows: (
                        len({row["id"] for row in rows}) == len(rows) == len(called)
                        and all(row["behind"] == 0 for row in rows)
                    ),
                    limit="1000",
                )


async def print_state(stage: ClusterStage) -> None:
    async with aiohttp.ClientSession() as session:
        for node in stage.nodes:
            print((await Client(node, session).get("admin/nodes"))[1])
            print((await Client(node, session).get("admin/subscriptions?sort=trouble&limit=3"))[1])


def print_figures(killer: Killer, *groups: Sequence[Copy]) -> None:
    kills = ", ".join(f"{name} {count}" for name, count in sorted(killer.kills.items()))
    print(f"kills: {killer.kills.total()} ({kills}); starts refused: {killer.refusals}")
    for name, group in zip(("callbacks", "WebSockets", "MQTT clients"), groups, strict=True):
        fragments = sum(copy.fragments for copy in group)
        repeats = sum(copy.repeats for copy in group)
        faults = sum(len(copy.faults) for copy in group)
        print(
            f"{len(group)} {name}: {fragments} fragments, {repeats} of them repeated, "
            f"{faults} faults",
            flush=True,
        )
        for copy in group:
            for fault in copy.faults[:3]:
                print(f"  {copy.name}: {fault}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="a history, .jsonl or .jsonl.xz; else made up")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--callbacks", type=int, default=50)
    parser.add_argument("--sockets", type=int, default=200)
    parser.add_argument("--clients", type=int, default=3, help="MQTT clients")
    parser.add_argument("--steps", type=int, help="only so many steps of the history")
    parser.add_argument("--rate", type=float, default=25, help="changes a second")
    parser.add_argument("--pause", type=float, default=6, help="the longest pause between events")
    parser.add_argument("--keep", type=Path, help="a folder to keep everything in")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    steps = list(history.read(arguments.data) if arguments.data else history.make_up(4_000))
    with tempfile.TemporaryDirectory(prefix="rsnotify-killing-") as name:
        root = arguments.keep or Path(name)
        root.mkdir(parents=True, exist_ok=True)
        with running_nats(root / "nats", servers=3) as nats:
            asyncio.run(
                killing(
                    root,
                    nats,
                    steps[: arguments.steps],
                    chance=random.Random(arguments.seed),
                    callbacks=arguments.callbacks,
                    sockets=arguments.sockets,
                    clients=arguments.clients,
                    rate=arguments.rate,
                    pause=arguments.pause,
                )
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
