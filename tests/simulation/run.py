"""Run seeds: `python -m tests.simulation.run SEED...`, or `--seeds 1-2000`."""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import logging
import os
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

from rsnotify.format.datetimes import from_microseconds
from tests.simulation.loop import SimulatedLoop
from tests.simulation.network import Network
from tests.simulation.patching import simulating
from tests.simulation.world import DestinationMachine, HubMachine, Simulated, SourceMachine, Wrong

_RESOURCES = 6
_CONVERGENCE = 1_800.0


class Run:
    def __init__(self, seed: int, folder: Path, *, verbose: bool) -> None:
        self.loop = SimulatedLoop(seed)
        self.network = Network(self.loop)
        self.verbose = verbose
        self.source = SourceMachine(self.loop, self.network, folder / "source")
        self.hub = HubMachine(self.loop, self.network, folder / "hub")
        self.destinations = [
            DestinationMachine(self.loop, self.network, folder, name, self.source)
            for name in ("near", "far")
        ]
        self.machines: list[Simulated] = [self.source, self.hub, *self.destinations]

    def note(self, text: str) -> None:
        if self.verbose:
            print(f"{self.loop.now:10.4f} {self.loop.steps:7} {text}")

    async def play(self) -> None:
        random = self.loop.random
        for each in self.machines:
            each.start()
        await asyncio.sleep(1)
        for _ in range(random.randint(10, 40)):
            self.act()
            await asyncio.sleep(random.choice((0.0, 0.0, 0.001, 0.01, 0.1, 1.0, 10.0)))
            self.check()
        self.network.heal()
        for each in self.machines:
            if each.machine is None:
                each.start()
        self.note("faults end")
        await self.converge()

    def act(self) -> None:
        random = self.loop.random
        what = random.random()
        if what < 0.6:
            number, delete = random.randrange(_RESOURCES), random.random() < 0.25
            if self.source.machine is not None:
                self.note(f"change {number} {'delete' if delete else ''}")
                self.source.change(number, delete=delete)
        elif what < 0.8:
            each = random.choice(self.machines)
            if each.machine is None:
                self.note(f"start {each}")
                each.start()
            else:
                self.note(f"kill {each.machine.name}")
                each.kill()
        elif what < 0.88:
            one, other = random.sample(["source", "hub", "near", "far"], 2)
            self.note(f"partition {one} {other}")
            self.network.partition(one, other)
        elif what < 0.95:
            self.note("heal")
            self.network.heal()
        elif what < 0.98:
            self.note("reset")
            self.network.reset_one()
        elif self.hub.machine is None:
            self.note("the hub loses its data")
            self.hub.lose_data()

    def check(self) -> None:
        for each in self.destinations:
            each.check()

    async def converge(self) -> None:
        began = self.loop.now
        end = began + _CONVERGENCE
        while not self.is_equal():
            if self.loop.now > end:
                raise Wrong(f"not equal {_CONVERGENCE} s after the faults: {self.describe()}")
            await asyncio.sleep(0.5)
            if 60 <= self.loop.now - began < 60.5:
                self.note(self.describe())
            self.check()
        self.note("equal")
        self.took = self.loop.now - began

    def is_equal(self) -> bool:
        truth = self.source.recorded
        last = truth[-1][0] if truth else 0
        return not self.source.unrecorded and all(
            each.is_level and each.content() == self.source.set_at(from_microseconds(last))
            for each in self.destinations
        )

    def describe(self) -> str:
        return (
            "; ".join(
                f"{each.name}: {each.subscriber.status if each.subscriber else None} {each.failures}"
                for each in self.destinations
            )
            + f" unrecorded {list(self.source.unrecorded)}"
        )


def run(seed: int, *, verbose: bool = False) -> str | None:
    """Run a seed; return what went wrong, or None."""
    with tempfile.TemporaryDirectory(prefix="rsnotify-sim-", dir="/dev/shm") as name:
        os.chdir(name)  # so that all paths are the same in each run
        one = Run(seed, Path(), verbose=verbose)
        loop = one.loop
        asyncio.set_event_loop(loop)
        try:
            with simulating(loop, one.network):
                task = loop.create_task(one.play())
                loop.run_until_complete(task)
                if os.environ.get("TOOK"):
                    print(seed, round(one.took, 1), loop.steps)
        except Exception:
            return traceback.format_exc()
        finally:
            for each in one.machines:
                if each.machine is not None:
                    each.kill()
            asyncio.set_event_loop(None)
    return None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("seeds", nargs="+")
    parser.add_argument("-v", action="store_true")
    arguments = parser.parse_args()
    begin_again_without_chance()
    logging.disable(logging.CRITICAL if not arguments.v else logging.DEBUG)
    seeds: list[int] = []
    for text in arguments.seeds:
        first, _, last = text.partition("-")
        seeds += range(int(first), int(last or first) + 1)
    gc.freeze()
    waiting, began = iter(seeds), time.monotonic()
    running: dict[int, int] = {}
    failed: list[int] = []
    while True:
        while len(running) < WORKERS and (seed := next(waiting, None)) is not None:
            running[fork(seed, verbose=arguments.v)] = seed
        if not running:
            break
        pid, status = os.wait()
        seed = running.pop(pid)
        if status:
            failed.append(seed)
    used = os.times()
    cpu = (used.children_user + used.children_system) / len(seeds) * 1000
    print(f"{len(seeds)} seeds, {cpu:.0f} ms of CPU each, {time.monotonic() - began:.1f} s in all")
    if failed:
        print(f"failed: {' '.join(map(str, failed))}")
    sys.exit(bool(failed))


WORKERS = os.cpu_count() or 1
_NO_RANDOM_ADDRESSES = 0x0040000


def begin_again_without_chance() -> None:
    """Run this command again such that neither hashes nor addresses of objects are random."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        ctypes.CDLL(None).personality(_NO_RANDOM_ADDRESSES)
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation.run", *sys.argv[1:]])


def fork(seed: int, *, verbose: bool) -> int:
    """Run a seed in a process of its own, and return its id."""
    pid = os.fork()
    if pid:
        return pid
    problems: list[str | None] = []
    # The main thread of a Source does not commit itself, but waits for a thread that does.
    thread = threading.Thread(target=lambda: problems.append(run(seed, verbose=verbose)))
    thread.start()
    thread.join()
    if problems[0] is not None:
        print(f"seed {seed}: {problems[0]}", flush=True)
    sys.stdout.flush()
    os._exit(problems[0] is not None)


if __name__ == "__main__":
    main()
