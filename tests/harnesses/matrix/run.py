"""Run the matrix: `python -m tests.harnesses.matrix.run`, or one run of it by its name.

Every shape meets every trouble in every way that fits. `--beside "selection changed"` adds that
trouble to each of these runs; `--triples` adds random runs with two troubles at the same time.
With another `--seed`, delays differ, and troubles begin at another moment. A run depends only on
its name and on the seed.
"""

from __future__ import annotations

import argparse
import asyncio
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
from collections import Counter
from collections.abc import Sequence
from itertools import product
from random import Random
from typing import Any
from zlib import crc32

import rsnotify_subscriber.pool
from rsnotify_publisher import Publisher
from tests.examples_count import part
from tests.harnesses.matrix.between import Between
from tests.harnesses.matrix.hub import Hub
from tests.harnesses.matrix.judge import Judge
from tests.harnesses.matrix.shapes import SHAPES, Shape
from tests.harnesses.matrix.source import Answer, Source
from tests.harnesses.matrix.troubles import TROUBLES, Trouble
from tests.harnesses.matrix.ways import WAYS, Claim, Destination, Way
from tests.harnesses.simulation import patching
from tests.harnesses.simulation.loop import (
    Deadlock,
    SimulatedExecutor,
    SimulatedLoop,
    current_machine,
)
from tests.harnesses.simulation.network import Network

#: How long troubles last, in seconds of virtual time.
_LASTS = 180.0
#: How long a copy may take to become right where nothing is wrong.
_SETTLES = 120.0
_SAMPLE = 2.0
#: How much later troubles begin with each further seed, within a few seconds.
_LATER, _LATEST = 0.37, 3.0


