"""Run seeds: `python -m tests.simulation.run SEED...`, or `--seeds 1-2000`."""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from rsnotify.format.datetimes import from_microseconds
from tests.simulation.loop import SimulatedLoop
from tests.simulation.network import Network
from tests.simulation.patching import patch
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
    """Run a seed in a folder of its own; return what went wrong, or None."""
    folder = f"seed-{seed}"
    os.mkdir(folder)
    os.chdir(folder)  # so that all paths are the same in each run
    one = Run(seed, Path(), verbose=verbose)
    asyncio.set_event_loop(one.loop)
    try:
        one.loop.run_until_complete(one.loop.create_task(one.play()))
    except Exception:
        return traceback.format_exc()
    finally:
        for each in one.machines:
            if each.machine is not None:
                each.kill()
        _kept.append(one)
        asyncio.set_event_loop(None)
        os.chdir("..")
        shutil.rmtree(folder)
    return None


def in_thread(seed: int, *, verbose: bool = False) -> str | None:
    """Run a seed in a thread.

    The main thread of a Source does not commit itself, but waits for a thread that does.
    """
    problems: list[str | None] = []
    thread = threading.Thread(target=lambda: problems.append(run(seed, verbose=verbose)))
    thread.start()
    thread.join()
    return problems[0]


def fork(seeds: Sequence[int], *, verbose: bool) -> int:
    """Run seeds in a process of their own, and return its id; its status counts failures."""
    pid = os.fork()
    if pid:
        return pid
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    gc.disable()
    failed = 0
    for seed in seeds:
        problem = in_thread(seed, verbose=verbose)
        if problem is not None:
            failed += 1
            print(f"python -m tests.simulation.run -v {seed}  # fails: {problem}", flush=True)
    sys.stdout.flush()
    os._exit(failed)


def run_all(seeds: Sequence[int], *, verbose: bool, workers: int) -> int:
    """Run seeds, some in each process; return how many failed."""
    waiting = [seeds[at : at + _TOGETHER] for at in range(0, len(seeds), _TOGETHER)]
    running: set[int] = set()
    failed = 0
    while waiting or running:
        while waiting and len(running) < workers:
            running.add(fork(waiting.pop(0), verbose=verbose))
        pid, status = os.wait()
        running.remove(pid)
        failed += os.waitstatus_to_exitcode(status)
    return failed


def parse_seeds(texts: Sequence[str]) -> list[int]:
    """Return the numbers that texts as "7" and "1-2000" name."""
    seeds: list[int] = []
    for text in texts:
        first, _, last = text.partition("-")
        seeds += range(int(first), int(last or first) + 1)
    return seeds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("seeds", nargs="+", help="numbers, or ranges as 1-2000")
    parser.add_argument("-v", action="store_true", help="print what happens")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    begin_again_without_chance()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    logging.disable(logging.CRITICAL)
    seeds, began = parse_seeds(arguments.seeds), time.monotonic()
    patch()
    with tempfile.TemporaryDirectory(prefix="rsnotify-sim-", dir=_MEMORY) as folder:
        os.chdir(folder)
        # What is made once, such as compiled expressions, is made here.
        for seed in _WARMING:
            in_thread(seed)
        gc.collect()
        gc.freeze()
        if arguments.v:
            logging.disable(logging.NOTSET)
        failed = run_all(seeds, verbose=arguments.v, workers=arguments.workers)
        os.chdir("/")
    used = os.times()
    cpu = (used.children_user + used.children_system) / len(seeds) * 1000
    print(
        f"{len(seeds)} seeds, {cpu:.0f} ms of CPU each, {_monotonic() - began:.1f} s in all; {failed} failed"
    )
    sys.stdout.flush()
    os._exit(bool(failed))  # without the clean-up code of what was abandoned


#: The runs of this process: the garbage collector would run clean-up code of killed machines.
_kept: list[Run] = []
_WARMING = (1, 2, 3)
#: How many seeds a process runs: making one takes a quarter of the time of a seed.
_TOGETHER = 10
_MEMORY = "/dev/shm"
_libc = ctypes.CDLL(None)
_NO_RANDOM_ADDRESSES = 0x0040000
_PR_SET_PDEATHSIG = 1
_monotonic = time.monotonic


def begin_again_without_chance() -> None:
    """Run this command again such that neither hashes nor addresses of objects are random."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        _libc.personality(_NO_RANDOM_ADDRESSES)
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation.run", *sys.argv[1:]])


if __name__ == "__main__":
    main()
