"""Which faults happen when, by a seed, and how each is brought about."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence, Set
from datetime import timedelta
from random import Random
from signal import SIGKILL, SIGTERM, Signals

from msgspec import Struct

from tests.harnesses.torture.deployment import WAYS
from tests.harnesses.torture.scene import Scene
from tests.harnesses.torture.services import SERVICES

PARTS = ("source", "hub", *WAYS)
PATHS = (
    *("read", "publish", "subscribe", "deliver"),
    *("hub to mosquitto", "mqtt to mosquitto", "hub to nats"),
    *("hub to prosody", "xmpp to prosody", "database to postgresql"),
)
_HOUR, _DAY = timedelta(hours=1).total_seconds(), timedelta(days=1).total_seconds()
_MOMENT = 10.0
#: What a fault may be, and what of.
KINDS: dict[str, Sequence[str]] = {
    "kill": PARTS,
    # Acknowledging before the commit shows only if the Source is killed in between.
    "kill when recorded": ("source",),
    "restart": PARTS,
    "suspend": (*PARTS, *SERVICES),
    "kill service": SERVICES,
    "restart service": SERVICES,
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
#: Those that end a process of ours: by a signal, or by a command.
ENDINGS: dict[str, Signals | str] = {
    "kill": SIGKILL,
    "kill when recorded": "die",
    "restart": SIGTERM,
}
#: Those that leave each process of ours running.
GENTLE = tuple(kind for kind in KINDS if kind not in ENDINGS)


class Fault(Struct, frozen=True):
    """What goes wrong, and for how long."""

    kind: str
    target: str
    wait: float
    seconds: float
    amount: float

    def __str__(self) -> str:
        return f"{self.kind} of {self.target} for {self.seconds:.1f} s ({self.amount:.2f})"


def draw(
    random: Random, number: int, targets: Set[str], pause: float, kinds: Sequence[str] = ()
) -> list[Fault]:
    """Draw so many faults of these targets, each at most twice `pause` after the one before.

    Without `kinds`, they are of all kinds.
    """
    choice = {
        kind: found
        for kind, each in KINDS.items()
        if (not kinds or kind in kinds) and (found := [one for one in each if one in targets])
    }
    return [
        Fault(
            kind := random.choice(sorted(choice)),
            random.choice(choice[kind]),
            wait=random.uniform(0, 2 * pause),
            seconds=random.choice([0.1, 0.5, 1.0, 2.5]),
            amount=random.random(),
        )
        for _ in range(number)
    ]


class Faults:
    """Brings faults about."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._of = scene.deployment
        self._locks: dict[str, asyncio.Lock] = {}

    async def happen(self, fault: Fault) -> None:
        """Begin and end one, after another one of the same target has ended."""
        async with self._locks.setdefault(fault.target, asyncio.Lock()):
            if fault.target == "once":
                await self._scene.once()
            elif fault.target in self._of.parts:
                await self._of_part(fault)
            elif fault.target in self._of.services:
                await self._of_service(fault)
            else:
                await self._of_path(fault)

    async def _of_part(self, fault: Fault) -> None:
        part, seconds = self._of.parts[fault.target], fault.seconds
        if fault.kind in ENDINGS:
            await part.end_for(seconds, ENDINGS[fault.kind])
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

    async def _of_service(self, fault: Fault) -> None:
        service = self._of.services[fault.target]
        if fault.target == "nats":
            # A hub that starts meanwhile ends with an error.
            self._of.parts["hub"].excused = True
        if fault.kind == "suspend":
            service.pause()
            await asyncio.sleep(fault.seconds)
            service.resume()
        else:
            await service.stop(SIGKILL if fault.kind == "kill service" else SIGTERM)
            await asyncio.sleep(fault.seconds)
            await service.start()

    async def _of_path(self, fault: Fault) -> None:
        path = self._of.paths[fault.target]
        if fault.target == "hub to nats":
            self._of.parts["hub"].excused = True
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