class Run:
    """One shape, one trouble or several, and one way to follow."""

    def __init__(self, shape: Shape, troubles: Sequence[Trouble], way: Way, *, seed: int) -> None:
        self.name = " x ".join((str(shape), *map(str, troubles), str(way)))
        self.shape, self.troubles, self.way = shape, troubles, way
        self._later = (seed - 1) * _LATER % _LATEST
        self.loop = loop = SimulatedLoop(crc32(self.name.encode()) + seed - 1)
        SimulatedLoop.current = loop
        loop.disks_note_flushes = False
        random.seed(self.name)
        self.network = Network(loop)
        self.hub = Hub(self)
        offered = self.hub.url if way.pushes and shape.may_push else ""
        self.source = Source(loop, self.network, shape, hub=offered)
        self.between = Between(self)
        self.destination = Destination(self, loop, way, self.between.url)
        #: The resources that the Destination does not want.
        self.excluded = frozenset(way.excluded)
        self.disk_is_full = False
        self.judge = Judge(self)
        self.problems: dict[str, str] = {}
        self._last = Claim(False, ("it never ran",))

    def wrong(self, rule: str, text: str) -> None:
        self.problems.setdefault(rule, f"{self.loop.now:.0f} s: {text}")

    @property
    def kept(self) -> dict[str, Answer]:
        return self.source.kept

    @kept.setter
    def kept(self, value: dict[str, Answer]) -> None:
        self.source.kept = {**getattr(self.source, "kept", {}), **value}

    # The course of a run

    async def play(self) -> None:
        self.source.start()
        self.hub.start()
        self.between.start()
        if self.shape.through:
            await asyncio.sleep(self.shape.late)
        sampling = self.loop.create_task(self._sample())
        if self.way.first:
            await self._begin()
            await self._meanwhile_once()
        else:
            self.destination.start()
            if not await self._until_right(_SETTLES):
                self.wrong("heals", f"the first copy is not right: {self._describe()}")
                return
            await self._begin()
            if self.way.once:
                await self._meanwhile_once()
            else:
                await self._meanwhile()
        await self._end()
        sampling.cancel()
        self.judge.finish()

    async def _begin(self) -> None:
        await asyncio.sleep(self._later)
        self.judge.prepared = self.loop.now
        for trouble in self.troubles:
            await trouble.prepared(self)
        self.judge.began = self.loop.now
        self.source.use(*self.troubles)
        if all(trouble.changes for trouble in self.troubles):
            await self._change(("update", "a"), ("update", "b"), ("delete", "d"), ("update", "n"))
        for trouble in self.troubles:
            await trouble.begin(self)

    async def _change(self, *changes: tuple[str, str]) -> None:
        for act, name in changes:
            getattr(self.source, act)(name)
            await asyncio.sleep(0.01)
        await self.hub.publish()

    async def _meanwhile(self) -> None:
        await asyncio.sleep(_LASTS / 3)
        await self._change(("update", "c"))
        await asyncio.sleep(_LASTS * 2 / 3)
        self.judge.check_progress()
        await self._audit()

    async def _meanwhile_once(self) -> None:
        await self._once(troubled=True)
        await self._change(("update", "c"))
        await self._once(troubled=True)
        self.judge.check_progress()
        await self._audit()

    async def _once(self, *, troubled: bool) -> Claim:
        if self.shape.through and troubled:
            await asyncio.sleep(self.shape.late)
        begun = self.loop.now
        limit = 600.0
        repairs = self.way.repairs and troubled
        destination = self.destination
        catching = self.loop.create_task(
            destination.repair() if repairs else destination.catch_up()
        )
        await asyncio.wait({catching}, timeout=limit)
        if not catching.done():
            self.destination.kill()
            command = "`--repair`" if repairs else "`--once`"
            self.wrong("ends", f"{command} has not ended within {limit:.0f} s")
            return await catching
        self._last = claim = catching.result()
        self.judge.check_once(claim, begun, troubled=troubled)
        return claim

    async def _audit(self) -> None:
        if self.way.folder and not self.disk_is_full and self.destination.copy.is_dir():
            begun, was_right = self.loop.now, self.judge.is_right()
            auditing = self.loop.create_task(self.destination.audit())
            await asyncio.wait({auditing}, timeout=600.0)
            if auditing.done():
                self.judge.check_audit(auditing.result(), begun, was_right=was_right)
            else:
                self.wrong("ends", "the audit has not ended within 600 s")

    async def _end(self) -> None:
        self.judge.check_politeness()
        self.source.use()
        for trouble in self.troubles:
            await trouble.end(self)
        self.judge.ended = self.loop.now
        if not self.way.once and self.destination.machine is None:
            self.destination.start()
        remains = any(trouble.remains(self.shape, self.way) for trouble in self.troubles)
        heals = max(trouble.heals for trouble in self.troubles)
        if not await self._until_right(heals) and not remains:
            self.wrong("heals", f"not right and level after the end: {self._describe()}")
        if self.shape.through:
            # The copy may be right before what is between has noticed the end, and its documents.
            lags = max(trouble.lags for trouble in self.troubles)
            await asyncio.sleep(self.shape.late + lags)
        await self._audit()

    async def until_settled(self) -> None:
        if not await self._until_right(_SETTLES):
            self.wrong("heals", f"not right before the trouble: {self._describe()}")

    async def _until_right(self, limit: float) -> bool:
        end = self.loop.now + limit
        while True:
            if self.way.once:
                claim = await self._once(troubled=False)
            else:
                claim = self.destination.claim
            if claim.right and not claim.reasons and self.judge.is_right():
                return True
            if self.loop.now >= end:
                return False
            await asyncio.sleep(60.0 if self.way.once else _SAMPLE)

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(_SAMPLE)
            if not self.way.once:
                self.judge.check(self.destination.claim)

    def _describe(self) -> str:
        claim = self._last if self.way.once else self.destination.claim
        failures = self.destination.failures[-1:]
        differs = self.judge.difference() or "nothing"
        return f"{differs}; claims {claim.right}, {claim.reasons[:2]}, {failures}"


def play(run_of: tuple[Shape, Sequence[Trouble], Way], folder: str, *, seed: int) -> Run:
    os.mkdir(folder)
    os.chdir(folder)
    run = Run(*run_of, seed=seed)
    _current.append(run)
    asyncio.set_event_loop(run.loop)
    log = run.judge.log
    logging.getLogger("rsnotify").addHandler(log)
    try:
        run.loop.run_until_complete(run.loop.create_task(run.play()))
    except Deadlock:
        run.wrong("ends", "nothing happens any more")
    except Exception:
        run.wrong("harness", traceback.format_exc())
    finally:
        logging.getLogger("rsnotify").removeHandler(log)
        for each in (
            run.destination.machine,
            run.source.machine,
            run.hub.machine,
            run.between.machine,
        ):
            if each is not None:
                each.kill()
        asyncio.set_event_loop(None)
        SimulatedLoop.current = None
        os.chdir("..")
        shutil.rmtree(folder)
    return run


