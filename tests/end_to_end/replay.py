"""Replay a history into a Source while hub, broker and Destination are killed; they end equal.

    python tests/end_to_end/replay.py --data history.jsonl.xz
    python tests/end_to_end/replay.py --no-hub
    python tests/end_to_end/replay.py --via websub
    python tests/end_to_end/replay.py --via mqtt
    python tests/end_to_end/replay.py --via mqtt --no-hub

Exit code 0 means: `diff -r` finds no difference, and `rsnotify audit` says in step.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rsnotify.commands.processes import Process, free_port
from tests.end_to_end import history
from tests.mosquitto import Mosquitto

#: Seconds in which the Destination has to be in step after the last change.
PATIENCE = 180.0


class Replay:
    """A Source, perhaps a hub or a broker or both, and a Destination: processes in one folder."""

    def __init__(self, root: Path, *, hub: bool, broker: bool, follow: list[str]) -> None:
        self.root = root
        self.source_folder = root / "source"
        self.destination = root / "destination"
        self.source_folder.mkdir()
        self.url = f"http://127.0.0.1:{free_port()}/"
        self.hub_url = f"http://127.0.0.1:{free_port()}/" if hub else None
        self.broker = Mosquitto(root / "mosquitto") if broker else None
        self._follow = follow
        self._processes: dict[str, Process] = {}

    async def start(self) -> None:
        """Start all processes."""
        if self.broker is not None:
            await self.broker.start()
        await self.start_hub()
        await self._start("source", str(self.source_folder), *self._at(self.url), *self._hubs())
        await self._processes["source"].url()
        await self.start_follow()

    def _hubs(self) -> list[str]:
        broker = None if self.broker is None else self.broker.url
        if self.hub_url is None:
            return [] if broker is None else ["--hub", broker]
        return ["--hub", self.hub_url, *(["--advertise", broker] if broker else [])]

    def _at(self, url: str) -> list[str]:
        port = url.rstrip("/").rpartition(":")[2]
        return ["--base-url", url, "--port", port, "--allow-private-addresses"]

    async def start_hub(self) -> None:
        """Start the hub, where there is to be one, and wait until it serves."""
        if self.hub_url is not None:
            port = self.hub_url.rstrip("/").rpartition(":")[2]
            settings = self.root / "hub.toml"
            broker = f'mqtt_url = "{self.broker.url}"\n' if self.broker else ""
            settings.write_text(broker)
            where = ("--data", str(self.root / "hub"), "--config", str(settings))
            await self._start("hub", "--port", port, *where, "--allow-private-addresses")
            await self._processes["hub"].url()

    async def start_follow(self) -> None:
        """Start the Destination."""
        await self._start(
            *("follow", self.url, str(self.destination), "--json", "--allow-private-addresses"),
            *self._follow,
        )

    async def _start(self, *arguments: str) -> None:
        log = self.root / f"{arguments[0]}.log"
        self._processes[arguments[0]] = await Process.start(*arguments, log=log)

    async def kill(self, name: str) -> None:
        """Kill -9 one of the processes."""
        if name == "broker" and self.broker is not None:
            await self.broker.stop(signal.SIGKILL)
        elif name in self._processes:
            await self._processes[name].kill()

    async def stop(self) -> None:
        """End all processes."""
        for process in reversed(self._processes.values()):
            await process.stop()
        if self.broker is not None:
            await self.broker.stop()

    async def audit(self) -> int:
        """Return the exit code of `rsnotify audit`."""
        process = await Process.start(
            *("audit", self.url, str(self.destination), "--allow-private-addresses"),
            log=self.root / "audit.log",
        )
        async for line in process.lines():
            last = line
        print(f"audit: {last}", flush=True)
        return await process.wait()

    def difference(self) -> str:
        """Return what `diff -r` prints."""
        command = ["diff", "-r", str(self.source_folder), str(self.destination)]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    async def in_step(self) -> bool:
        """Wait until the Destination is in step with the Source."""
        deadline = time.monotonic() + PATIENCE
        while await self.audit() != 0 or self.difference():
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(1)
        return True


async def replay(
    root: Path,
    steps: list[history.Step],
    *,
    hub: bool = True,
    broker: bool = False,
    follow: list[str] | None = None,
) -> bool:
    """Replay, kill hub and broker twice and the Destination once; tell if they end equal."""
    run = Replay(root, hub=hub, broker=broker, follow=follow or [])
    sixth = len(steps) // 6
    kills = {1: "hub", 2: "broker", 3: "follow", 4: "broker", 5: "hub"}
    try:
        await run.start()
        started = time.monotonic()
        for part in range(6):
            if name := kills.get(part):
                await run.kill(name)
            end = (part + 1) * sixth if part < 5 else len(steps)
            await asyncio.to_thread(history.apply, steps[part * sixth : end], run.source_folder)
            if name == "hub":
                await run.start_hub()
            elif name == "follow":
                await run.start_follow()
            elif name == "broker" and run.broker is not None:
                await run.broker.start()
        print(f"{len(steps)} changes replayed in {time.monotonic() - started:.1f} s", flush=True)
        equal = await run.in_step()
        print(f"in step after {time.monotonic() - started:.1f} s: {equal}", flush=True)
        if not equal:
            print(run.difference()[:2000])
        return equal
    finally:
        await run.stop()


def by(via: str) -> list[str]:
    """Return the options of a Destination that hears of changes in one way only."""
    if via != "websub":
        return ["--via", via]
    return ["--via", via, "--callback-url", f"http://127.0.0.1:{free_port()}/"]


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="a history, .jsonl or .jsonl.xz; else made up")
    parser.add_argument("--no-hub", action="store_true", help="poll, or push straight to a broker")
    parser.add_argument("--via", default="auto", help="how the Destination hears of changes")
    parser.add_argument("--keep", type=Path, help="a folder to keep everything in")
    arguments = parser.parse_args()
    steps = list(history.read(arguments.data) if arguments.data else history.make_up(2_000))
    polls = arguments.no_hub and arguments.via != "mqtt"
    follow = ["--via", "poll", "--poll", "1"] if polls else by(arguments.via)
    with tempfile.TemporaryDirectory(prefix="rsnotify-replay-") as name:
        root = arguments.keep or Path(name)
        root.mkdir(parents=True, exist_ok=True)
        broker = arguments.via == "mqtt"
        equal = asyncio.run(
            replay(root, steps, hub=not arguments.no_hub, broker=broker, follow=follow)
        )
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
