"""Source, hub, broker and Destinations as processes, with faulty paths between them."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from msgspec import Struct

from rsnotify.format.datetimes import parse_datetime
from rsnotify.runtime.processes import Process
from rsnotify.runtime.tasks import running
from tests import mosquitto
from tests.mosquitto import Mosquitto
from tests.ports import free_port
from tests.torture.faulty_path import FaultyPath
from tests.torture.parts import CLOCKS, Disk, Part
from tests.torture.truth import Claim, Truth, held_by

#: Seconds in which everything has to agree once there are no more faults.
PATIENCE = 120.0
#: How Destinations receive changes.
WAYS = ("websocket", "websub", "mqtt", "poll")
_HUB = """
retry_seconds = 0.1
max_retry_seconds = 1.0
callback_seconds = 2.0
min_lease_seconds = 1
websocket_ping_seconds = 0.7
log_bytes = {log_bytes}
"""


class Wrong(AssertionError):
    """The promise was broken."""


class _Destination(Struct):
    """A copy, and what was last reported of it."""

    folder: Path
    status: Mapping[str, Any] = {}
    reported: int = 0


class Scene:
    """Everything that takes part.

    Args:
        root: An empty folder.
        random: Decides the settings of the Source and the hub.
        rate: The changes a second.

    Attributes:
        parts: The processes.
        paths: What is between them.
        broker: The broker, if there is one.
        truth: What the Source has recorded.
        notes: How many commands succeeded, and claims were made, by name.
    """

    def __init__(self, root: Path, random: Random, rate: float) -> None:
        self._root = root
        self.truth = Truth()
        self._claims: list[Claim] = []
        self.notes: dict[str, int] = {}
        self.parts: dict[str, Part] = {}
        self.paths: dict[str, FaultyPath] = {}
        self._running = False
        self._failures: list[str] = []
        self._reported = asyncio.Condition()
        self._paused = False
        self._last_output: list[str] = []
        self._random = random
        found = shutil.which("mosquitto", path=mosquitto.PATH)
        self.broker = Mosquitto(root / "mosquitto") if found else None
        self._destinations: dict[str, _Destination] = {}
        self._add_source_and_hub(rate)
        for way in WAYS if self.broker else set(WAYS) - {"mqtt"}:
            self._add_destination(way)
        self._once = root / "once"
        self._once.mkdir()

    def _path(self, name: str, target: int, *, aware: bool = True) -> int:
        path = FaultyPath(name, target, Random(self._random.random()), aware=aware)
        self.paths[name] = path
        return path.port

    def _part(self, name: str, *command: str, on_line: Any) -> None:
        disk = Disk(self._root / name)
        self.parts[name] = Part(name, list(command), self._root, disk, on_line)

    def _add_source_and_hub(self, rate: float) -> None:
        for name in ("source", "hub", *WAYS):
            (self._root / name).mkdir()
        source, hub = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self._path('read', source)}/"
        published, subscribed = self._path("publish", hub), self._path("subscribe", hub)
        settings = self._root / "hub.toml"
        lines = _HUB.format(log_bytes=self._random.choice([200_000, 5_000_000]))
        if self.broker is not None:
            lines += f'mqtt_url = "mqtt://127.0.0.1:{self._to_broker("bridge")}"\n'
        settings.write_text(lines)
        publish = self._random.choice(["http://{}/websub", "ws://{}/ws"])
        advertised = f"http://127.0.0.1:{subscribed}/"
        self._part(
            "source",
            *("tests.torture.live_source", str(self._root / "source"), "--url", self.url),
            *("--port", str(source), "--hub", publish.format(f"127.0.0.1:{published}")),
            *("--advertise", advertised, "--rate", str(rate)),
            *("--seed", str(self._random.randrange(10**6))),
            *("--rotate", self._random.choice(["60 changes", "500 changes"])),
            *("--keep", self._random.choice(["2 lists", "100 lists"])),
            on_line=self._on_source,
        )
        self._part(
            "hub",
            *("rsnotify", "hub", "--port", str(hub), "--public-url", advertised),
            *("--data", str(self._root / "hub"), "--config", str(settings)),
            "--allow-private-addresses",
            on_line=lambda line: None,
        )

    def _to_broker(self, name: str) -> int:
        assert self.broker is not None
        return self._path(name, self.broker.port, aware=False)

    def _add_destination(self, way: str) -> None:
        folder = self._root / way / "copy"
        command = ["rsnotify", "follow", self.url, str(folder), "--json", "--via", way]
        command += ["--allow-private-addresses", "--poll", "0.5"]
        if way == "websub":
            port = free_port()
            url = f"http://127.0.0.1:{self._path('deliver', port)}/"
            command += ["--callback-url", url, "--callback-port", str(port)]
            command += ["--callback-lease", "3", "--callback-quiet", "2"]
            command += ["--callback-patience", "5"]
        elif way == "mqtt":
            command += ["--mqtt-url", f"mqtt://127.0.0.1:{self._to_broker('broker')}"]
        destination = self._destinations[way] = _Destination(folder)
        self._part(way, *command, on_line=lambda line: self._on_status(way, destination, line))

    # What the processes report

    def _on_source(self, line: bytes) -> None:
        try:
            self._note(json.loads(line))
        except AssertionError as error:
            self._failures.append(str(error))

    def _note(self, facts: Mapping[str, Any]) -> None:
        event = facts["event"]
        if event == "intended":
            self.truth.intend(facts["name"], facts["hash"])
        elif event == "recorded":
            self.truth.acknowledge(facts["name"], facts["hash"], parse_datetime(facts["at"]))
        elif event == "serving":
            for name in self.truth.unacknowledged():
                self.parts["source"].send(f"again {name}")
            self.parts["source"].send("go" if self._running else "pause")
        self._paused = event == "paused"

    def _on_status(self, name: str, destination: _Destination, line: bytes) -> None:
        status = json.loads(line)
        destination.status = status
        destination.reported += 1
        self._claim(name, status, destination.folder)

    def _claim(self, name: str, status: Mapping[str, Any], folder: Path) -> None:
        if status["level"] and status["in_step"] is not False:
            self.notes[f"claims by {name}"] = self.notes.get(f"claims by {name}", 0) + 1
            through = parse_datetime(status["through"])
            self._claims.append(Claim(name, through, held_by(folder)))

    # Running

    @asynccontextmanager
    async def playing(self) -> AsyncIterator[None]:
        """Run everything within the context."""
        try:
            for part in self.parts.values():
                part.disk.mount()
            print(self._equipment(), flush=True)
            for path in self.paths.values():
                await path.start()
            if self.broker is not None:
                await self.broker.start()
            self._running = True
            async with running(*(part.run() for part in self.parts.values())):
                yield
        finally:
            for part in self.parts.values():
                part.kill()
                part.disk.unmount()
            for path in self.paths.values():
                await path.stop()
            if self.broker is not None:
                await self.broker.stop()

    async def once(self) -> list[str]:
        """Run `rsnotify follow --once`, and note what it claims if it exits with 0."""
        options = ("--once", "--json", "--allow-private-addresses")
        code, lines = await self._command("follow", self.url, str(self._once), *options)
        if code == 0:
            status = json.loads(lines[-1])
            self._claim("follow --once", status, self._once)
            if not status["level"]:
                self._failures.append(f"follow --once exits with 0, and is not level: {status}")
        return lines

    async def _command(self, *arguments: str) -> tuple[int, list[str]]:
        """Run a command; return its exit code and output."""
        process = await Process.start(*arguments, log=self._root / f"{arguments[0]}.log")
        try:
            async with asyncio.timeout(PATIENCE):
                lines = [line async for line in process.lines()]
                return await process.wait(), lines
        except TimeoutError:
            raise Wrong(f"rsnotify {arguments[0]} does not end") from None
        finally:
            if process._process.returncode is None:
                await process.kill()

    async def settle(self) -> float:
        """Pause the Source, wait until all agree, check all claims; return the seconds it took.

        Raises:
            Wrong: Something does not agree, or was claimed and is not so.
        """
        began = time.monotonic()
        self._running = False
        self.parts["source"].send("pause")
        await self._until(lambda: self._paused, "the Source does not record what it changed")
        for name, destination in self._destinations.items():
            before = destination.reported
            await self._until(
                lambda d=destination, n=before: d.reported > n and self._is_level(d.status),
                f"{name} does not become level: {destination.status}",
            )
        took = time.monotonic() - began
        await self._until_true(self._is_level_once, "rsnotify follow --once")
        await self._until_true(self._is_in_step, "rsnotify audit")
        self._check_claims()
        for part in self.parts.values():
            self._failures += part.ended
            part.ended = []
            part.excused = False
        if self._failures:
            raise Wrong("\n".join(self._failures))
        self._running = True
        self.parts["source"].send("go")
        return took

    async def _until(self, is_so: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not is_so():
            if time.monotonic() > deadline:
                raise Wrong(f"{otherwise} within {PATIENCE:.0f} s")
            await asyncio.sleep(0.05)

    async def _until_true(self, work: Callable[[], Awaitable[bool]], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not await work():
            if time.monotonic() > deadline:
                raise Wrong(f"{what} does not succeed within {PATIENCE:.0f} s: {self._last_output}")
            await asyncio.sleep(0.3)

    def _is_level(self, status: Mapping[str, Any]) -> bool:
        last = self.truth.last
        through = status["through"]
        done = last is None or (through is not None and parse_datetime(through) >= last)
        return done and status["level"] and status["in_step"] is not False

    async def _is_level_once(self) -> bool:
        claimed = len(self._claims)
        self._last_output = await self.once()
        last = self.truth.last
        return any(last is None or one.through >= last for one in self._claims[claimed:])

    async def _is_in_step(self) -> bool:
        """Audit one of the copies; an exit code of 0 has to be right, since nothing changes."""
        name = self._random.choice(sorted(self._destinations))
        folder = self._destinations[name].folder
        options = ("--json", "--allow-private-addresses")
        code, lines = await self._command("audit", self.url, str(folder), *options)
        if code == 0 and held_by(folder) != self.truth.now():
            raise Wrong(f"rsnotify audit: {name} is in step, and it is not")
        self._last_output = lines
        return code == 0

    def _check_claims(self) -> None:
        """Check what was claimed since the last time, now that all acknowledgements are known."""
        claims, self._claims = self._claims, []
        for claim in claims:
            self._failures += self.truth.check(claim)
        for name, destination in self._destinations.items():
            if held_by(destination.folder) != self.truth.now():
                self._failures.append(f"{name} is level and differs from the Source")

    # What happened

    def _equipment(self) -> str:
        """Return what there is here to bring faults about, in a sentence."""
        disks = all(part.disk.mounted for part in self.parts.values())
        return (
            f"clocks: {'libfaketime' if CLOCKS else 'not faked, since faketime is not installed'}; "
            f"disks: {'tmpfs' if disks else 'limited by RLIMIT_FSIZE, since none can be mounted'}; "
            f"broker: {'mosquitto' if self.broker else 'none, since mosquitto is not installed'}"
        )

    def summary(self) -> str:
        """Return how much happened, in lines."""
        logs = [path.read_text(errors="replace") for path in self._root.glob("*.log")]
        starts = ", ".join(f"{name} {part.starts}" for name, part in self.parts.items())
        claims = ", ".join(f"{name} {number}" for name, number in sorted(self.notes.items()))
        shuffled = sum(path.shuffled for path in self.paths.values())
        resets = sum(path.resets for path in self.paths.values())
        return (
            f"{self.truth.changes} changes recorded; starts: {starts}\n{claims}\n"
            f"{shuffled} messages repeated or reordered, {resets} connections reset; "
            f"{sum(log.count('Traceback') for log in logs)} tracebacks in logs"
        )