# Which runs there are

Chosen = tuple[Shape, tuple[Trouble, ...], Way]


def fits(shape: Shape, trouble: Trouble, way: Way) -> bool:
    if (way.pushes and not shape.may_push) or (way.adopts and shape.through):
        return False
    return trouble.fits(shape, way)


def every_run() -> list[Chosen]:
    return [
        (shape, (trouble,), way)
        for shape, trouble, way in product(SHAPES, TROUBLES, WAYS)
        if fits(shape, trouble, way)
    ]


def sample(seed: int) -> list[Chosen]:
    """Return every trouble in half of the ways that fit, each with the shape chosen least."""
    random, found = Random(seed), list[Chosen]()
    shapes, pairs = Counter[Shape](), Counter[tuple[Shape, str]]()
    fitting: dict[str, dict[Way, list[Chosen]]] = {}
    for one in every_run():
        fitting.setdefault(str(one[1][0]), {}).setdefault(one[2], []).append(one)
    for number, (trouble, by_way) in enumerate(fitting.items()):
        for runs in part(by_way.values(), number if len(by_way) > 1 else 0, 2):
            random.shuffle(runs)
            chosen = min(runs, key=lambda run: (pairs[run[0], trouble], shapes[run[0]]))
            shapes[chosen[0]] += 1
            pairs[chosen[0], trouble] += 1
            found.append(chosen)
    return found


def triples(seed: int, count: int) -> list[Chosen]:
    """Return so many random runs with two troubles of different places at the same time."""
    random, found = Random(seed), list[Chosen]()
    while len(found) < count:
        shape, way = random.choice(SHAPES), random.choice(WAYS)
        first, second = random.sample(TROUBLES[1:], 2)
        if may_meet(first, second) and all(fits(shape, one, way) for one in (first, second)):
            found.append((shape, (first, second), way))
    return found


def may_meet(first: Trouble, second: Trouble) -> bool:
    """Return whether the troubles have different places; others may happen to the same file."""
    places = {"disk" if one.place == "state" else one.place for one in (first, second)}
    return len(places) == 2


def beside(runs: Sequence[Chosen], name: str) -> list[Chosen]:
    """Return the runs with another trouble at the same time, where that is possible."""
    (second,) = [one for one in TROUBLES if one.name == name]
    return [
        (shape, (first, second), way)
        for shape, (first, *_), way in runs
        if first is not TROUBLES[0] and may_meet(first, second) and fits(shape, second, way)
    ]


def name_of(chosen: Chosen) -> str:
    shape, troubles, way = chosen
    return " x ".join((str(shape), *map(str, troubles), str(way)))


_current: list[Run] = []
_really_open, _really_write = os.open, os.write


