"""Runs `rsnotify source` once its settings are known, and shows its status.

The status is the number of recorded changes and the cursor of each hub, live in a terminal, else as
lines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from msgspec import Struct

from rsnotify.errors import counted, without_credentials
from rsnotify.format.datetimes import Instant, from_microseconds
from rsnotify.format.hashes import SetSum
from rsnotify.runtime.command_line import ForcedShutdown, printable, require_files, run
from rsnotify.runtime.command_reports import StatusReport
from rsnotify.runtime.listening import address, listen
from rsnotify.runtime.serving import serving
from rsnotify.runtime.tasks import running
from rsnotify_publisher.config import SourceConfiguration
from rsnotify_publisher.description import SourceDescription
from rsnotify_publisher.folder.folders import FolderPublishing, claim, one_folder, several_folders
from rsnotify_publisher.folder.server import server
from rsnotify_publisher.hubs import Hub
from rsnotify_publisher.journal import Journal
from rsnotify_publisher.publisher import Publisher

if TYPE_CHECKING:
    from rich.console import RenderableType


#: Files that one set keeps open: its journal, three times, and connections to hubs.
_FILES_OF_A_SET = 20
_OTHER_FILES = 256
#: Seconds in which hundreds of sets write their last documents, though the disk is busy.
_SHUTDOWN_TIMEOUT = 90.0
_FORCED = "the Source has not ended in order, so it is left as it is; what was recorded is kept"


def publish(root: Path | None, settings: SourceConfiguration) -> None:
    """Publish a folder, or the sets of the settings, until interrupted."""
    with listen(settings.host, settings.port) as listening:
        base_url = settings.base_url or address(settings.host, listening)
        published: Publisher | SourceDescription
        if root is None:
            published, folders = several_folders(base_url, settings)
        else:
            published, folders = one_folder(root, base_url, settings)
        with claim(folders):
            files = len(folders) * _FILES_OF_A_SET + _OTHER_FILES
            require_files(counted(len(folders), "set"), files)
            app = server(published, folders)
            shutdown = ForcedShutdown(lambda: _FORCED, _SHUTDOWN_TIMEOUT)
            at = address(settings.host, listening)
            publishers = [folder.publisher for folder in folders]

            async def main(stop: asyncio.Event) -> None:
                publishing = FolderPublishing(folders, at)
                report = show_status(publishers, publishing.published)
                async with running(report), serving(app, listening, shutdown_timeout=2):
                    await publishing.run(stop, typer.echo)

            run(main, shutdown)


_REPORT_EVERY = 1.0
#: Part of the time that may go into reading the journals, however many there are.
_SHARE = 0.05


async def show_status(publishers: Sequence[Publisher], started: asyncio.Event) -> None:
    """Show the status of a Source from when all sets have started, until cancelled."""
    reader = StatusReader(publishers)
    await started.wait()
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1, "rsnotify-status") as worker, SourceReport() as report:
        try:
            while True:
                began = loop.time()
                report.show(await loop.run_in_executor(worker, reader.read))
                await asyncio.sleep(max(_REPORT_EVERY, (loop.time() - began) / _SHARE))
        finally:
            worker.submit(reader.close)


#: Largest number of changes that are counted for a hub that lacks them.
MOST_COUNTED = 10_000
#: A hub that works accepts each heartbeat within this many seconds.
_LATE = 5.0


class HubStatus(Struct, frozen=True):
    """The status of a hub.

    Args:
        uri: The hub, by the URIs of its nodes with commas between them.
        waiting: Number of changes that it lacks, `MOST_COUNTED` at most.
        through: It has everything up to this instant.
        reached: Whether it accepts what it is sent; None if not known yet.
        reached_before: Whether it has accepted anything since the start.
    """

    uri: str
    waiting: int
    through: Instant
    reached: bool | None
    reached_before: bool


class SourceStatus(Struct, frozen=True):
    """The number of resources, of changes since the start, and the hubs of all sets together."""

    resources: int
    changes: int
    hubs: tuple[HubStatus, ...]


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


class SourceReport(StatusReport[SourceStatus]):
    """Shows the status of a Source. A line says when a hub is reached, or no longer is."""

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


class _Set:
    def __init__(self, publisher: Publisher) -> None:
        self._source = publisher.source
        self._journal: Journal | None = None
        self._seen = 0
        self._started = 0
        self._first: dict[str, int] = {}
        self.changes = 0
        self.resources = 0

    def read(self) -> list[HubStatus]:
        if self._journal is None:
            self._journal = self._source.open_journal()
            self._seen = self._journal.state().last_change
            self._started = self._source.clock()
        self._journal.bring_up_to_date()
        with self._journal.snapshot() as state:
            self.changes += self._journal.count_changes(self._seen)
            self._seen = state.last_change
            self.resources = 0 if state.sum is None else SetSum.parse(state.sum).count
            return [self._status(self._journal, hub) for hub in self._source.hubs]

    def _status(self, journal: Journal, hub: Hub) -> HubStatus:
        uri, nodes = hub.uri, ", ".join(hub.nodes)
        through, now = journal.cursor(uri), self._source.clock()
        patience = (2 * self._source.options.heartbeat + _LATE) * 1_000_000
        reached_before = through > self._first.setdefault(uri, through)
        reached: bool | None = reached_before and now - through <= patience
        if not reached and now - self._started <= patience:
            reached = None
        waiting = journal.count_changes(through, MOST_COUNTED)
        return HubStatus(nodes, waiting, from_microseconds(through), reached, reached_before)

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()


class StatusReader:
    """Reads the status of started Publishers from their journals; always in the same thread."""

    def __init__(self, publishers: Sequence[Publisher]) -> None:
        self._sets = [_Set(publisher) for publisher in publishers]

    def read(self) -> SourceStatus:
        hubs: dict[str, HubStatus] = {}
        for each in self._sets:
            for hub in each.read():
                before = hubs.get(hub.uri)
                hubs[hub.uri] = hub if before is None else _worse(before, hub)
        resources = sum(each.resources for each in self._sets)
        changes = sum(each.changes for each in self._sets)
        return SourceStatus(resources, changes, tuple(hubs.values()))

    def close(self) -> None:
        for each in self._sets:
            each.close()


def _worse(first: HubStatus, second: HubStatus) -> HubStatus:
    """Return the status of a hub that two sets push to."""
    states = (first.reached, second.reached)
    reached = False if False in states else None if None in states else True
    return HubStatus(
        first.uri,
        min(first.waiting + second.waiting, MOST_COUNTED),
        min(first.through, second.through),
        reached,
        first.reached_before and second.reached_before,
    )
