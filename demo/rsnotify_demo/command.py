"""The command `rsnotify demo`: everything started, watched, ended and audited."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import typer

from rsnotify.plural import counted
from rsnotify.runtime.cli.running import run
from rsnotify.runtime.processes import Process, ProcessError

if TYPE_CHECKING:
    from rich.live import Live

    from rsnotify_demo.destination import DemoDestination, DestinationStatus
    from rsnotify_demo.flush_time import FlushTimer
    from rsnotify_demo.monitor import DemoMonitor
    from rsnotify_demo.observations import Observations

#: Seconds that the Destination gets at the end to become level.
_LEVEL_SECONDS = 60


def demo(
    seconds: Annotated[
        float | None,
        typer.Option(min=1, metavar="SECONDS", help="Stop after so many seconds; else at Ctrl-C."),
    ] = None,
    rate: Annotated[float, typer.Option(min=0.1, metavar="N", help="Changes a second.")] = 25.0,
    port: Annotated[
        int, typer.Option(metavar="PORT", help="Port of the page; 0 takes a free one.")
    ] = 0,
) -> None:
    """Run a Source, a hub and a Destination on this machine.

    Examples:
        rsnotify demo
        rsnotify demo --seconds 20 --rate 100
    """
    with tempfile.TemporaryDirectory(prefix="rsnotify-demo-") as folder:
        raise typer.Exit(run(lambda stop: _demo(stop, Path(folder), seconds, rate, port)))


async def _demo(
    stop: asyncio.Event, root: Path, seconds: float | None, rate: float, port: int
) -> int:
    from rsnotify_demo.destination import DemoDestination
    from rsnotify_demo.flush_time import FlushTimer
    from rsnotify_demo.monitor import DemoMonitor
    from rsnotify_demo.observations import SENSORS, Observations
    from rsnotify_demo.page import Facts, serve_page
    from rsnotify_demo.push_link import open_link

    observations = Observations(root / "source")
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        hub = await enter(_hub(root))
        link, linked = await enter(open_link(hub))
        source = await enter(_source(root, hub, linked))
        disk = FlushTimer(root)
        teller = stack.enter_context(_StatusDisplay(observations, disk))
        destination = DemoDestination(source, root / "destination", teller.tell)
        scene = DemoMonitor(observations, link, destination, disk, hub=hub, rate=rate)
        facts = Facts(source=source, hub=hub, copy=str(destination.folder), rate=rate)
        page = await enter(serve_page(scene, facts, port))
        typer.echo(f"Source       {source}  {SENSORS} Turtle files, {rate:g} changes a second")
        typer.echo(f"hub          {hub}  <- a page to watch")
        typer.echo(f"Destination  {destination.folder}")
        typer.echo(f"page         {page}  <- all three, and buttons to break something")
        await enter(_running(destination, scene, disk))
        await _watch(stop, seconds, rate, observations)
        teller.end()
        typer.echo("the Source rests. Audit of the Destination against it:")
        await _become_level(scene)
        return await _audit(source, destination.folder)


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
async def _source(root: Path, hub: str, linked: str) -> AsyncIterator[str]:
    """Run the Source. It publishes to the hub itself; Destinations are sent over the link."""
    process = await Process.start(
        *("source", str(root / "source"), "--port", "0", "--hub", hub, "--advertise", linked),
        "--allow-private-addresses",
        log=root / "source.log",
    )
    try:
        yield await process.url()
    finally:
        await process.stop()


@asynccontextmanager
async def _running(
    destination: DemoDestination, scene: DemoMonitor, disk: FlushTimer
) -> AsyncIterator[None]:
    """Let the Destination run, and look at it; if one fails, what is within ends with it."""
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(one.run()) for one in (destination, scene, disk)]
            yield
            for task in running:
                task.cancel()
    except* ProcessError as errors:
        raise errors.exceptions[0] from None


async def _watch(
    stop: asyncio.Event, seconds: float | None, rate: float, observations: Observations
) -> None:
    """Keep the Source changing until time is over or the user stops it."""
    changing = asyncio.create_task(_keep_changing(observations, rate))
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await stop.wait()
    finally:
        changing.cancel()


async def _keep_changing(observations: Observations, rate: float) -> None:
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        observations.change()
        due += 1 / rate
        await asyncio.sleep(max(0.0, due - loop.time()))


class _StatusDisplay:
    """Shows how it goes: in a line that renews itself in a terminal, else line by line."""

    def __init__(self, observations: Observations, disk: FlushTimer) -> None:
        self._observations = observations
        self._disk = disk
        self._started = asyncio.get_running_loop().time()
        self._ended = False
        self._live: Live | None = None
        if sys.stdout.isatty():
            from rsnotify.runtime.cli.display import live

            self._live = live("")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def tell(self, status: DestinationStatus) -> None:
        """Show a status; about each second there is one."""
        if self._ended:
            return
        passed = asyncio.get_running_loop().time() - self._started
        lag = "-" if status.lag_ms is None else f"{status.lag_ms:.1f} ms"
        flush = "" if self._disk.flush_ms is None else f" (one flush {self._disk.flush_ms:.1f} ms)"
        # What the first copy brought was there before the first change.
        text = (
            f"{passed:5.0f} s   Source: {counted(self._observations.changes, 'change')}   "
            f"Destination: {status.applied - status.copied:,} applied, {_place(status)}, "
            f"lag {lag}{flush}, push {status.push or 'away'}"
        )
        if self._live is None:
            typer.echo(text)
        else:
            self._live.start()
            self._live.update(text)

    def end(self) -> None:
        """Show no more."""
        self._ended = True
        if self._live is not None:
            self._live.stop()


def _place(status: DestinationStatus) -> str:
    if not status.level:
        return f"{status.pending:,} on the way"
    # Without push a Destination knows what its last poll told, and no more.
    return "in step" if status.push == "up" else "level at its last poll"


async def _become_level(scene: DemoMonitor) -> None:
    """Undo what the user broke, and wait until the copy is level; the audit says if it is not."""
    scene.restore()
    scene.start()
    with suppress(TimeoutError):
        async with asyncio.timeout(_LEVEL_SECONDS):
            while (await scene.next_frame())[0].copy.behind:
                pass


async def _audit(source: str, destination: Path) -> int:
    process = await Process.start(
        *("audit", source, str(destination), "--allow-private-addresses"),
        log=destination.with_name("audit.log"),
    )
    async for line in process.lines():
        typer.echo(line)
    return await process.wait()
