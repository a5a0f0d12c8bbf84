"""The demo's Destination, which the user can stop, and its link, which the user can cut."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from rsnotify.format.datetimes import Instant
from rsnotify.runtime.processes import Process, ProcessError
from rsnotify.runtime.tasks import first_completed

_CHUNK_BYTES = 65536


class PushLink:
    """Forwards bytes to the hub and back unless it is cut. `open_link` creates a link.

    A client that connects while the link is cut waits until the link is restored or it gives up, as
    if the network were down.

    Attributes:
        carried: The number of bytes that the hub has sent to the Destination.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._connected = asyncio.Event()
        self._connected.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.carried = 0

    @property
    def connected(self) -> bool:
        return self._connected.is_set()

    def cut(self) -> None:
        self._connected.clear()
        for writer in self._writers:
            writer.transport.abort()

    def restore(self) -> None:
        self._connected.set()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            early = await self._wait(reader)
            if early is not None:
                await self._forward(reader, writer, early)
        writer.transport.abort()

    async def _wait(self, reader: asyncio.StreamReader) -> bytes | None:
        """Wait until the link is restored, and return the bytes received from the client so far.

        Return None if the client disconnects.
        """
        early = b""
        while not self.connected:
            async with first_completed(reader.read(_CHUNK_BYTES), self._connected.wait()) as (
                more,
                _,
            ):
                if more.done():
                    chunk = more.result()
                    if not chunk:
                        return None
                    early += chunk
        return early

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, early: bytes
    ) -> None:
        hub_reader, hub_writer = await asyncio.open_connection(self._host, self._port)
        writers = {writer, hub_writer}
        self._writers |= writers
        try:
            hub_writer.write(early)
            to_hub = self._copy(reader, hub_writer)
            from_hub = self._copy(hub_reader, writer, counted=True)
            async with first_completed(to_hub, from_hub):
                pass  # one side has closed the connection, or the link was cut
        finally:
            self._writers -= writers
            hub_writer.transport.abort()

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counted: bool = False
    ) -> None:
        while chunk := await reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
            self.carried += len(chunk) if counted else 0


@asynccontextmanager
async def open_link(hub: str) -> AsyncIterator[tuple[PushLink, str]]:
    """Return a context with an open link to a hub, and its URL."""
    parts = urlsplit(hub)
    link = PushLink(parts.hostname or "127.0.0.1", parts.port or 80)
    server = await asyncio.start_server(link.handle, "127.0.0.1", 0)
    try:
        yield link, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()
        link.cut()


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
