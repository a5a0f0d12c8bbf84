"""Torture a Source, a hub and Destinations: every copy is right, or says that it may not be.

    make torture ARGS="--rounds 1000 --seed 7"
    make soak ARGS="--minutes 30"

Each round begins a fault at a random instant under load; several overlap. Every few rounds the
faults end, the Source pauses, and all copies have to become level and equal. Whatever was claimed
meanwhile, by a Destination or by `follow --once`, is compared with the history of the Source. The
seed determines what takes part, the faults and the settings, and not how the processes are
scheduled. After each hundred rounds a new deployment starts with the next seed.

With `--minutes` there is a fault a minute and an audit after it, all kinds of Destinations take
part, and the memory, descriptors and threads of each process must not grow; only the servers of
others are killed and restarted, so that a leak shows.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from statistics import median

from rsnotify.runtime.tasks import first_cause
from tests import fork_server, watchdog
from tests.harnesses.torture.faults import GENTLE, KINDS, Fault, Faults, draw
from tests.harnesses.torture.parts import false_clocks
from tests.harnesses.torture.scene import Scene, Wrong
from tests.harnesses.torture.soak import Growth

INTERRUPTED = 130
#: The rounds with one seed.
_SCENE = 100


def equip() -> None:
    """Replace this process by one that has mounts of its own, where that can be."""
    environment = dict(os.environ, TORTURE_MOUNTS="0", SSL_CERT_FILE=os.devnull)
    command = [sys.executable, "-m", "tests.harnesses.torture", *sys.argv[1:]]
    for unshare in (["unshare", "--mount"], ["unshare", "--mount", "--map-root-user"]):
        if (
            shutil.which("unshare")
            and not subprocess.run([*unshare, "true"], check=False).returncode
        ):
            command = [*unshare, *command]
            environment["TORTURE_MOUNTS"] = "1"
            break
    os.execvpe(command[0], command, environment)


async def torture(scene: Scene, faults: list[Fault], rounds: int) -> list[float]:
    """Cause faults, and settle after so many rounds, and at the end; return how long that took."""
    happening = Faults(scene)
    took = []
    began = time.monotonic()
    async with scene.playing():
        await scene.settle()
        for start in range(0, len(faults), rounds):
            async with asyncio.TaskGroup() as group:
                for number, fault in enumerate(faults[start : start + rounds], start + 1):
                    # At any instant: this wait stands for no event.
                    await asyncio.sleep(fault.wait)
                    print(f"{time.monotonic() - began:7.2f} s: {number} {fault}", flush=True)
                    group.create_task(happening.happen(fault))
            took.append(await scene.settle())
            print(
                f"{time.monotonic() - began:7.2f} s: all agree after {took[-1]:.1f} s", flush=True
            )
    kinds = Counter(fault.kind for fault in faults)
    print(", ".join(f"{kind} {number}" for kind, number in sorted(kinds.items())))
    print(scene.summary(), flush=True)
    return took


async def soak(scene: Scene, faults: list[Fault], pause: float) -> None:
    """Cause a fault now and then, audit, and measure; see `torture`."""
    happening, growth = Faults(scene), Growth(scene.deployment.parts)
    async with scene.playing():
        await scene.settle()
        for fault in faults:
            print(f"{time.monotonic():9.0f} s: {fault}", flush=True)
            await happening.happen(fault)
            await growth.measure(pause)
            await scene.settle()
    print(growth.report())
    print(scene.summary(), flush=True)
    if growth.grew():
        raise Wrong("; ".join(growth.grew()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=_SCENE, help="how many faults")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--minutes", type=float, help="a soak: one fault a minute")
    parser.add_argument("--settle", type=int, default=10, help="rounds until all have to agree")
    parser.add_argument("--pause", type=float, default=0.4, help="seconds between two faults")
    parser.add_argument("--rate", type=float, default=20.0, help="changes a second")
    parser.add_argument("--kind", action="append", choices=KINDS, help="only such faults")
    parser.add_argument("--target", default="", help="only faults of this process or path")
    parser.add_argument("--keep", type=Path, help="a folder to keep everything in")
    arguments = parser.parse_args()
    if "TORTURE_MOUNTS" not in os.environ:
        equip()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(INTERRUPTED))
    # Not in this process: there, `time.sleep` would fail.
    os.environ |= false_clocks()
    watchdog.start()
    fork_server.start()
    took: list[float] = []
    changes = 0
    for start in range(0, arguments.rounds, _SCENE):
        seed = arguments.seed + start // _SCENE
        print(f"seed {seed}", flush=True)
        with tempfile.TemporaryDirectory(
            prefix="rsnotify-torture-", ignore_cleanup_errors=True
        ) as name:
            root = arguments.keep / str(seed) if arguments.keep else Path(name)
            root.mkdir(parents=True, exist_ok=True)
            chance = random.Random(seed)
            scene = Scene(root, chance, arguments.rate, everything=bool(arguments.minutes))
            try:
                took += asyncio.run(interruptible(play(scene, chance, arguments, start)))
            except (Wrong, ExceptionGroup) as error:
                if not isinstance(wrong := first_cause(error), Wrong):
                    raise
                print(wrong, file=sys.stderr)
                print(f"seed {seed} again: add --seed {seed} to the arguments")
                return 1
            changes += scene.truth.changes
    used = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{sum(one.ru_utime + one.ru_stime for one in used):.0f} s of CPU, {changes} changes")
    if took:
        print(f"settled in at most {max(took):.1f} s, {median(took):.1f} s at the median")
    return 0


async def play(
    scene: Scene, chance: random.Random, arguments: argparse.Namespace, start: int
) -> list[float]:
    minutes = arguments.minutes
    number = max(1, round(minutes)) if minutes else min(arguments.rounds - start, _SCENE)
    kinds = arguments.kind or (GENTLE if minutes else ())
    deployment = scene.deployment
    targets = {"once", *deployment.parts, *deployment.services, *deployment.paths}
    if arguments.target:
        targets = {arguments.target}
    faults = draw(chance, number, targets, arguments.pause, kinds)
    if not minutes:
        return await torture(scene, faults, arguments.settle)
    await soak(scene, faults, 60 * minutes / len(faults))
    return []


async def interruptible(work: Coroutine[None, None, list[float]]) -> list[float]:
    """Return what work returns; end everything in order when this process is to end."""
    task = asyncio.ensure_future(work)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with suppress(asyncio.CancelledError):
        return await task
    raise SystemExit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
