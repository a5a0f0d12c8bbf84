"""The status of a Source: the number of recorded changes, and the cursor of each hub."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from rsnotify.format.datetimes import Instant, from_microseconds
from rsnotify.format.digest import SetSum
from rsnotify_publisher.hubs import Hub
from rsnotify_publisher.journal import Journal
from rsnotify_publisher.publisher import Publisher

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
