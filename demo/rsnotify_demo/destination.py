"""The Destination of the demo: `rsnotify follow` as a process that can be stopped and started."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

import msgspec

from rsnotify.format.datetimes import Instant
from rsnotify.runtime.processes import Process, ProcessError

#: A line of the log: when, how important, who, what.
_LINE = re.compile(r"^\S+ (?:INFO|WARNING) rsnotify\.subscriber: (.*)$")


class ProcessState(StrEnum):
    """Whether the process runs."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


class DestinationStatus(msgspec.Struct):
    """What `rsnotify follow --json` tells about each second."""

    resources: int = 0
    applied: int = 0
    copied: int = 0
    pending: int = 0
    through: Instant | None = None
    lag_ms: float | None = None
    push: str | None = None
    level: bool = False


class DemoDestination:
    """Follows a Source as long as it is wanted to.

    Args:
        source: The Source's URL.
        folder: The copy.
        heard: Called with each status.

    Attributes:
        life: Whether it runs.
        status: The last one it told.
    """

    def __init__(
        self, source: str, folder: Path, heard: Callable[[DestinationStatus], None]
    ) -> None:
        self._source = source
        self._heard = heard
        self._log = folder.with_name("destination.log")
        self._read = 0
        self._wanted = asyncio.Event()
        self._unwanted = asyncio.Event()
        self.folder = folder
        self.life = ProcessState.STOPPED
        self.status = DestinationStatus()
        self.start()

    @property
    def wanted(self) -> bool:
        """Tell whether it is to run."""
        return self._wanted.is_set()

    def start(self) -> None:
        """Let it run."""
        self._unwanted.clear()
        self._wanted.set()

    def stop(self) -> None:
        """Let it not run."""
        self._wanted.clear()
        self._unwanted.set()

    async def run(self) -> None:
        """Do what is wanted until cancelled.

        Raises:
            ProcessError: It ended of itself.
        """
        while True:
            await self._wanted.wait()
            self.life = ProcessState.STARTING
            process = await Process.start(
                *("-v", "follow", self._source, str(self.folder), "--json"),
                "--allow-private-addresses",
                log=self._log,
            )
            try:
                await self._follow(process)
                self.life = ProcessState.STOPPING
            finally:
                await process.stop()
                self.life = ProcessState.STOPPED

    async def _follow(self, process: Process) -> None:
        listening = asyncio.create_task(self._listen(process))
        unwanted = asyncio.create_task(self._unwanted.wait())
        try:
            await asyncio.wait({listening, unwanted}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            unwanted.cancel()
            listening.cancel()
        if listening.done() and not listening.cancelled():
            listening.result()
            if self.wanted:
                raise ProcessError("rsnotify follow ended; it should have gone on")

    async def _listen(self, process: Process) -> None:
        async for line in process.lines():
            self.life = ProcessState.RUNNING
            self.status = msgspec.json.decode(line, type=DestinationStatus)
            self._heard(self.status)

    def notes(self) -> list[str]:
        """Return what it has written into its log since this was called last."""
        try:
            with self._log.open("rb") as log:
                log.seek(self._read)
                text = log.read()
        except OSError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        matches = map(_LINE.match, whole.decode(errors="replace").splitlines())
        return [match.group(1) for match in matches if match]
