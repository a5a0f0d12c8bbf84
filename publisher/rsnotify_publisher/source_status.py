"""The status of a Source's sets and hubs, read from the journals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from rsnotify.format.datetimes import Instant, from_microseconds
from rsnotify.format.hashes import SetSum
from rsnotify_publisher.hubs import Hub
from rsnotify_publisher.journal import Journal

if TYPE_CHECKING:
    from rsnotify_publisher.publisher import Publisher

#: Maximum number of missing changes to count for a hub.
MAX_COUNTED = 10_000
#: Maximum number of seconds that a working hub takes to accept a heartbeat.
_ACCEPT_TIMEOUT = 5.0


class HubStatus(Struct, frozen=True):
    """The status of a hub. `uri` has the URIs of its nodes, separated by commas.

    The hub has every change `through` an instant. It lacks `waiting` changes, counted up to
    `MAX_COUNTED`. `reached` is None while it is unknown whether the hub accepts fragments.
    """

    uri: str
    waiting: int
    through: Instant
    reached: bool | None
    reached_before: bool


class SourceStatus(Struct, frozen=True):
    """The status of all sets together, with the changes by all processes since the start."""

    resources: int
    changes: int
    hubs: tuple[HubStatus, ...]
    last_change: Instant | None = None
    journal_bytes: int = 0


def hub_name(hub: Hub) -> str:
    return ", ".join(hub.nodes)


class _SetStatus:
    """Reads the status of one set. `changes` counts its changes since the first reading."""

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher
        self._source = publisher.source
        self._journal: Journal | None = None
        #: The datetime of the last counted change (µs); None before the first reading.
        self._counted_through: int | None = None
        #: The time of the first reading (µs), and the hubs' cursors then.
        self._started = 0
        self._first_cursors: dict[str, int] = {}
        self.changes = 0
        self.resources = 0
        self.last_change = 0

    @property
    def journal_bytes(self) -> int:
        return sum(file.stat().st_size for file in self._source.folder.glob("journal.sqlite3*"))

    def read(self) -> list[HubStatus]:
        if self._journal is None:
            self._journal = self._source.open_journal()
        self._journal.bring_up_to_date()
        with self._journal.snapshot() as state:
            if self._counted_through is None:
                self._counted_through, self._started = state.last_change, self._source.clock()
            self.changes += self._journal.count_changes(self._counted_through)
            self._counted_through = self.last_change = state.last_change
            self.resources = 0 if state.sum is None else SetSum.parse(state.sum).count
            return [self._status(self._journal, hub) for hub in self._source.hubs]

    def _status(self, journal: Journal, hub: Hub) -> HubStatus:
        uri = hub.uri
        through, now = journal.cursor(uri), self._source.clock()
        max_age = (2 * self._source.options.heartbeat + _ACCEPT_TIMEOUT) * 1_000_000
        reached_before = through > self._first_cursors.setdefault(uri, through)
        reached: bool | None = reached_before and now - through <= max_age
        # After the clock was set back, no heartbeats show whether the hub is reachable.
        is_ahead = through > self._source.wall_clock() + max_age
        if is_ahead or (not reached and 0 <= now - self._started <= max_age):
            reached = None
        waiting = journal.count_changes(through, MAX_COUNTED)
        return HubStatus(
            hub_name(hub), waiting, from_microseconds(through), reached, reached_before
        )

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None


class StatusReader:
    """Reads the status of running Publishers from their journals, which stay open until `close`."""

    def __init__(self, publishers: Sequence[Publisher]) -> None:
        self._sets = [_SetStatus(publisher) for publisher in publishers]

    def read(self) -> SourceStatus:
        hubs: dict[str, HubStatus] = {}
        for each in filter(lambda one: one.publisher.is_running, self._sets):
            for hub in each.read():
                before = hubs.get(hub.uri)
                hubs[hub.uri] = hub if before is None else _combined(before, hub)
        resources = sum(each.resources for each in self._sets)
        changes = sum(each.changes for each in self._sets)
        last = max((each.last_change for each in self._sets), default=0)
        return SourceStatus(
            resources,
            changes,
            tuple(hubs.values()),
            last_change=from_microseconds(last) if last else None,
            journal_bytes=sum(each.journal_bytes for each in self._sets),
        )

    def close(self) -> None:
        for each in self._sets:
            each.close()


def _combined(first: HubStatus, second: HubStatus) -> HubStatus:
    """Return the status of a hub to which two sets push: the worse of both."""
    states = (first.reached, second.reached)
    reached = False if False in states else None if None in states else True
    return HubStatus(
        first.uri,
        min(first.waiting + second.waiting, MAX_COUNTED),
        min(first.through, second.through),
        reached,
        first.reached_before and second.reached_before,
    )
