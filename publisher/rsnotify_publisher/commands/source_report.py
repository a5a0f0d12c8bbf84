"""Shows the status of `rsnotify source`: in a terminal, or as lines."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext

import typer

from rsnotify.errors import without_credentials
from rsnotify.plural import counted
from rsnotify.runtime.cli.running import printable
from rsnotify_publisher.folder.status import MOST_COUNTED, HubStatus, SourceStatus, StatusReader
from rsnotify_publisher.publisher import Publisher

_REPORT_EVERY = 1.0
#: Part of the time that may go into reading the journals, however many there are.
_SHARE = 0.05
#: Calls of `show` between two plain lines while only the counts change.
_LINE_EVERY = 60


def totals(status: SourceStatus) -> str:
    resources = counted(status.resources, "resource")
    return f"{resources}, {counted(status.changes, 'change')} recorded since the start"


def hub_line(hub: HubStatus) -> str:
    many = "more than " if hub.waiting >= MOST_COUNTED else ""
    waiting = many + counted(hub.waiting, "change")
    if hub.reached:
        state = f"{waiting} on the way" if hub.waiting else "up to date"
    elif hub.reached is None:
        state = "connecting"
    else:
        when = f"since {hub.through:%Y-%m-%dT%H:%M:%SZ}" if hub.reached_before else "yet"
        state = f"not reached {when}" + (f", lacks {waiting}" if hub.waiting else "")
    return printable(f"hub {without_credentials(hub.uri)}: {state}")


class SourceLineReport:
    """Prints a line when a hub becomes (un)reachable, and each minute with new changes."""

    def __init__(self) -> None:
        self._reached: dict[str, bool | None] = {}
        self._changes = 0
        self._quiet_for = 0

    def show(self, status: SourceStatus) -> None:
        for hub in status.hubs:
            if hub.reached is not None and hub.reached != self._reached.get(hub.uri):
                self._reached[hub.uri] = hub.reached
                typer.echo(hub_line(hub))
        self._quiet_for += 1
        if status.changes != self._changes and self._quiet_for >= _LINE_EVERY:
            typer.echo(totals(status))
            self._changes, self._quiet_for = status.changes, 0


class SourceTerminalReport:
    def __init__(self) -> None:
        from rsnotify.runtime.cli.display import live

        self.live = live("")

    def show(self, status: SourceStatus) -> None:
        from rich.text import Text

        lines = [totals(status), *map(hub_line, status.hubs)]
        self.live.update(Text("\n".join(lines)))


async def show_status(publishers: Sequence[Publisher], started: asyncio.Event) -> None:
    """Show the status of a Source from when all sets have started, until cancelled."""
    reader = StatusReader(publishers)
    await started.wait()
    report: SourceLineReport | SourceTerminalReport
    display: AbstractContextManager[object] = nullcontext()
    if sys.stdout.isatty():
        report = terminal = SourceTerminalReport()
        display = terminal.live
    else:
        report = SourceLineReport()
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1, "rsnotify-status") as worker, display:
        try:
            while True:
                began = loop.time()
                report.show(await loop.run_in_executor(worker, reader.read))
                await asyncio.sleep(max(_REPORT_EVERY, (loop.time() - began) / _SHARE))
        finally:
            worker.submit(reader.close)
