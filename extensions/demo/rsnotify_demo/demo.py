"""Runs the demo: starts all processes, changes the Source, and finally audits the copy.

Meanwhile, it serves a page with the state of all parts, and buttons to break something.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec
import typer
from aiohttp import web
from msgspec import Struct

from rsnotify.runtime.command_reports import StatusReport
from rsnotify.runtime.listening import address, listen
from rsnotify.runtime.processes import Process, ProcessError
from rsnotify.runtime.serving import PAGE_HEADERS, page_files, serving
from rsnotify.runtime.tasks import first_completed, running, wait_for_event
from rsnotify_demo.destination_process import DemoDestination, DestinationStatus, open_link
from rsnotify_demo.monitor import (
    SENSORS,
    DemoMonitor,
    Frame,
    LoggedEvent,
    Observations,
    Point,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

_NEXT = """
Next, try it with your own files, in three terminals:
  {0} hub
  {0} source FOLDER --hub http://127.0.0.1:8080/
  {0} follow http://127.0.0.1:8000/ copy"""
#: Seconds within which the Destination should catch up at the end.
_CATCH_UP_TIMEOUT = 60


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
        report = _DemoReport()
        destination = DemoDestination(source, root / "destination", report.show)
        monitor = DemoMonitor(observations, link, destination, hub=hub, rate=rate)
        facts = Facts(source=source, hub=hub, copy=str(destination.folder), rate=rate)
        page = await enter(serve_page(monitor, facts, port))
        typer.echo(f"Source       {source}  {SENSORS} Turtle files, {rate:g} changes per second")
        typer.echo(f"hub          {hub}  <- its dashboard")
        typer.echo(f"Destination  {destination.folder}")
        typer.echo(f"page         {page}  <- all three, with buttons to break something")
        typer.echo()
        report.monitor = monitor
        with report:
            await enter(_running(destination, monitor))
            async with running(_keep_changing(observations, rate)):
                await wait_for_event(stop, seconds)
        if (outcome := report.outcome()) is not None:
            typer.echo(outcome)
        typer.echo("The Source has stopped changing. Auditing the copy against it:")
        await _catch_up(monitor)
        code = await _audit(source, destination.folder)
    typer.echo(_NEXT.format(_own_command()))
    return code


def _own_command() -> str:
    """Return the command that starts rsnotify in this folder."""
    if shutil.which("rsnotify"):
        return "rsnotify"
    # After `make demo` in a checkout, rsnotify is not on the PATH.
    return f"{sys.executable} -m rsnotify" if sys.argv[0].endswith(".py") else sys.argv[0]


@asynccontextmanager
async def _serving(*arguments: str, log: Path) -> AsyncIterator[str]:
    process = await Process.start(*arguments, "--port", "0", log=log)
    try:
        yield await process.url()
    finally:
        await process.stop()


@asynccontextmanager
async def _running(destination: DemoDestination, monitor: DemoMonitor) -> AsyncIterator[None]:
    """Run the Destination and its observers. If one fails, cancel the body of the context."""
    try:
        async with asyncio.TaskGroup() as tasks:
            loops = (destination.run(), monitor.run(), monitor.time_flushes())
            started = [tasks.create_task(loop) for loop in loops]
            yield
            for task in started:
                task.cancel()
    except* ProcessError as errors:
        raise errors.exceptions[0] from None


async def _keep_changing(observations: Observations, rate: float) -> None:
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        observations.change()
        due += 1 / rate
        await asyncio.sleep(max(0.0, due - loop.time()))


#: The lag of a copy that only polls every 10 s: each change waits for the next poll.
_POLLING_LAG = "half within 5,000 ms, 99 % within 9,900 ms"
_BLOCKS = "▁▂▃▄▅▆▇█"
_LEGEND = """\
changes    files that the Source has written or deleted since the start
copy       how many of these changes the copy contains; the others are in transit
push       up: the hub pushes changes; otherwise, the Destination polls the Source
flush      duration of a flush to this disk, which precedes the push of a change
lag        from a change at the Source to the file in the copy, in the last second
polling    the lag of a copy that only polls every 10 s
"""


