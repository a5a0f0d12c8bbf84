"""Which faults happen when, by a seed, and how each is brought about."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from random import Random
from signal import SIGKILL

from msgspec import Struct

from tests.torture.scene import Scene

PARTS = ("source", "hub", "websocket", "websub", "mqtt", "poll")
PATHS = ("read", "publish", "subscribe", "deliver", "bridge", "broker")
_HOUR, _DAY = timedelta(hours=1).total_seconds(), timedelta(days=1).total_seconds()
_MOMENT = 10.0
#: What a fault may be, and what of.
KINDS: dict[str, Sequence[str]] = {
    "kill": (*PARTS, "broker"),
    "suspend": (*PARTS, "broker"),
    "disk full": PARTS,
    "failing writes": PARTS,
    "reset": PATHS,
    "cut": PATHS,
    "stall": PATHS,
    "delay": PATHS,
    "shuffle": ("publish", "subscribe", "deliver"),
    "clock": PARTS,
    "follow --once": ("once",),
}
#: Those that end no process.
GENTLE = tuple(kind for kind in KINDS if kind != "kill")


class Fault(Struct, frozen=True):
    """What goes wrong, and for how long.

    Args:
        kind: One of `KINDS`.
        target: What of.
        wait: Seconds after the one before.
        seconds: How long it lasts.
        amount: Between 0 and 1: how much.
    """

    kind: str
    target: str
    wait: float
    seconds: float
    amount: float

    def __str__(self) -> str:
        return f"{self.kind} of {self.target} for {self.seconds:.1f} s ({self.amount:.2f})"


def draw(random: Random, number: int, kinds: Sequence[str], only: str, pause: float) -> list[Fault]:
    """Draw so many faults of these kinds, each at most twice `pause` after the one before.

    With `only`, all are of this target.
    """
    found = []
    kinds = [kind for kind in kinds if not only or only in KINDS[kind]]
    for _ in range(number):
        kind = random.choice(kinds)
        target = only or random.choice(KINDS[kind])
        wait, seconds = random.uniform(0, 2 * pause), random.choice([0.1, 0.5, 1.0, 2.5])
        found.append(Fault(kind, target, wait, seconds, random.random()))
    return found


class Faults:
    """Brings faults about.

    Args:
        scene: What they happen to.
    """

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._locks: dict[str, asyncio.Lock] = {}

    async def happen(self, fault: Fault) -> None:
        """Let one begin and end; after another one of the same target has ended."""
        async with self._locks.setdefault(fault.target, asyncio.Lock()):
            if fault.target in self._scene.paths and fault.kind not in ("kill", "suspend"):
                await self._of_path(fault)
            elif fault.target in self._scene.parts:
                await self._of_part(fault)
            elif fault.target == "broker":
                await self._of_broker(fault)
            elif fault.target == "once":
                await self._scene.once()

    async def _of_part(self, fault: Fault) -> None:
        part, seconds = self._scene.parts[fault.target], fault.seconds
        if fault.kind == "kill":
            await part.kill_for(seconds)
        elif fault.kind == "suspend":
            await part.stop_for(seconds)
        elif fault.kind == "disk full" and part.disk.mounted:
            await part.fill_for(seconds)
        elif fault.kind in ("disk full", "failing writes"):
            await part.limit_for(seconds, int(fault.amount**4 * 1_000_000))
        else:
            # Until the time comes that a Source was ahead by, no baseline of it counts as complete.
            ahead = _MOMENT if fault.target == "source" else _DAY
            offset = [-_HOUR, 0.9 * ahead, 1.1 * ahead, 0.0][int(fault.amount * 4)]
            # The library that fakes the clock notices within a second.
            await part.clock_for(seconds + 1, offset, frozen=not offset)

    async def _of_broker(self, fault: Fault) -> None:
        broker = self._scene.broker
        if broker is None:
            return
        if fault.kind == "kill":
            await broker.stop(SIGKILL)
            await asyncio.sleep(fault.seconds)
            await broker.start()
        else:
            broker.pause()
            await asyncio.sleep(fault.seconds)
            broker.resume()

    async def _of_path(self, fault: Fault) -> None:
        path = self._scene.paths[fault.target]
        if fault.kind == "reset":
            path.refuses = True
            path.reset()
            await asyncio.sleep(fault.seconds)
            path.refuses = False
        elif fault.kind == "cut":
            path.cut_after = int(fault.amount**2 * 20_000)
            await asyncio.sleep(fault.seconds)
            path.cut_after = None
        elif fault.kind == "stall":
            path.open.clear()
            await asyncio.sleep(fault.seconds)
            path.open.set()
        elif fault.kind == "delay":
            path.delay = fault.amount * 0.3
            await asyncio.sleep(fault.seconds)
            path.delay = 0.0
        else:
            path.shuffles = True
            await asyncio.sleep(fault.seconds + 1)
            path.shuffles = False