def _open(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
    _check_space(flags & (os.O_CREAT | os.O_WRONLY))
    return _really_open(path, flags, *arguments, **options)


def _write(descriptor: int, data: Any) -> int:
    _check_space(True)
    return _really_write(descriptor, data)


def _check_space(writes: object) -> None:
    machine = current_machine()
    is_full = bool(writes and _current and _current[-1].disk_is_full)
    if is_full and machine is not None and machine.name == "destination":
        raise OSError(28, "No space left on device")


def _has_published(publisher: Publisher, timeout: float | None = None) -> bool:
    """Return whether the documents exist, without waiting, as there is one thread only."""
    publisher.start()
    return publisher._election.published.done()


def patch() -> None:
    """Run all code of this process on simulated machines, whose files keep their real times."""
    patching.patch()
    os.replace = patching._replace
    Publisher.wait_published = _has_published  # type: ignore
    rsnotify_subscriber.pool.Lane = lambda _: SimulatedExecutor(1)  # type: ignore
    os.open, os.write = _open, _write  # type: ignore[assignment]


def tables() -> str:
    """Return Markdown tables of the shapes, ways and troubles."""
    places: dict[str, list[str]] = {}
    for trouble in TROUBLES:
        places.setdefault(trouble.place, []).append(trouble.name)
    return "\n".join(
        (
            _table("shape of Source", "what it offers", [(one.name, one.text) for one in SHAPES]),
            _table("way", "how it is followed", [(one.name, one.text) for one in WAYS]),
            _table("place", "troubles", [(one, "; ".join(all)) for one, all in places.items()]),
        )
    )


def _table(name: str, text: str, rows: list[tuple[str, str]]) -> str:
    lines = [f"| {name} | {text} |", "|---|---|", *(f"| {one} | {other} |" for one, other in rows)]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", action="store_true", help="print shapes, ways and troubles")
    parser.add_argument("names", nargs="*", help="parts of the names of runs; by default all")
    parser.add_argument(
        "--sample", action="store_true", help="each trouble with some ways and shapes"
    )
    parser.add_argument("--way", choices=list(map(str, WAYS)), help="only this way")
    parser.add_argument("--triples", type=int, default=0, help="so many with two troubles, too")
    parser.add_argument("--beside", metavar="TROUBLE", help="this trouble, too, in each run")
    parser.add_argument("--seed", type=int, default=1, help="of the sample, the triples, each run")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("-v", action="store_true", help="print each run")
    arguments = parser.parse_args()
    if arguments.tables:
        print(tables())
        return
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(
            sys.executable, [sys.executable, "-m", "tests.harnesses.matrix.run", *sys.argv[1:]]
        )
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    logging.getLogger("rsnotify").propagate = False
    logging.getLogger("asyncio").setLevel(logging.CRITICAL + 1)
    chosen = sample(arguments.seed) if arguments.sample else every_run()
    if arguments.beside:
        chosen = beside(chosen, arguments.beside)
    chosen += triples(arguments.seed, arguments.triples)
    chosen = [
        one
        for one in chosen
        if all(each in name_of(one) for each in arguments.names)
        and arguments.way in (None, str(one[2]))
    ]
    if not chosen:
        parser.error("no run has such a name")
    began = time.monotonic()
    patch()
    folder = tempfile.mkdtemp(prefix="rsnotify-matrix-", dir="/dev/shm")
    failed = 1
    try:
        os.chdir(folder)
        failed = run_all(
            chosen, workers=arguments.workers, seed=arguments.seed, verbose=arguments.v
        )
        used = os.times()
        cpu = (used.children_user + used.children_system) / max(1, len(chosen)) * 1000
        took = patching._real_monotonic() - began
        pairs = {(str(shape), tuple(map(str, troubles))) for shape, troubles, _ in chosen}
        print(
            f"{len(pairs)} pairs of a shape and troubles in {len(chosen)} runs, "
            f"{cpu:.0f} ms of CPU each, {took:.0f} s in all: "
            f"{len(chosen) - failed} held, {failed} fell"
        )
        if failed:
            print(
                "To repeat one: .venv/bin/python -m tests.harnesses.matrix.run "
                f'--seed {arguments.seed} "NAME"'
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        sys.stdout.flush()
        os._exit(bool(failed))


def run_all(chosen: Sequence[Chosen], *, workers: int, seed: int, verbose: bool) -> int:
    """Play runs, some in each process; return how many failed."""
    parts = iter(range(0, len(chosen), _AT_ONCE))
    running: set[int] = set()
    failed = 0
    while True:
        while len(running) < workers and (first := next(parts, None)) is not None:
            running.add(_fork(chosen[first : first + _AT_ONCE], first, seed=seed, verbose=verbose))
        if not running:
            return failed
        pid, status = os.wait()
        running.remove(pid)
        code = os.waitstatus_to_exitcode(status)
        failed += code if code >= 0 else 1


_AT_ONCE = 24


def _fork(chosen: Sequence[Chosen], first: int, *, seed: int, verbose: bool) -> int:
    pid = os.fork()
    if pid:
        return pid
    gc.disable()
    failed = 0
    for number, one in enumerate(chosen, first):
        results: list[Run] = []
        thread = threading.Thread(
            target=lambda one=one, number=number, results=results: results.append(
                play(one, f"run-{number}", seed=seed)
            )
        )
        patching._really_start(thread)
        thread.join()
        run = results[0]
        failed += bool(run.problems)
        for rule, text in run.problems.items():
            print(f"{run.name}: {rule}: {text}")
        if verbose and not run.problems:
            print(f"{run.name}: holds at {run.loop.now:.0f} s")
        sys.stdout.flush()
    os._exit(failed)


if __name__ == "__main__":
    main()