class _DemoReport(StatusReport[DestinationStatus]):
    """Shows each status until the report is closed: live in a terminal, otherwise as lines."""

    def __init__(self) -> None:
        super().__init__("Starting the Destination")
        #: Set before the first status.
        self.monitor: DemoMonitor | None = None
        self._started = asyncio.get_running_loop().time()
        self._closed = False
        self._blocks = _BLOCKS
        try:
            _BLOCKS.encode(sys.stdout.encoding)
        except UnicodeError:
            self._blocks = "12345678"

    def __enter__(self) -> Self:
        typer.echo(_LEGEND)
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        self._closed = True
        super().__exit__()

    def show(self, status: DestinationStatus) -> None:
        if self.monitor is not None and not self._closed:
            self.monitor.lags.add(status)
            super().show(status)

    def state(self, status: DestinationStatus) -> object:
        return self._elapsed()

    def sentence(self, status: DestinationStatus) -> str:
        facts = "   ".join(f"{name} {fact}" for name, fact in self._facts(status).items())
        return f"{self._elapsed():5.0f} s   {facts}"

    def display(self, status: DestinationStatus) -> RenderableType:
        from rich.text import Text

        assert self.monitor is not None
        bars = self.monitor.lags.sparkline(self._blocks)
        rows = {"time": f"{self._elapsed():.0f} s"} | self._facts(status)
        rows |= {"by second": f"{bars} (low is 1 ms, high 10 s)", "polling": _POLLING_LAG}
        return Text("\n".join(f"{name:9}  {row}" for name, row in rows.items()))

    def outcome(self) -> str | None:
        """Return a summary of the run's lag, if any change was measured."""
        typical = None if self.monitor is None else self.monitor.lags.typical()
        if typical is None:
            return None
        polling = f"With polling only, every 10 s: {_POLLING_LAG}"
        return f"Lag in a typical second: {_lag(*typical)}\n{polling}"

    def _facts(self, status: DestinationStatus) -> dict[str, str]:
        assert self.monitor is not None
        frame, flush_ms = self.monitor.frame, self.monitor.flush_ms
        # Both numbers come from the same comparison, so they are consistent.
        changes, behind = (0, 0) if frame is None else (frame.changes, frame.copy.behind)
        return {
            "changes": f"{changes:,}",
            "copy": "none yet" if status.through is None else f"{max(0, changes - behind):,}",
            "push": status.push or "down",
            "flush": "-" if flush_ms is None else f"{flush_ms:.1f} ms",
            "lag": _lag(status.lag_ms, status.lag_p99_ms),
        }

    def _elapsed(self) -> float:
        return asyncio.get_running_loop().time() - self._started


def _lag(half: float | None, most: float | None) -> str:
    if half is None or most is None:
        return "- (no changes)"
    return f"half within {half:,.1f} ms, 99 % within {most:,.1f} ms"


async def _catch_up(monitor: DemoMonitor) -> None:
    """Undo what the user broke, and wait for the copy to catch up, up to a time limit."""
    monitor.end()
    with suppress(TimeoutError):
        async with asyncio.timeout(_CATCH_UP_TIMEOUT):
            # The current comparison may have read a file before its last change.
            await monitor.next_frame()
            while (await monitor.next_frame())[0].copy.behind:
                pass


async def _audit(source: str, destination: Path) -> int:
    process = await Process.start(
        "audit",
        source,
        str(destination),
        "--allow-private-addresses",
        log=destination.with_name("audit.log"),
    )
    async for line in process.lines():
        typer.echo(line)
    return await process.wait()


_STATIC_FOLDER = Path(__file__).with_name("static")
_LOCAL = ("127.0.0.1", "localhost")

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Facts(Struct, frozen=True):
    """Facts that do not change: the addresses of the Source, hub and copy, and the rate."""

    source: str
    hub: str
    copy: str
    rate: float


class PageMessage(Struct, frozen=True, omit_defaults=True):
    """A message to a page. The first one has all data, and later ones only new data."""

    frame: Frame
    events: list[LoggedEvent] = []
    past: list[Point] = []
    facts: Facts | None = None


@asynccontextmanager
async def serve_page(monitor: DemoMonitor, facts: Facts, port: int) -> AsyncIterator[str]:
    """Serve the page while the context is active, and yield its URL."""
    with listen("127.0.0.1", port) as listener:
        ended = asyncio.Event()
        app = web.Application(middlewares=[_only_this_machine])
        app.add_routes(page_files(_STATIC_FOLDER))
        app.router.add_get("/events", _events(monitor, facts, ended))
        app.router.add_post("/do/{action}", _action(monitor))
        async with serving(app, listener, shutdown_timeout=1):
            try:
                yield address("127.0.0.1", listener)
            finally:
                ended.set()


@web.middleware
async def _only_this_machine(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Refuse requests that another site makes a browser send (CSRF, DNS rebinding)."""
    host, own = request.host.rpartition(":")[0], f"http://{request.host}"
    if host not in _LOCAL or request.headers.get("Origin", own) != own:
        raise web.HTTPForbidden(text="only the demo's own page may send requests\n")
    return await handler(request)


def _action(monitor: DemoMonitor) -> _Handler:
    async def answer(request: web.Request) -> web.Response:
        action = monitor.actions.get(request.match_info["action"])
        if action is None:
            raise web.HTTPNotFound
        action()
        return web.Response(status=204)

    return answer


def _events(monitor: DemoMonitor, facts: Facts, ended: asyncio.Event) -> _Handler:
    """Return a handler that sends frames as Server-Sent Events. Slow pages get fewer frames."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={**PAGE_HEADERS, "Content-Type": "text/event-stream"})
        await response.prepare(request)
        async with first_completed(_send(monitor, facts, response), ended.wait()):
            return response

    return answer


async def _send(monitor: DemoMonitor, facts: Facts, response: web.StreamResponse) -> None:
    last = 0
    while True:
        frame, events = await monitor.next_frame()
        new = [event for event in events if event.number > last]
        first = last == 0
        last = events[-1].number if events else last
        message = PageMessage(
            frame, new, list(monitor.past) if first else [], facts if first else None
        )
        await response.write(b"data: " + msgspec.json.encode(message) + b"\n\n")
