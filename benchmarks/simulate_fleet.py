"""How long Sources pause when processes that share them come and go: `make simulate-fleet`.

    python simulate_fleet.py [SOURCES] [PROCESSES]

The decisions are those of `rsnotify follow --config`; the clock and the database are simulated. A
Source pauses while it has no valid lease. A transaction takes no time, and neither does the start
of a Source, of which a process begins with some at a time (`shared_fleet.py` measures these).
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from rsnotify_subscriber.fleet.leases import LEASE_DURATION, RENEWAL_INTERVAL
from tests.subscriber.fleet.simulated_fleet import World

SOURCES, PROCESSES = 10_000, 40
#: Seconds between two looks at the leases, and for which a scenario may last.
STEP, MOST = 0.25, 120.0


class Pauses:
    """How long Sources are not followed, and how many change their process."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._owners = self._followed()
        self._since: dict[str, float] = {}
        self.paused: dict[str, float] = {}
        self.moved: set[str] = set()

    def _followed(self) -> dict[str, object]:
        return {source: one for one in self._world.processes for source in one.followed()}

    def look(self) -> None:
        now, owners = self._world.tables.now, self._followed()
        for source in self._world.sources:
            if source not in owners:
                self._since.setdefault(source, now)
            elif source in self._since:
                pause = now - self._since.pop(source)
                self.paused[source] = max(pause, self.paused.get(source, 0.0))
            if source in owners and owners[source] is not self._owners.get(source):
                self.moved.add(source)
                self._owners[source] = owners[source]

    def pass_time(self, seconds: float) -> None:
        until = self._world.tables.now + seconds
        while self._world.tables.now < until:
            self._world.pass_time(STEP)
            self.look()

    @property
    def is_divided(self) -> bool:
        shares = self._world.followed()
        return (
            not self._since
            and sum(shares) == len(self._world.sources)
            and shares[-1] - shares[0] <= 1
        )


def scenarios(world: World) -> dict[str, Callable[[Pauses], None]]:
    count = len(world.processes)

    def kill(processes: int) -> None:
        for one in world.random.sample(world.processes, processes):
            world.processes.remove(one)

    def leave() -> None:
        world.processes.pop().share.leave()

    def start(processes: int) -> None:
        for _ in range(processes):
            world.start()

    def lose_database(pauses: Pauses) -> None:
        for one in world.processes:
            one.access.is_away = True
        pauses.pass_time(10.0)
        for one in world.processes:
            one.access.is_away = False

    tenth = max(1, count // 10)
    return {
        "one process is killed": lambda _: kill(1),
        "one is started": lambda _: start(1),
        "one ends": lambda _: leave(),
        f"{tenth} are killed at once": lambda _: kill(tenth),
        f"{tenth + 1} are started at once": lambda _: start(tenth + 1),
        "the database is away for 10 s": lose_database,
    }


def main() -> None:
    """Print the pauses of each scenario."""
    numbers = [*map(int, sys.argv[1:]), *(SOURCES, PROCESSES)[len(sys.argv) - 1 :]]
    sources, processes = numbers
    world = World(1, calm=True, sources=frozenset(map(str, range(sources))))
    for _ in range(processes):
        world.start()
    world.pass_time(LEASE_DURATION + 12 * RENEWAL_INTERVAL)
    print(f"# {sources:,} Sources, {processes:,} processes")
    print(f"{'':34}{'moved':>8}{'paused':>8}{'longest':>9}{'divided after':>15}")
    for name, happen in scenarios(world).items():
        pauses, began = Pauses(world), world.tables.now
        happen(pauses)
        pauses.look()
        while not pauses.is_divided and world.tables.now - began < MOST:
            pauses.pass_time(STEP)
        longest = max(pauses.paused.values(), default=0.0)
        took = world.tables.now - began
        divided = f"{took:.1f} s" if pauses.is_divided else "never"
        print(
            f"{name:34}{len(pauses.moved):>8,}{len(pauses.paused):>8,}{longest:>7.1f} s"
            f"{divided:>15}",
            flush=True,
        )


if __name__ == "__main__":
    main()
