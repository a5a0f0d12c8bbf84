"""What must hold at each step of a run; I1 and I2 are in `history`, I5 and I6 in `wire`.

I1  A change that was acknowledged is in the journal.
I2  A change in the journal is in the Change Lists, as soon as they reach its datetime.
I3  After the faults, each copy becomes equal to the Source, and counts as level.
I4  T passes no change that is neither applied nor a stored doubt; only a baseline makes it go back.
I5  The fragments that a hub sends on a connection chain, or it states the gap.
I6  A fragment that arrives twice, or late, changes nothing.
I7  Memory and disk stay bounded.
I8  Input without authorization, or that is invalid, changes nothing.
I9  A copy that counts as level is what the Source had at T, or later.
I10 Only the process that leads a Source writes its documents and feeds its hubs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from rsnotify.format.datetimes import Instant, to_microseconds
from rsnotify.sync.progress import MissingResource
from rsnotify_subscriber.storage.identity import read_fact
from tests.harnesses.simulation.history import History, Recorded, Wrong, set_at, sets_since
from tests.harnesses.simulation.loop import SimulatedLoop, current_loop, current_machine
from tests.harnesses.simulation.world import DestinationMachine

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
        self.destination = destination
        self._history = history
        self._through: Instant | None = None
        #: The Subscriber, and after how many baselines and restores of the Source it was seen.
        self._seen: tuple[object, int, int] = (None, 0, 0)
        #: What was checked last.
        self._known: object = None
        self._compared: object = None
        #: The URIs that T had passed when that was known last.
        self._missing: set[str] = set()

    def check(self) -> None:
        destination = self.destination
        subscriber = destination.subscriber
        known = destination.known, self._history.version
        if subscriber is None or known == self._known:
            return
        self._known = known
        status = destination.status
        through = status.through
        if through is None or destination.is_restoring:
            return
        # A baseline leads to a T before the datetime of the Resource List.
        seen = subscriber, destination.baselines, len(self._history.lost)
        is_back = seen == self._seen and self._through and through < self._through
        if is_back and self._is_ordered and not self._history.lost:
            raise Wrong(f"I4: T of {destination.name} goes back from {self._through} to {through}")
        self._seen, self._through = seen, through
        found, unavailable = destination.content(), self.unavailable()
        if status.foreign:
            listed = set_at(self._history.recorded, to_microseconds(through))
            found = destination.without_foreign(listed)
        compared = found, unavailable, through, status.level, self._history.version
        if compared == self._compared:
            return
        self._compared = compared
        # What a Destination had before a restore of the Source stays true until it notices that.
        histories = (self._history.recorded, *self._history.lost)
        differing = [self._differing(each, found, through, unavailable) for each in histories]
        wrong = set.intersection(*map(set, differing))
        if self._history.lost and not status.level:
            # Then it has resources from before and after the restore for a while.
            had = self._contents(histories)
            wrong = {uri for uri in wrong if (uri, found.get(uri)) not in had and uri in found}
        for uri in sorted(wrong):
            now, then = found.get(uri), differing[0][uri]
            raise Wrong(
                f"I4: {destination.name} is synced through {through}: {uri} is {now}, not {then}"
            )
        if status.level and not any(
            not differs and self._is_of(each, found, through)
            for each, differs in zip(histories, differing, strict=True)
        ):
            applied = destination.selected(set_at(histories[0], to_microseconds(through)))
            raise Wrong(
                f"I9: {destination.name} is level through {through} with {found}, and not {applied}"
            )

    def _contents(self, histories: Sequence[Sequence[Recorded]]) -> set[tuple[str, str | None]]:
        """Return each content that a resource had, by its URI."""
        return {(uri, digest) for recorded in histories for _, uri, digest in recorded}

    def unavailable(self) -> set[str]:
        """Return the URIs that T has passed, and that are stored as doubts.

        While the state is closed, between two runs, they are read from its file. After a crash, the
        content of resources that were being applied is unknown until they are fetched again.
        """
        subscriber = self.destination.subscriber
        assert subscriber is not None
        following, opened = subscriber._followed, subscriber._open
        if following is None and opened is None:
            missing = read_fact(self.destination.state, "missing", tuple[MissingResource, ...])
            self._missing = {one.uri for one in missing or ()}
            return self._missing
        progress = None
        if following is not None:
            progress = following._follower.progress
        elif opened is not None:
            progress = opened[0].progress()
        if progress is not None:
            self._missing = {one.uri for one in progress.missing}
        if opened is not None and not self.destination.is_level:
            return self._missing.union(opened[0].unknown_uris())
        return self._missing

    def _differing(
        self,
        recorded: Sequence[Recorded],
        found: dict[str, str],
        through: Instant,
        unavailable: Collection[str],
    ) -> dict[str, str | None]:
        """Return the resources that are neither what they were at T nor of later, as of T."""
        since = to_microseconds(through)
        applied = self.destination.selected(set_at(recorded, since))
        later = {(uri, digest) for at, uri, digest in recorded if at > since}
        return {
            uri: applied.get(uri)
            for uri in found.keys() | applied.keys()
            if found.get(uri) != applied.get(uri)
            and (uri, found.get(uri)) not in later
            and not self._history.is_early(uri, found.get(uri), since)
            and uri not in unavailable
        }

    def _is_of(self, recorded: Sequence[Recorded], found: dict[str, str], through: Instant) -> bool:
        """Return whether a copy is what the Source had at T, or at some time later."""
        since = to_microseconds(through)
        for then in map(self.destination.selected, sets_since(recorded, since)):
            differing = {uri for uri, _ in found.items() ^ then.items()}
            # A copy may have what the Source served before it recorded that.
            if all(self._history.is_early(uri, found.get(uri), since) for uri in differing):
                return True
        return False


def check_leads(what: str, folder: Path | None = None) -> None:
    """I10: the current machine leads a Source, or that with its state in a folder."""
    machine = current_machine()
    locks = current_loop().locks
    led = [lock for path, lock in locks.items() if path.endswith("leader.lock")]
    if folder is not None:
        led = [locks[path]] if (path := str(folder / "leader.lock")) in locks else []
    if machine is not None and all(lock.machine is not machine for lock in led):
        raise Wrong(f"I10: {machine.name} {what}, and does not lead the Source")


def check_bounds(loop: SimulatedLoop, folder: Path) -> None:
    """I7: nothing grows without limit."""
    files = [each for each in folder.rglob("*") if each.is_file()]
    size = sum(each.stat().st_size for each in files)
    timers = loop.timers
    if len(files) > _MOST_FILES or size > _MOST_BYTES or timers > _MOST_TIMERS:
        raise Wrong(f"I7: {len(files)} files with {size} bytes, and {timers} timers")
