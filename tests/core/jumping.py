"""A Source in memory whose clock jumps: its entries are in order, its datetimes are not."""

from __future__ import annotations

from datetime import datetime, timedelta

from rsnotify.format.model import Capability, Document
from rsnotify.format.offer import Offer
from tests.core.source import EPOCH, EVERYTHING, Period, Snapshot, Source, listed_changes

#: It keeps no closed lists, so that nothing else has changes that were skipped.
OFFER = Offer(resource_list=EVERYTHING.resource_list, change_list=EVERYTHING.change_list)


class JumpingSource(Source):
    """A Source that dates changes by a clock which may be wrong, and lists them as they came."""

    def __init__(self) -> None:
        super().__init__()
        self._real = EPOCH
        self._begins = 0
        #: By how much its clock is wrong.
        self.error = timedelta()

    def now(self) -> datetime:
        """Look at its clock, which goes on by a second each time."""
        self._real += timedelta(seconds=1)
        return self._real + self.error

    @property
    def sent(self) -> datetime:
        """When a document requested now is sent."""
        return self._real + self.error

    @property
    def today(self) -> datetime:
        """What the clock of a Destination shows."""
        return self._real + timedelta(seconds=1)

    def change(self, name: str, deleted: bool = False, same_instant: bool = False) -> None:
        """Change a resource, at the time that its clock shows."""
        self.clock = self.now()
        super().change(name, deleted)

    def pass_time(self, time: timedelta) -> None:
        self._real += time

    def keep(self) -> tuple[int, dict[str, str]]:
        return len(self.history), dict(self.state)

    def restore(self, kept: tuple[int, dict[str, str]]) -> None:
        del self.history[kept[0] :]
        self.state = dict(kept[1])

    def rotate(self, size: int | None = None) -> None:
        """Begin a new open list where the last one ends."""
        if self.history:
            self.open_from = self.history[-1].at
            self._begins = len(self.history)

    def list_resources(self) -> None:
        self.lists = [Snapshot(self.lists[-1].number + 1, self.now(), dict(self.state))]

    def _list_changes(self, found: dict[str, Document]) -> None:
        pending = Period(self.open_from, None, self.history[self._begins :])
        assert OFFER.change_list is not None
        found[OFFER.change_list] = listed_changes(Capability.CHANGE_LIST, pending)
