"""What happens in a deployment: it runs, and everything that is claimed is checked."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from rsnotify.format.datetimes import parse_datetime
from rsnotify.runtime.processes import Process
from rsnotify.runtime.tasks import cancel, running
from tests.harnesses.torture.deployment import Copy, Deployment, FolderCopy
from tests.harnesses.torture.parts import CLOCKS
from tests.harnesses.torture.truth import Claim, Truth

#: Seconds in which everything has to agree once there are no more faults.
PATIENCE = 120.0


class Wrong(AssertionError):
    """The promise was broken."""


class Scene:
    """A deployment that runs, and what is known of it."""

    def __init__(
        self, root: Path, random: Random, rate: float, *, everything: bool = False
    ) -> None:
        self._root = root
        self._random = random
        self.truth = Truth()
        self._claims: list[Claim] = []
        self._reading: set[asyncio.Task[None]] = set()
        self.notes: dict[str, int] = {}
        self._statuses: dict[str, Mapping[str, Any]] = {}
        self._reported: dict[str, int] = {}
        self._running = False
        self._failures: list[str] = []
        self._paused = False
        self._last_output: list[str] = []
        self.deployment = Deployment(
            root, random, rate, self._on_source, self._on_status, everything=everything
        )
        self._parts = self.deployment.parts
        self._once = FolderCopy(root / "once")
        self._once.folder.mkdir()

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
                self._parts["source"].send(f"again {name}")
            self._parts["source"].send("go" if self._running else "pause")
            self.truth.check_journal(parse_datetime(facts["last"]))
        self._paused = event == "paused"

    def _on_status(self, name: str, line: bytes) -> None:
        status = json.loads(line)
        if "changed" in status:  # it follows several Sources, and names those that changed
            (status,) = status["changed"].values() or [self._statuses.get(name, {})]
        self._reported[name] = self._reported.get(name, 0) + 1
        self._statuses[name] = status
        if status:
            reading = asyncio.create_task(self._claim(name, status, self.deployment.copies[name]))
            self._reading.add(reading)

    async def _claim(self, name: str, status: Mapping[str, Any], copy: Copy) -> None:
        if not (status["level"] and status["in_step"] is not False):
            return
        self.notes[f"claims by {name}"] = self.notes.get(f"claims by {name}", 0) + 1
        held = await copy.held()
        if held is not None:
            self._claims.append(Claim(name, parse_datetime(status["through"]), held))

    # Running

    @asynccontextmanager
    async def playing(self) -> AsyncIterator[None]:
        try:
            await self.deployment.start()
            clocks = "libfaketime" if CLOCKS else "not faked, since faketime is not installed"
            print(f"clocks: {clocks}; {self.deployment}", flush=True)
            self._running = True
            async with running(*(part.run() for part in self._parts.values())):
                yield
        finally:
            await cancel(self._reading)
            await self.deployment.stop()

    async def once(self) -> list[str]:
        """Run `rsnotify follow --once`, and note what it claims if it exits with 0."""
        options = ("--once", "--json", "--allow-private-addresses")
        folder = str(self._once.folder)
        code, lines = await self._command("follow", self.deployment.url, folder, *options)
        if code == 0:
            status = json.loads(lines[-1])
            await self._claim("follow --once", status, self._once)
            if not status["level"]:
                self._failures.append(f"follow --once exits with 0, and is not level: {status}")
        return lines

    async def _command(self, *arguments: str) -> tuple[int, list[str]]:
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
        """Pause the Source, wait until all agree, check all claims; return the seconds it took."""
        began = time.monotonic()
        self._running = False
        self._parts["source"].send("pause")
        await self._until(lambda: self._paused, lambda: "the Source does not record its changes")
        before = dict(self._reported)
        for name in self.deployment.copies:
            await self._until(
                lambda name=name: (
                    self._reported.get(name, 0) > before.get(name, 0)
                    and self._is_level(self._statuses[name])
                ),
                lambda name=name: f"{name} does not become level: {self._statuses.get(name)}",
            )
        took = time.monotonic() - began
        await self._until_true(self._is_level_once, "rsnotify follow --once")
        await self._until_true(self._is_in_step, "rsnotify audit")
        await self._check_claims()
        for part in self._parts.values():
            self._failures += part.ended
            part.ended = []
            part.excused = False
        if self._failures:
            raise Wrong("\n".join(self._failures))
        self._running = True
        self._parts["source"].send("go")
        return took

    async def _until(self, is_so: Callable[[], bool], otherwise: Callable[[], str]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not is_so():
            if self._failures:  # it may be the reason
                raise Wrong("\n".join(self._failures))
            if time.monotonic() > deadline:
                raise Wrong(f"{otherwise()} within {PATIENCE:.0f} s")
            await asyncio.sleep(0.05)

    async def _until_true(self, work: Callable[[], Awaitable[bool]], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not await work():
            if time.monotonic() > deadline:
                raise Wrong(f"{what} does not succeed within {PATIENCE:.0f} s: {self._last_output}")
            await asyncio.sleep(0.3)

    def _is_level(self, status: Mapping[str, Any]) -> bool:
        if not status:
            return False
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
        folders = {
            name: copy
            for name, copy in self.deployment.copies.items()
            if isinstance(copy, FolderCopy)
        }
        name = self._random.choice(sorted(folders))
        folder = folders[name].folder
        options = ("--json", "--allow-private-addresses")
        code, lines = await self._command("audit", self.deployment.url, str(folder), *options)
        if code == 0 and await folders[name].held() != self.truth.now():
            raise Wrong(f"rsnotify audit: {name} is in step, and it is not")
        self._last_output = lines
        return code == 0

    async def _check_claims(self) -> None:
        """Check what was claimed since the last time, now that all acknowledgements are known."""
        reading, self._reading = self._reading, set()
        await asyncio.gather(*reading)
        claims, self._claims = self._claims, []
        for claim in claims:
            self._failures += self.truth.check(claim)
        for name, copy in self.deployment.copies.items():
            if await copy.held() != self.truth.now():
                self._failures.append(f"{name} is level and differs from the Source")
            self._failures += await copy.doubles()

    def summary(self) -> str:
        found = Counter(
            f"{path.stem}: {error}" for path in self._root.glob("*.log") for error in _raised(path)
        )
        raised = "".join(f"\n{number} times {error}" for error, number in found.items())
        starts = ", ".join(f"{name} {part.starts}" for name, part in self._parts.items())
        claims = ", ".join(f"{name} {number}" for name, number in sorted(self.notes.items()))
        shuffled = sum(path.shuffled for path in self.deployment.paths.values())
        resets = sum(path.resets for path in self.deployment.paths.values())
        return (
            f"{self.truth.changes} changes recorded; starts: {starts}\n{claims}\n"
            f"{shuffled} messages repeated or reordered, {resets} connections reset; "
            f"{found.total()} tracebacks in logs{raised}"
        )


def _raised(log: Path) -> Iterator[str]:
    """Yield the last line of each traceback in a log."""
    within = False
    for line in log.read_text(errors="replace").splitlines():
        if "Traceback (most" in line:
            within = True
        elif within and line.strip() and not line.startswith((" ", "\t")):
            within = False
            yield line
