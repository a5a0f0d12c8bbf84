"""The demo's Destination: a process, `rsnotify follow`, that the user can stop."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

import msgspec

from rsnotify.format.datetimes import Instant
from rsnotify.runtime.processes import Process, ProcessError
from rsnotify.runtime.tasks import first_completed

#: A line of the log: datetime, level, logger, message.
_LINE = re.compile(r"^\S+ (?:INFO|WARNING) rsnotify\.subscriber: (.*)$")


class ProcessState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


class DestinationStatus(msgspec.Struct):
    """The status that `rsnotify follow --json` prints about once a second."""

    resources: int = 0
    through: Instant | None = None
    lag_ms: float | None = None
    lag_p99_ms: float | None = None
    push: str | None = None


class DemoDestination:
    """Runs while started, and calls `on_status` with each status."""

    def __init__(
        self, source: str, folder: Path, on_status: Callable[[DestinationStatus], None]
    ) -> None:
        self._source = source
        self._on_status = on_status
        self._log = folder.with_name("destination.log")
        self._log_position = 0
        self._started = asyncio.Event()
        self._stopped = asyncio.Event()
        self.folder = folder
        self.state = ProcessState.STOPPED
        self.status = DestinationStatus()
        self.start()

    @property
    def started(self) -> bool:
        return self._started.is_set()

    def start(self) -> None:
        self._stopped.clear()
        self._started.set()

    def stop(self) -> None:
        self._started.clear()
        self._stopped.set()

    async def run(self) -> None:
        """Start and stop the process as the user requests.

        Raises:
            ProcessError: The process ended unexpectedly.
        """
        while True:
            await self._started.wait()
            self.state = ProcessState.STARTING
            process = await Process.start(
                "-v",
                "follow",
                self._source,
                str(self.folder),
                "--json",
                "--allow-private-addresses",
                log=self._log,
            )
            try:
                await self._follow(process)
                self.state = ProcessState.STOPPING
            finally:
                await process.stop()
                self.state = ProcessState.STOPPED

    async def _follow(self, process: Process) -> None:
        read = self._read_status(process)
        async with first_completed(read, self._stopped.wait()) as (reading, _):
            if reading.done():
                reading.result()
                if self.started:
                    raise ProcessError("rsnotify follow ended unexpectedly")

    async def _read_status(self, process: Process) -> None:
        async for line in process.lines():
            self.state = ProcessState.RUNNING
            self.status = msgspec.json.decode(line, type=DestinationStatus)
            self._on_status(self.status)

    def new_messages(self) -> list[str]:
        """Return the messages logged since the last call."""
        try:
            with self._log.open("rb") as log:
                log.seek(self._log_position)
                text = log.read()
        except OSError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._log_position += len(whole)
        matches = map(_LINE.match, whole.decode(errors="replace").splitlines())
        return [match.group(1) for match in matches if match]
