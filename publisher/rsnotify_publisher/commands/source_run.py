"""Runs `rsnotify source` with its settings, and shows its status.

The status consists of the number of recorded changes and the state of each hub. In a terminal, it
is updated live; otherwise it is printed as lines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from rsnotify.errors import counted, without_credentials
from rsnotify.runtime.command_line import forced_shutdown, printable, require_files, run
from rsnotify.runtime.command_reports import StatusReport
from rsnotify.runtime.command_status import StatusServer
from rsnotify.runtime.listening import address, listen
from rsnotify.runtime.serving import serving
from rsnotify.runtime.tasks import running
from rsnotify_publisher.config import SourceConfiguration
from rsnotify_publisher.description import SourceDescription
from rsnotify_publisher.folder.folder_publishing import (
    FolderPublishing,
    claim,
    one_folder,
    several_folders,
)
from rsnotify_publisher.folder.server import folder_application
from rsnotify_publisher.publisher import Publisher
from rsnotify_publisher.source_status import MAX_COUNTED, HubStatus, SourceStatus, StatusReader

if TYPE_CHECKING:
    from rich.console import RenderableType


#: Number of files that one set keeps open: its journal, three times, and connections to hubs.
_OPEN_FILES_PER_SET = 20
_OTHER_OPEN_FILES = 256
#: Maximum number of seconds for the shutdown. They allow hundreds of sets to write their last
#: documents even if the disk is busy.
_SHUTDOWN_TIMEOUT = 90.0
_FORCED = "the Source did not shut down cleanly; recorded changes are kept"


def publish(root: Path | None, settings: SourceConfiguration, status: StatusServer) -> None:
    """Publish a folder, or the sets in the settings, and serve the status until interrupted."""
    with listen(settings.host, settings.port) as listening:
        base_url = settings.base_url or address(settings.host, listening)
        published: Publisher | SourceDescription
        if root is None:
            published, folders = several_folders(base_url, settings)
        else:
            published, folders = one_folder(root, base_url, settings)
        with claim(folders):
            files = len(folders) * _OPEN_FILES_PER_SET + _OTHER_OPEN_FILES
            require_files(counted(len(folders), "set"), files)
            app = folder_application(published, folders)
            shutdown = forced_shutdown(lambda: _FORCED, _SHUTDOWN_TIMEOUT)
            at = address(settings.host, listening)
            publishers = [folder.publisher for folder in folders]

            async def main(stop: asyncio.Event) -> None:
                publishing = FolderPublishing(folders, at)
                report = show_status(publishers, publishing.published)
                async with (
                    running(report),
                    serving_source(publishers, status),
                    serving(app, listening, shutdown_timeout=2),
                ):
                    await publishing.run(stop, typer.echo)

            run(main, shutdown)


def serving_source(
    publishers: Sequence[Publisher], status: StatusServer
) -> AbstractAsyncContextManager[None]:
    """Serve the status and the metrics of a Source while the context is active."""
    if not status.is_listening:
        return nullcontext()
    from rsnotify_publisher.metrics import SourceMetrics, not_ready

    families = SourceMetrics(*publishers).collect
    return status.serving(families, lambda: not_ready(publishers))


#: Minimum number of seconds between two reports.
_REPORT_INTERVAL = 1.0
#: Maximum fraction of the time to spend on reading the journals, regardless of their number.
_MAX_TIME_FRACTION = 0.05


async def show_status(publishers: Sequence[Publisher], started: asyncio.Event) -> None:
    """Show the status of a Source until cancelled, after all its sets have started."""
    reader = StatusReader(publishers)
    await started.wait()
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1, "rsnotify-status") as worker, SourceReport() as report:
        try:
            while True:
                began = loop.time()
                report.show(await loop.run_in_executor(worker, reader.read))
                await asyncio.sleep(
                    max(_REPORT_INTERVAL, (loop.time() - began) / _MAX_TIME_FRACTION)
                )
        finally:
            worker.submit(reader.close)


def hub_line(hub: HubStatus) -> str:
    prefix = "more than " if hub.waiting >= MAX_COUNTED else ""
    waiting = prefix + counted(hub.waiting, "change")
    if hub.reached:
        state = f"sending {waiting}" if hub.waiting else "up to date"
    elif hub.reached is None:
        state = "connecting"
    else:
        when = f"since {hub.through:%Y-%m-%dT%H:%M:%SZ}" if hub.reached_before else "so far"
        state = f"unreachable {when}" + (f", {waiting} waiting" if hub.waiting else "")
    return printable(f"hub {without_credentials(hub.uri)}: {state}")


class SourceReport(StatusReport[SourceStatus]):
    """Shows the status of a Source, with a line when a hub becomes reachable or unreachable."""

    line_every = 60

    def __init__(self) -> None:
        super().__init__()
        self._reached: dict[str, bool | None] = {}

    def sentence(self, status: SourceStatus) -> str:
        resources = counted(status.resources, "resource")
        return f"{resources}, {counted(status.changes, 'change')} recorded since the start"

    def counts(self, status: SourceStatus) -> object:
        return status.changes or None

    def news(self, status: SourceStatus) -> Iterator[str]:
        for hub in status.hubs:
            if hub.reached is not None and hub.reached != self._reached.get(hub.uri):
                self._reached[hub.uri] = hub.reached
                yield hub_line(hub)

    def display(self, status: SourceStatus) -> RenderableType:
        from rich.text import Text

        return Text("\n".join([self.sentence(status), *map(hub_line, status.hubs)]))
