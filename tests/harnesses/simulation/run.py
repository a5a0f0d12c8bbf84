"""Run seeds: `python -m tests.harnesses.simulation.run SEED...`, `1-2000` or `relays:1-500`."""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from random import Random
from typing import Protocol

from rsnotify.format.datetimes import to_microseconds
from rsnotify.sync.doubts import DoubtKind
from rsnotify_subscriber.events import BaselineComplete
from tests.harnesses.simulation import patching, wire
from tests.harnesses.simulation.disk import SimulatedDisk
from tests.harnesses.simulation.faults import ACTIONS, Actions, act, break_link, end, make_intruder
from tests.harnesses.simulation.history import Wrong
from tests.harnesses.simulation.invariants import CopyCheck, check_bounds
from tests.harnesses.simulation.loop import SimulatedLoop
from tests.harnesses.simulation.network import Network
from tests.harnesses.simulation.patching import EPOCH
from tests.harnesses.simulation.world import (
    FOLDER,
    Application,
    DestinationMachine,
    Hub,
    HubMachine,
    Simulated,
    SourceMachine,
    World,
    make_world,
)

#: After how many seconds of that the clocks are set past the last change, if it is dated later.
_AHEAD = 120.0
#: How long Destinations may take to notice a change, in seconds.
_NOTICED = 45.0
_PAUSES = (0.0, 0.0, 0.001, 0.01, 0.1, 1.0, 10.0)


class Check(Protocol):
    """What must hold after each action."""

    def check(self) -> None:
        """Raise Wrong if it does not hold."""


