"""Replay a history into a Source while hub, broker and Destination are killed; they end equal.

    python tests/end_to_end/replay.py --data history.jsonl.xz
    python tests/end_to_end/replay.py --via websub
    python tests/end_to_end/replay.py --via mqtt
    python tests/end_to_end/replay.py --via mqtt --no-hub
    python tests/end_to_end/replay.py --via xmpp
    python tests/end_to_end/replay.py --via poll
    python tests/end_to_end/replay.py --kill-ways
    python tests/end_to_end/replay.py --kill-ways --hubs 3
    python tests/end_to_end/replay.py --via websocket --calm --rate 100

With `--kill-ways` there is a hub for WebSocket, one for WebSub and a broker; each is killed and
comes back in turn, and the Destination has to hear by the best that is left.

Exit code 0 means: `diff -r` finds no difference, `rsnotify audit` says in step, and no change had
its effect twice.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.end_to_end import history
from tests.end_to_end.counting import POLL, counting, doubles, table
from tests.end_to_end.scenes import CALM, Plan, scene
from tests.end_to_end.stage import Stage


def mirroring(*options: str) -> Callable[[str, Path], list[str]]:
    """Return how to run `rsnotify follow`."""
    command = (sys.executable, "-m", "rsnotify", "follow")
    more = ("--json", "--allow-private-addresses", *options)
    return lambda url, folder: [*command, url, str(folder), *more]


async def replay(
    stage: Stage,
    steps: Sequence[history.Step],
    plan: Plan,
    *,
    rate: float | None = None,
    best: Sequence[str] = (),
    fails_over: bool = False,
) -> bool:
    """Replay and kill, and tell if all ends equal.

    Args:
        stage: Where.
        steps: The history.
        plan: What is killed when.
        rate: How many steps a second; None for as many as can be.
        best: By which ways the Destination has to hear before the history begins, the best first;
            not waited for if there are none.
        fails_over: Whether it has to hear by the best that is left before each part.
    """
    down: set[str] = set()
    try:
        await stage.start()
        started = time.monotonic()
        for number, part in enumerate(plan):
            began = time.monotonic()
            down = await change(stage, down, set(part))
            if best and "follow" not in down and (fails_over or number == 0):
                way = await until_heard(stage, best, down)
                print(f"heard of by {way} after {time.monotonic() - began:.1f} s", flush=True)
            some = steps[len(steps) * number // len(plan) : len(steps) * (number + 1) // len(plan)]
            await asyncio.to_thread(history.apply, some, stage.source_folder, rate)
        print(f"{len(steps)} changes replayed in {time.monotonic() - started:.1f} s", flush=True)
        return await ends_equal(stage)
    finally:
        await stage.stop()


async def change(stage: Stage, down: set[str], wanted: set[str]) -> set[str]:
    """Kill and revive, so that these are down; return them."""
    for name in sorted(wanted - down):
        await stage.kill(name)
    for name in sorted(down - wanted):
        await stage.revive(name)
    if changed := sorted(wanted ^ down):
        print(f"killed or revived: {', '.join(changed)}; away: {', '.join(sorted(wanted)) or '-'}")
    return wanted


async def until_heard(stage: Stage, best: Sequence[str], down: set[str]) -> str:
    """Wait until the Destination hears of changes by the best way that is left; return it."""
    way = next((way for way in best if way not in down), POLL)
    await stage.hears_by(way)
    return way


async def ends_equal(stage: Stage) -> bool:
    began = time.monotonic()
    equal = await stage.in_step()
    print(f"in step {time.monotonic() - began:.1f} s after: {equal}", flush=True)
    if not equal:
        print(stage.difference()[:2000])
    return equal


def once(stage: Stage) -> bool:
    """Print how late changes were, and tell if none had its effect twice."""
    print(table(stage.destination))
    twice = doubles(stage.destination)
    print(f"{len(twice)} changes had their effect more than once", *twice[:5], flush=True)
    return not twice


def play(arguments: argparse.Namespace, root: Path) -> bool:
    """Replay the chosen histories in a folder, print figures, and return whether all went well."""
    steps = list(history.read(arguments.data) if arguments.data else history.make_up(2_000))
    kills = arguments.kill_ways
    set_ = scene(arguments.via, hub=not arguments.no_hub, kill_ways=kills)
    options = (f"--via={arguments.via}", f"--poll={arguments.poll}", f"--hubs={arguments.hubs}")
    stage = Stage(root, set_.ways, counting(*options))
    plan = CALM if arguments.calm else set_.plan
    how = {"rate": arguments.rate, "best": set_.best, "fails_over": kills}
    equal = asyncio.run(replay(stage, steps, plan, **how))
    return once(stage) and equal


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="a history, .jsonl or .jsonl.xz; else made up")
    parser.add_argument("--no-hub", action="store_true", help="push straight to a broker")
    parser.add_argument("--via", default="auto", help="how the Destination hears of changes")
    parser.add_argument("--kill-ways", action="store_true", help="kill every way in turn")
    parser.add_argument("--hubs", type=int, default=1, help="how many ways are up at a time")
    parser.add_argument("--calm", action="store_true", help="kill nothing")
    parser.add_argument("--poll", type=float, default=1, help="seconds between polls without push")
    parser.add_argument("--rate", type=float, help="changes a second; else as many as can be")
    parser.add_argument("--keep", type=Path, help="a folder to keep everything in")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rsnotify-replay-") as name:
        root = arguments.keep or Path(name)
        root.mkdir(parents=True, exist_ok=True)
        return 0 if play(arguments, root) else 1


if __name__ == "__main__":
    sys.exit(main())
