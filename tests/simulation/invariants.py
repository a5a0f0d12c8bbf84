"""What must hold at each step of a run; I1 and I2 are in `history`, I5 and I6 in `wire`.

I1  A change that was acknowledged is in the journal.
I2  A change in the journal is in the Change Lists, as soon as they reach its datetime.
I3  After the faults, each copy becomes equal to the Source, and counts as level.
I4  T passes no change that is not applied, and does not go back.
I5  The fragments that a hub sends on a connection chain, or it states the gap.
I6  A fragment that arrives twice, or late, changes nothing.
I7  Memory and disk stay bounded.
I8  Input without authorization, or that is invalid, changes nothing.
I9  A copy that counts as level is what the Source had at T, or later.
"""

from __future__ import annotations

from pathlib import Path

from rsnotify.format.datetimes import Instant, to_microseconds
from tests.simulation.history import History, Wrong
from tests.simulation.loop import SimulatedLoop
from tests.simulation.world import DestinationMachine

#: Of a run with a few resources, and about a hundred changes.
_MOST_BYTES = 8_000_000
_MOST_FILES = 800
_MOST_TIMERS = 2_000


class CopyCheck:
    """I4 and I9 of one Destination."""

    def __init__(
        self, destination: DestinationMachine, history: History, *, is_ordered: bool
    ) -> None:
        #: Lists without order look as if the clock of the Source was set, after which T goes back.
        self._is_ordered = is_ordered
        self._destination = destination
        self._history = history
        self._through: Instant | None = None
        self._subscriber: object = None

    def check(self) -> None:
        destination = self._destination
        subscriber = destination.subscriber
        if subscriber is None:
            return
        status = subscriber.status
        through = status.through
        if through is None or self._history.is_restored:
            return
        is_back = subscriber is self._subscriber and self._through and through < self._through
        if is_back and self._is_ordered:
            raise Wrong(f"I4: T of {destination.name} goes back from {self._through} to {through}")
        self._subscriber, self._through = subscriber, through
        found = destination.content()
        applied = destination.selected(self._history.set_at(to_microseconds(through)))
        if found != applied:
            self._check_later(found, applied, through, is_level=status.level)

    def _check_later(
        self, found: dict[str, str], applied: dict[str, str], through: Instant, *, is_level: bool
    ) -> None:
        """A copy that is not what it was at T must be of later, whatever is applied first."""
        name, since = self._destination.name, to_microseconds(through)
        later = {(uri, digest) for at, uri, digest in self._history.recorded if at > since}
        for uri in sorted(found.keys() | applied.keys()):
            now, then = found.get(uri), applied.get(uri)
            if now != then and (uri, now) not in later:
                raise Wrong(f"I4: {name} is synced through {through}: {uri} is {now}, not {then}")
        sets = map(self._destination.selected, self._history.sets_since(since))
        if is_level and all(found != each for each in sets):
            raise Wrong(f"I9: {name} is level through {through} with {found}, and not {applied}")


def check_bounds(loop: SimulatedLoop, folder: Path) -> None:
    """I7: nothing grows without limit."""
    files = [each for each in folder.rglob("*") if each.is_file()]
    size = sum(each.stat().st_size for each in files)
    timers = loop.timers
    if len(files) > _MOST_FILES or size > _MOST_BYTES or timers > _MOST_TIMERS:
        raise Wrong(f"I7: {len(files)} files with {size} bytes, and {timers} timers")