class Run:
    """One seed: a world, what happens in it, and the checks.

    Attributes:
        actions: What may happen, and how often.
        convergence: In how many seconds of virtual time after the faults all copies must be equal,
            and once more after the time has come to which the clock of the Source was ahead.
    """

    actions: Actions = ACTIONS
    convergence = 1_800.0

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.loop = loop = SimulatedLoop(seed)
        SimulatedLoop.current = loop
        random.seed(seed)  # for libraries
        self.network = network = Network(loop)
        self.links = Random(f"links {seed}")
        self.world = world = self.make_world(seed)
        self.wire = loop.wire = wire.Wire(loop, world.lost, world.odd, self.note)
        #: What happened; always written, since addresses of objects may decide the order of sets.
        self.trace: list[str] = []
        network.buffer = world.buffer
        loop.disks_note_flushes = world.power
        self.app = Application(FOLDER, loop.random, world)
        self.sources: list[SourceMachine] = []
        self.hubs: Sequence[Hub] = ()
        self.destinations: list[DestinationMachine] = []
        self.make_machines()
        for each in self.hubs:
            self.wire.hubs[f"ws{each.url[4:]}ws"] = each.log
            self.wire.hubs[f"{each.url}websub"] = each.log
        for destination in self.destinations:
            destination.on_event = partial(self._happened, destination)
        self.machines: list[Simulated] = [
            *self.sources,
            *self.other_machines(),
            *self.hubs,
            *self.destinations,
        ]
        for machine in self.machines:
            self._give_disk(machine)
        self.intruder = make_intruder(self)
        self._checks = self.make_checks()
        Wrong.found.clear()

    def make_world(self, seed: int) -> World:
        return make_world(self.loop.random, Random(f"world {seed}"))

    @staticmethod
    def patch() -> None:
        """Patch what is not simulated in all worlds."""

    def make_machines(self) -> None:
        loop, network, world, folder = self.loop, self.network, self.world, Path()
        self.sources = [
            SourceMachine(loop, network, name, world, self.app) for name in ("source", "second")
        ]
        self.hubs = self.make_hubs()
        self.destinations = [
            DestinationMachine(loop, network, folder, "near", "plain", world),
            DestinationMachine(loop, network, folder, "far", world.far, world),
        ]

    def make_hubs(self) -> Sequence[Hub]:
        return [
            HubMachine(self.loop, self.network, Path(), number, self.world)
            for number in range(self.world.hubs)
        ]

    def other_machines(self) -> Sequence[Simulated]:
        return ()

    def make_checks(self) -> Sequence[Check]:
        if self.world.late:
            # What a late Source leaves out is claimed wrongly, until a later poll finds it.
            return ()
        is_ordered = not self.world.rewritten
        return [
            CopyCheck(each, self.app.history, is_ordered=is_ordered) for each in self.destinations
        ]

    def end(self) -> None:
        end(self)

    def note(self, text: str) -> None:
        self.trace.append(f"{self.loop.now:12.6f} {text}")

    def _give_disk(self, machine: Simulated) -> None:
        """Give a machine a disk; the processes of the Source share one."""
        name = "source" if isinstance(machine, SourceMachine) else machine.name
        if name not in self.loop.disks:
            self.loop.disks[name] = SimulatedDisk(Path(name), self.loop.random, self._power_was_cut)
        machine.disk = self.loop.disks[name]

    def _power_was_cut(self, disk: SimulatedDisk) -> None:
        machines = [each for each in self.machines if each.disk is disk]
        self.note(f"the power of {disk.folder} is cut")
        for each in machines:
            if each.machine is not None:
                each.machine.is_alive = False

        def begin_again() -> None:
            for each in machines:
                if each.machine is not None:
                    each.kill()
            disk.begin_again()
            self.power_is_back(disk)

        self.loop.after_callback(begin_again)

    def power_is_back(self, disk: SimulatedDisk) -> None:
        if disk is self.sources[0].disk:
            self.app.power_was_cut()
        for destination in self.destinations:
            destination.is_restoring |= destination.disk is disk

    def _happened(self, destination: DestinationMachine, event: object) -> None:
        self.note(f"{destination.name}: {event}")
        destination.baselines += isinstance(event, BaselineComplete)
        destination.is_restoring = False

    async def play(self) -> None:
        chance = self.loop.random
        self.note(str(self.world))
        for machine in self.machines:
            if machine.name != "second" or chance.random() < 0.3:
                machine.start()
        await asyncio.sleep(1)
        for _ in range(chance.randint(10, 40)):
            act(self)
            break_link(self)
            await asyncio.sleep(chance.choice(_PAUSES))
            self.check()
        self.end()
        await self._converge()

    def check(self) -> None:
        """Raise Wrong if an invariant does not hold now, or did not in code that went on."""
        if Wrong.found:
            raise Wrong.found[0]
        self.app.history.check_open_list()
        for each in self._checks:
            each.check()

    async def _converge(self) -> None:
        """I3: all copies become equal to the Source, and count as level.

        If the clock of the Source was ahead, that may take until that time has come. A copy that is
        not equal until then must not count as level.
        """
        began, has_passed = self.loop.now, False
        last, changed = 0, began
        while not self.is_equal():
            if self.last_change() != last:
                last, changed = self.last_change(), self.loop.now
            took = self.loop.now - began
            is_due = took > _AHEAD and self.loop.now - changed > _NOTICED
            if is_due and not has_passed and self._pass_time_ahead():
                began, has_passed = self.loop.now, True
            elif took > self.convergence:
                raise Wrong(
                    f"I3: not equal {self.convergence} s after the faults: {self.describe()}"
                )
            await asyncio.sleep(0.5)
            self.check()
        self.note("equal")
        self.check_at_end()
        check_bounds(self.loop, Path())

    def check_at_end(self) -> None:
        self.app.history.check_all_lists()

    def last_change(self) -> int:
        """Return the latest datetime of a change (µs)."""
        return self.app.history.last

    def _pass_time_ahead(self) -> bool:
        """Move all clocks past the date of the last change; return False if they are already.

        All machines are suspended meanwhile, so that it costs nothing.
        """
        ahead = (self.last_change() - to_microseconds(EPOCH)) / 1_000_000 - self.loop.now
        if ahead <= 0:
            return False
        self.note(f"the last change is dated {ahead:.0f} s ahead; that time passes")
        for destination in self.destinations:
            if destination.is_level and not self.has_all(destination):
                raise Wrong(f"I9: {destination.name} is level and not equal: {self.describe()}")
        for machine in self.machines:
            machine.clock.set(ahead)
        return True

    def is_equal(self) -> bool:
        history = self.app.history
        if self.app.unrecorded or history.documented < history.last:
            return False
        return all(
            (each.is_level and self.has_all(each)) or self._is_undecidable(each)
            for each in self.destinations
        )

    def _is_undecidable(self, destination: DestinationMachine) -> bool:
        """Return whether only lists in the wrong order leave the Destination in doubt, for ever.

        They may announce a resource that was deleted within the same second, or an older version.
        """
        kinds = set(destination.status.doubt_kinds)
        if not self.world.rewritten or kinds != {DoubtKind.UNAVAILABLE}:
            return False
        listed = destination.selected(self.app.history.current_set)
        found = destination.without_foreign(listed)
        checks = (each for each in self._checks if isinstance(each, CopyCheck))
        (unavailable,) = (each.unavailable() for each in checks if each.destination is destination)
        return {uri for uri, _ in listed.items() ^ found.items()} <= unavailable

    def has_all(self, destination: DestinationMachine) -> bool:
        listed = destination.selected(self.app.history.current_set)
        return destination.without_foreign(listed) == listed

    def describe(self) -> str:
        found = [f"unrecorded {list(self.app.unrecorded)}"]
        for each in self.destinations:
            status = each.subscriber.status if each.subscriber else None
            found.append(f"{each.name}: {status} {each.failures[-2:]}")
        return "; ".join(found)


def run(seed: str) -> str | None:
    folder = f"seed-{seed}"
    os.mkdir(folder)
    os.chdir(folder)  # so that all paths are the same in each run
    world, number = _parts(seed)
    one = _kinds[world](number)
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
        SimulatedLoop.current = None
        os.chdir("..")
        shutil.rmtree(folder)
    return None


