"""`rsnotify demo`: a live Source, a hub and a Destination on this machine, to watch."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Annotated

import msgspec
import typer

from rsnotify.commands import run
from rsnotify.commands.processes import Process, ProcessError, free_port

_SENSORS = 60
_OBSERVATION = """\
@prefix sosa: <http://www.w3.org/ns/sosa/> .
@prefix xsd: <http://www.w3.org/2001/XMLSchema#> .

<#observation> a sosa:Observation ;
    sosa:madeBySensor <#sensor-{sensor}> ;
    sosa:hasSimpleResult {value:.2f} ;
    sosa:resultTime "{time}"^^xsd:dateTime .
"""


def demo(
    seconds: Annotated[
        float | None, typer.Option(min=1, help="Stop after so many seconds; else at Ctrl-C.")
    ] = None,
    rate: Annotated[float, typer.Option(min=0.1, help="Changes a second.")] = 25.0,
) -> None:
    """Show a Source changing, the hub, and a Destination in step, on this machine."""
    with tempfile.TemporaryDirectory(prefix="rsnotify-demo-") as folder:
        raise typer.Exit(run(lambda stop: _demo(stop, Path(folder), seconds, rate)))


async def _demo(stop: asyncio.Event, root: Path, seconds: float | None, rate: float) -> int:
    observations = Observations(root / "source")
    destination = root / "destination"
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(_hub(root))
        source = await stack.enter_async_context(_source(root, hub))
        statuses = await stack.enter_async_context(_destination(source, destination))
        typer.echo(f"Source       {source}  {_SENSORS} Turtle files, {rate:g} changes a second")
        typer.echo(f"hub          {hub}  <- a page to watch")
        typer.echo(f"Destination  {destination}")
        await _watch(stop, seconds, rate, observations, statuses)
        typer.echo("the Source rests. Audit of the Destination against it:")
        return await _audit(source, destination)


class Observations:
    """A folder of linked data that changes fast: one small Turtle file a sensor.

    Args:
        folder: Where the files are; it is made and filled.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._random = Random()
        self.changes = 0
        folder.mkdir()
        for sensor in range(_SENSORS):
            self._observe(sensor)

    def change(self) -> None:
        """Update a file; now and then take one away, or bring it back."""
        sensor = self._random.randrange(_SENSORS)
        path = self._path(sensor)
        if path.exists() and self._random.random() < 0.05:
            path.unlink()
        else:
            self._observe(sensor)
        self.changes += 1

    def _path(self, sensor: int) -> Path:
        return self._folder / f"sensor-{sensor:02}.ttl"

    def _observe(self, sensor: int) -> None:
        time = datetime.now(UTC).isoformat()
        value = self._random.gauss(20, 5)
        # A Source replaces its files whole, so that nobody reads half of one.
        temporary = self._folder / f".{sensor}"
        temporary.write_text(_OBSERVATION.format(sensor=sensor, value=value, time=time))
        temporary.replace(self._path(sensor))


@asynccontextmanager
async def _hub(root: Path) -> AsyncIterator[str]:
    process = await Process.start(
        "hub", "--port", "0", "--data", str(root / "hub"), log=root / "hub.log"
    )
    try:
        yield await process.url()
    finally:
        await process.stop()


@asynccontextmanager
async def _source(root: Path, hub: str) -> AsyncIterator[str]:
    port = str(free_port())
    url = f"http://127.0.0.1:{port}/"
    process = await Process.start(
        *("source", str(root / "source"), "--base-url", url, "--port", port, "--hub", hub),
        "--allow-private-addresses",
        log=root / "source.log",
    )
    try:
        await process.url()
        yield url
    finally:
        await process.stop()


@asynccontextmanager
async def _destination(source: str, folder: Path) -> AsyncIterator[AsyncIterator[str]]:
    process = await Process.start(
        *("follow", source, str(folder), "--json", "--allow-private-addresses"),
        log=folder.with_name("destination.log"),
    )
    try:
        yield process.lines()
    finally:
        await process.stop()


class Status(msgspec.Struct):
    """What `rsnotify follow --json` tells about each second."""

    resources: int = 0
    applied: int = 0
    pending: int = 0
    lag_ms: float | None = None
    push: str | None = None
    level: bool = False


async def _watch(
    stop: asyncio.Event,
    seconds: float | None,
    rate: float,
    observations: Observations,
    statuses: AsyncIterator[str],
) -> None:
    """Keep the Source changing and the user told, until time is over or the user stops it."""
    async with asyncio.TaskGroup() as tasks:
        changing = tasks.create_task(_keep_changing(observations, rate))
        telling = tasks.create_task(_tell(observations, statuses))
        try:
            async with asyncio.timeout(seconds):
                await stop.wait()
        except TimeoutError:
            pass
        changing.cancel()
        telling.cancel()
    if sys.stdout.isatty():
        typer.echo()


async def _keep_changing(observations: Observations, rate: float) -> None:
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        observations.change()
        due += 1 / rate
        await asyncio.sleep(max(0.0, due - loop.time()))


async def _tell(observations: Observations, statuses: AsyncIterator[str]) -> None:
    started = asyncio.get_running_loop().time()
    async for line in statuses:
        status = msgspec.json.decode(line, type=Status)
        passed = asyncio.get_running_loop().time() - started
        lag = "-" if status.lag_ms is None else f"{status.lag_ms:.1f} ms"
        place = "in step" if status.level else f"{status.pending} on the way"
        text = (
            f"{passed:5.0f} s   Source: {observations.changes} changes   Destination: "
            f"{status.applied} applied, {place}, lag {lag}, push {status.push or 'away'}"
        )
        if sys.stdout.isatty():
            typer.echo(f"\r\x1b[2K{text}", nl=False)
        else:
            typer.echo(text)
    raise ProcessError("rsnotify follow ended; it should have gone on")


async def _audit(source: str, destination: Path) -> int:
    process = await Process.start(
        *("audit", source, str(destination), "--allow-private-addresses"),
        log=destination.with_name("audit.log"),
    )
    async for line in process.lines():
        typer.echo(line)
    return await process.wait()
