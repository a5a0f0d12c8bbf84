"""The course of the demo: start all processes, change the Source, stop, and audit the copy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import typer

from rsnotify.errors import counted
from rsnotify.runtime.command_reports import StatusReport
from rsnotify.runtime.processes import Process, ProcessError
from rsnotify.runtime.tasks import wait_for_event
from rsnotify_demo.demo_processes import DemoDestination, DestinationStatus, open_link
from rsnotify_demo.monitor import SENSORS, DemoMonitor, FlushTimer, Observations
from rsnotify_demo.page import Facts, serve_page

#: Seconds that the Destination has at the end to catch up.
_CATCH_UP_SECONDS = 60


async def run_demo(
    stop: asyncio.Event, root: Path, seconds: float | None, rate: float, port: int
) -> int:
    """Run the demo in an empty folder, and return the exit code of the audit."""
    observations = Observations(root / "source")
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        hub = await enter(_serving("hub", "--data", str(root / "hub"), log=root / "hub.log"))
        link, link_url = await enter(open_link(hub))
        # The Source publishes to the hub itself; Destinations use the link.
        options = ("--hub", hub, "--advertise", link_url, "--allow-private-addresses")
        source = await enter(
            _serving("source", str(root / "source"), *options, log=root / "source.log")
        )
        flush_timer = FlushTimer(root)
        report = _DemoReport(observations, flush_timer)
        destination = DemoDestination(source, root / "destination", report.show)
        monitor = DemoMonitor(observations, link, destination, flush_timer, hub=hub, rate=rate)
        facts = Facts(source=source, hub=hub, copy=str(destination.folder), rate=rate)
        page = await enter(serve_page(monitor, facts, port))
        typer.echo(f"Source       {source}  {SENSORS} Turtle files, {rate:g} changes per second")
        typer.echo(f"hub          {hub}  <- its dashboard")
        typer.echo(f"Destination  {destination.folder}")
        typer.echo(f"page         {page}  <- all three, with buttons to break something")
        with report:
            await enter(_running(destination, monitor, flush_timer))
            await _change_until(stop, seconds, rate, observations)
        typer.echo("The Source has stopped changing. Audit of the Destination against it:")
        await _catch_up(monitor)
        return await _audit(source, destination.folder)


@asynccontextmanager
async def _serving(*arguments: str, log: Path) -> AsyncIterator[str]:
    process = await Process.start(*arguments, "--port", "0", log=log)
    try:
        yield await process.url()
    finally:
        await process.stop()


@asynccontextmanager
async def _running(
    destination: DemoDestination, monitor: DemoMonitor, flush_timer: FlushTimer
) -> AsyncIterator[None]:
    """Run the Destination and its observers; if one fails, the body of the context is cancelled."""
    try:
        async with asyncio.TaskGroup() as tasks:
            runners = (destination, monitor, flush_timer)
            running = [tasks.create_task(runner.run()) for runner in runners]
            yield
            for task in running:
                task.cancel()
    except* ProcessError as errors:
        raise errors.exceptions[0] from None


async def _change_until(
    stop: asyncio.Event, seconds: float | None, rate: float, observations: Observations
) -> None:
    changing = asyncio.create_task(_keep_changing(observations, rate))
    try:
        await wait_for_event(stop, seconds)
    finally:
        changing.cancel()


async def _keep_changing(observations: Observations, rate: float) -> None:
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        observations.change()
        due += 1 / rate
        await asyncio.sleep(max(0.0, due - loop.time()))


class _DemoReport(StatusReport[DestinationStatus]):
    """Shows each status until the report is closed: in a terminal live, else as lines."""

    def __init__(self, observations: Observations, flush_timer: FlushTimer) -> None:
        super().__init__()
        self._observations = observations
        self._flush_timer = flush_timer
        self._started = asyncio.get_running_loop().time()
        self._closed = False

    def __exit__(self, *_: object) -> None:
        self._closed = True
        super().__exit__()

    def show(self, status: DestinationStatus) -> None:
        if not self._closed:
            super().show(status)

    def state(self, status: DestinationStatus) -> object:
        return self._passed()

    def sentence(self, status: DestinationStatus) -> str:
        lag = "-" if status.lag_ms is None else f"{status.lag_ms:.1f} ms"
        flush_ms = self._flush_timer.flush_ms
        flush = "" if flush_ms is None else f" (one flush {flush_ms:.1f} ms)"
        # The resources of the baseline synchronization are no changes.
        return (
            f"{self._passed():5.0f} s   Source: {counted(self._observations.changes, 'change')}   "
            f"Destination: {status.applied - status.copied:,} applied, {_progress(status)}, "
            f"lag {lag}{flush}, push {status.push or 'away'}"
        )

    def _passed(self) -> float:
        return asyncio.get_running_loop().time() - self._started


def _progress(status: DestinationStatus) -> str:
    if not status.level:
        return f"{status.pending:,} on the way"
    # Without push, a Destination only knows the state of the Source at its last poll.
    return "level" if status.push == "up" else "level at its last poll"


async def _catch_up(monitor: DemoMonitor) -> None:
    """Undo what the user broke, and wait until the copy is level, up to a limit; then audit."""
    monitor.end()
    with suppress(TimeoutError):
        async with asyncio.timeout(_CATCH_UP_SECONDS):
            # The comparison that is under way may have read a file before its last change.
            await monitor.next_frame()
            while (await monitor.next_frame())[0].copy.behind:
                pass


async def _audit(source: str, destination: Path) -> int:
    process = await Process.start(
        *("audit", source, str(destination), "--allow-private-addresses"),
        log=destination.with_name("audit.log"),
    )
    async for line in process.lines():
        typer.echo(line)
    return await process.wait()