def in_thread(seed: str) -> str | None:
    """Run a seed in a thread.

    The main thread of a Source does not commit itself, but waits for a thread that does.
    """
    problems: list[str | None] = []
    thread = threading.Thread(target=lambda: problems.append(run(seed)))
    thread.start()
    thread.join()
    return problems[0]


def fork(seeds: Sequence[str], *, verbose: bool) -> int:
    """Run seeds in a process, one after the other, and return its id."""
    pid = os.fork()
    if pid:
        return pid
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    gc.disable()
    failed = 0
    for seed in seeds:
        problem = in_thread(seed)
        failed += problem is not None
        if verbose:
            print("\n".join(_kept[-1].trace))
        if problem is not None:
            print(f"python -m tests.harnesses.simulation.run -v {seed}  # fails: {problem}")
        sys.stdout.flush()
    os._exit(failed)


def run_all(seeds: Sequence[str], *, verbose: bool, workers: int) -> int:
    """Run seeds, some in each process; return how many failed."""
    waiting = iter(range(0, len(seeds), _SEEDS_AT_ONCE))
    failed = 0
    while True:
        while len(_running) < workers and (first := next(waiting, None)) is not None:
            _running.add(fork(seeds[first : first + _SEEDS_AT_ONCE], verbose=verbose))
        if not _running:
            return failed
        pid, status = os.wait()
        _running.remove(pid)
        code = os.waitstatus_to_exitcode(status)
        failed += code if code >= 0 else 1


def parse_seeds(texts: Sequence[str]) -> list[str]:
    """Return the seeds that texts as "7", "1-2000" and "relays:1-500" name."""
    seeds: list[str] = []
    for text in texts:
        first, _, last = text.partition("-")
        world, begin = _parts(first)
        seeds += [f"{world}{number}" for number in range(begin, int(last or begin) + 1)]
    return seeds


def _parts(seed: str) -> tuple[str, int]:
    name, colon, number = seed.rpartition(":")
    return name + colon, int(number)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("seeds", nargs="+", help="as 7, 1-2000 or relays:1-500")
    parser.add_argument("-v", action="store_true", help="print what happens")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    begin_again_without_chance()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    logging.disable(logging.CRITICAL)
    seeds, began = parse_seeds(arguments.seeds), time.monotonic()
    worlds = {_parts(seed)[0]: None for seed in seeds}
    _kinds.update({world: resolve_name(_WORLDS[world]) for world in worlds})
    for kind in _kinds.values():
        kind.patch()
    patching.patch()
    wire.patch()
    folder = tempfile.mkdtemp(prefix="rsnotify-sim-", dir=_MEMORY)
    failed = 1
    try:
        os.chdir(folder)
        # What is made once, such as compiled expressions, is made here; most is the same in all.
        for world in worlds:
            for number in _WARMING if list(worlds) == [""] else _WARMING[:1]:
                in_thread(f"{world}{number}")
        gc.collect()
        gc.freeze()
        failed = run_all(seeds, verbose=arguments.v, workers=arguments.workers)
        used = os.times()
        cpu = (used.children_user + used.children_system) / len(seeds) * 1000
        took = _monotonic() - began
        print(f"{len(seeds)} seeds, {cpu:.0f} ms of CPU each, {took:.1f} s in all; {failed} failed")
    finally:
        for pid in _running:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        shutil.rmtree(folder, ignore_errors=True)
        sys.stdout.flush()
        os._exit(bool(failed))  # without the clean-up code of what was abandoned


_MODULE = "tests.harnesses.simulation"
#: What runs the seeds of each kind of world; a plain number is a seed without a name before it.
_WORLDS = {
    "": f"{_MODULE}.run:Run",
    "relays:": f"{_MODULE}.relays:RelayRun",
    "gateways:": f"{_MODULE}.gateways:GatewayRun",
    "cluster:": f"{_MODULE}.cluster:ClusterRun",
}
#: Those that were chosen, which are imported before anything is patched.
_kinds: dict[str, type[Run]] = {}
#: The runs of this process: the garbage collector would run clean-up code of killed machines.
_kept: list[Run] = []
#: The processes that run seeds.
_running: set[int] = set()
_WARMING = (1, 2, 3)
#: More use more memory, and fewer more time: each process copies what it changes of its parent.
_SEEDS_AT_ONCE = 16
_MEMORY = "/dev/shm"
_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
_monotonic = time.monotonic


def begin_again_without_chance() -> None:
    """Run this command again such that the hashes of texts are not random."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(
            sys.executable, [sys.executable, "-m", "tests.harnesses.simulation.run", *sys.argv[1:]]
        )


if __name__ == "__main__":
    # The module by its name, by which those of the other worlds import it, too.
    resolve_name(f"{_MODULE}.run:main")()
