"""Which faults happen, by a seed, and how each is brought about."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from random import Random
from signal import SIGKILL, SIGTERM

from msgspec import Struct

from tests.harnesses.cluster.deployment import NODES, SERVERS, Deployment
from tests.harnesses.torture.parts import CLOCKS

#: How wrong a clock is, in seconds; None stands still. A day more, and leases of ten days end soon.
_OFFSETS = (-13.0, 13.0, -3600.0, timedelta(days=1).total_seconds(), None)


class Happened(Struct):
    """A fault that has happened.

    Args:
        kind: Its kind.
        what: What was done, in words.
        began: When it began.
        ended: When all that it stopped ran again.
        lost: When the NATS servers lost their majority, if they did.
        elected: When their stream had a leader again after that.
    """

    kind: str
    what: str
    began: float
    ended: float = 0.0
    lost: float | None = None
    elected: float | None = None


class Faults:
    """Brings faults about in a deployment, by a seed.

    Args:
        deployment: What they befall.
        random: Decides everything.
        old: The NATS server whose old store is restored.
    """

    def __init__(self, deployment: Deployment, random: Random, old: str) -> None:
        self._of = deployment
        self._random = random
        self._old = old
        self._deck: list[str] = []
        self._starting: dict[str, asyncio.Task[None]] = {}

    def draw(self) -> str:
        """Return the next kind: each once, in random order, before one comes again."""
        if not self._deck:
            self._deck = sorted(KINDS)
            self._random.shuffle(self._deck)
        return self._deck.pop()

    async def happen(self, kind: str) -> Happened:
        fault = Happened(kind, kind, time.monotonic())
        await KINDS[kind](self, fault)
        fault.ended = fault.ended or time.monotonic()
        return fault

    def _seconds(self) -> float:
        return self._random.choice([0.5, 2.0, 5.0, 9.0])

    def _say(self, fault: Happened, what: str) -> None:
        fault.what = what
        print(f"  {what}", flush=True)

    # Hubs

    async def restart_hub(self, name: str, what: str) -> Happened:
        """Restart a hub in order, and wait until all shards have owners."""
        fault = Happened("restart the hubs", what, time.monotonic())
        await self._of.end_hub(name, 0.0, SIGTERM)
        await self._of.until_shared()
        fault.ended = time.monotonic()
        return fault

    async def _kill_hub(self, fault: Happened) -> None:
        name, seconds = self._random.choice(NODES), self._seconds()
        self._say(fault, f"kill {name} for {seconds} s")
        await self._of.end_hub(name, seconds, SIGKILL)

    async def _kill_hubs(self, fault: Happened) -> None:
        names, seconds = self._random.sample(NODES, 2), self._seconds()
        self._say(fault, f"kill {' and '.join(names)} for {seconds} s")
        await asyncio.gather(*(self._of.end_hub(name, seconds, SIGKILL) for name in names))

    async def _suspend_hub(self, fault: Happened) -> None:
        name, seconds = self._random.choice(NODES), self._seconds()
        self._say(fault, f"suspend {name} for {seconds} s")
        await self._of.suspend_hub(name, seconds)

    async def _restart_hubs(self, fault: Happened) -> None:
        names = self._random.sample(NODES, len(NODES))
        self._say(fault, f"restart {', '.join(names)} in order")
        for name in names:
            await self._of.end_hub(name, 0.0, SIGTERM)
            await self._of.until_shared()

    async def _wrong_clock(self, fault: Happened) -> None:
        name, offset = self._random.choice(NODES), self._random.choice(_OFFSETS)
        seconds = 3.0 + self._seconds()
        is_frozen = offset is None
        how = "stands still" if is_frozen else f"is wrong by {offset:+.0f} s"
        self._say(fault, f"the clock of {name} {how} for {seconds} s")
        await self._of.parts[name].clock_for(seconds, offset or 0, frozen=is_frozen)

    # NATS servers

    async def _kill_server(self, fault: Happened) -> None:
        name, seconds = self._random.choice(SERVERS), self._seconds()
        leads = " (leader)" if name == await self._of.leader() else ""
        self._say(fault, f"kill {name}{leads} for {seconds} s")
        await self._of.stop_server(name)
        await asyncio.sleep(seconds)
        self._of.servers[name].start()
        await self._of.until_healthy(name)

    async def _suspend_server(self, fault: Happened) -> None:
        await self._suspend(fault, self._random.choice(SERVERS))

    async def _suspend_leader(self, fault: Happened) -> None:
        await self._suspend(fault, await self._of.until_led())

    async def _suspend(self, fault: Happened, name: str) -> None:
        seconds = self._seconds()
        leads = " (leader)" if name == await self._of.leader() else ""
        self._say(fault, f"suspend {name}{leads} for {seconds} s")
        self._of.servers[name].pause()
        await asyncio.sleep(seconds)
        self._of.servers[name].resume()
        await self._of.until_healthy(name)

    async def _restart_servers(self, fault: Happened) -> None:
        names = self._random.sample(SERVERS, len(SERVERS))
        self._say(fault, f"restart {', '.join(names)} in order")
        for name in names:
            await self._of.restart_server(name)

    async def _kill_majority(self, fault: Happened) -> None:
        names, seconds = self._majority()
        self._say(fault, f"kill {' and '.join(names)} for {seconds} s")
        await asyncio.gather(*(self._of.stop_server(name) for name in names))
        await self._without_majority(fault, seconds)
        for name in names:
            self._of.servers[name].start()
        await self._elect(fault, names)

    async def _suspend_majority(self, fault: Happened) -> None:
        names, seconds = self._majority()
        self._say(fault, f"suspend {' and '.join(names)} for {seconds} s")
        for name in names:
            self._of.servers[name].pause()
        await self._without_majority(fault, seconds)
        for name in names:
            self._of.servers[name].resume()
        await self._elect(fault, names)

    def _majority(self) -> tuple[list[str], float]:
        return self._random.sample(SERVERS, 2), self._random.choice([6.0, 10.0, 20.0])

    async def _without_majority(self, fault: Happened, seconds: float) -> None:
        """Wait, and perhaps kill a hub, which cannot start before the majority returns."""
        fault.lost = time.monotonic()
        if self._random.random() < 0.3:
            name = self._random.choice(NODES)
            self._say(fault, f"{fault.what}, and kill {name} meanwhile")
            self._starting[name] = asyncio.create_task(self._of.kill_meanwhile(name))
        await asyncio.sleep(seconds)
        fault.ended = time.monotonic()

    async def _elect(self, fault: Happened, names: list[str]) -> None:
        await self._of.until_led()
        fault.elected = time.monotonic()
        for name in names:
            await self._of.until_healthy(name)
        while self._starting:
            await self._starting.popitem()[1]

    async def _old_store(self, fault: Happened) -> None:
        name = self._old
        self._say(fault, f"restore an old store of {name}")
        await self._of.stop_server(name)
        await asyncio.to_thread(self._of.restore_store, name)
        self._of.servers[name].start()
        await self._of.until_healthy(name)


#: All kinds of faults.
KINDS: Mapping[str, Callable[[Faults, Happened], Awaitable[None]]] = {
    "kill a hub": Faults._kill_hub,
    "kill two hubs": Faults._kill_hubs,
    "suspend a hub": Faults._suspend_hub,
    "kill a NATS server": Faults._kill_server,
    "suspend a NATS server": Faults._suspend_server,
    "suspend the leader": Faults._suspend_leader,
    "kill a majority": Faults._kill_majority,
    "suspend a majority": Faults._suspend_majority,
    "restart the hubs": Faults._restart_hubs,
    "restart the NATS servers": Faults._restart_servers,
    **({"wrong clock": Faults._wrong_clock} if CLOCKS else {}),
    "old store": Faults._old_store,
}
