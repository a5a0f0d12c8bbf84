"""Processes that divide the Sources of a fleet, with simulated time and tables in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random

from rsnotify.errors import StorageError
from rsnotify_subscriber.fleet.leases import (
    LEASE_DURATION,
    RENEWAL_INTERVAL,
    FleetShare,
    Lease,
    Members,
)

SOURCES = frozenset(f"s{number}" for number in range(20))


class Tables:
    """What the database has, for all processes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.number = 0
        self.members: dict[int, tuple[float, bool]] = {}
        self.leases: dict[str, Lease] = {}

    def next(self) -> int:
        self.number += 1
        return self.number

    def expired(self) -> set[int]:
        return {id for id, (expires, _) in self.members.items() if expires < self.now}


class Access:
    """A `LeaseTable` of one process; `before` is called before each transaction."""

    def __init__(self, tables: Tables, before: Callable[[], None] = lambda: None) -> None:
        self._tables = tables
        self._before = before
        self.is_away = False

    def _begin(self) -> Tables:
        self._before()
        if self.is_away:
            raise StorageError("the database is away")
        return self._tables

    def renew(self, me: int | None, *, shares: bool) -> Members:
        tables = self._begin()
        if me not in tables.members:
            me = tables.next()
        assert me is not None
        tables.members[me] = (tables.now + LEASE_DURATION, shares)
        over = tables.expired()
        sharing = {id for id, (_, shares) in tables.members.items() if shares} - over
        lost = any(one.owner not in tables.members for one in tables.leases.values())
        names = {id: f"process {id}" for id in tables.members}
        return Members(me, names, frozenset(sharing), bool(over) or lost, dict(tables.leases))

    def leases(self) -> dict[str, Lease]:
        return dict(self._begin().leases)

    def remove_expired(self) -> None:
        tables = self._begin()
        for id in tables.expired():
            del tables.members[id]
        tables.leases = {
            source: one for source, one in tables.leases.items() if one.owner in tables.members
        }

    def take(self, me: int, sources: Collection[str]) -> None:
        tables = self._begin()
        for source in sources:
            tables.leases.setdefault(source, Lease(me, tables.next()))

    def request(self, me: int, owner: int, sources: Collection[str], count: int) -> None:
        tables = self._begin()
        for source in sources:
            one = tables.leases.get(source)
            if count and one is not None and one.owner == owner and one.wanted_by is None:
                tables.leases[source] = one._replace(wanted_by=me)
                count -= 1

    def hand_over(self, me: int, sources: Collection[str]) -> None:
        tables = self._begin()
        for source in sources:
            one = tables.leases.get(source)
            if one is None or one.owner != me:
                continue
            if one.wanted_by in tables.members and one.wanted_by not in tables.expired():
                assert one.wanted_by is not None
                tables.leases[source] = Lease(one.wanted_by, tables.next())
            else:
                del tables.leases[source]

    def leave(self, me: int) -> None:
        tables = self._begin()
        tables.members.pop(me, None)
        tables.leases = {source: one for source, one in tables.leases.items() if one.owner != me}


class Process:
    """Follows at any moment what its leases allow."""

    def __init__(self, world: World, listed: frozenset[str]) -> None:
        self.access = Access(world.tables, world.disturb)
        self.share = FleetShare(self.access, clock=lambda: world.tables.now, random=world.random)
        self.share.set_listed(listed)
        self.is_busy = False
        self.is_suspended = False
        self.next_beat = world.tables.now

    def followed(self) -> set[str]:
        return set(self.share.held) if self.share.is_valid else set()

    def beat(self, now: float) -> None:
        self.is_busy = True
        self.next_beat = now + RENEWAL_INTERVAL
        try:
            self.share.hand_over([*self.share.requested, *self.share.superfluous])
            self.share.beat()
        except StorageError:
            pass
        finally:
            self.is_busy = False


class World:
    """Processes that fail at random, between any two transactions."""

    def __init__(self, seed: int, *, calm: bool = False, sources: frozenset[str] = SOURCES) -> None:
        self.sources = sources
        self.random = Random(seed)
        self.tables = Tables()
        self.processes: list[Process] = []
        self.is_calm = calm
        self._depth = 0

    def start(self, listed: frozenset[str] | None = None) -> Process:
        self.processes.append(Process(self, self.sources if listed is None else listed))
        return self.processes[-1]

    def disturb(self) -> None:
        """Advance the clock and run other processes, while one waits for its transaction."""
        if self.is_calm or self._depth > 2 or self.random.random() < 0.7:
            return
        self._depth += 1
        self.wait(self.random.choice((0.01, 0.5, 2.0, 7.0)))
        if self.random.random() < 0.5:
            self.run_due()
        self._depth -= 1

    def wait(self, seconds: float) -> None:
        self.tables.now += seconds
        self.check()

    def check(self) -> None:
        followed = [source for one in self.processes for source in one.followed()]
        assert len(followed) == len(set(followed)), f"followed twice: {sorted(followed)}"

    def run_due(self) -> None:
        for process in list(self.processes):
            is_due = process.next_beat <= self.tables.now
            if is_due and not process.is_busy and not process.is_suspended:
                process.beat(self.tables.now)
                self.check()

    def pass_time(self, seconds: float) -> None:
        until = self.tables.now + seconds
        while self.tables.now < until:
            self.wait(0.25)
            self.run_due()

    def fail(self) -> None:
        """Do something to a process, or to the database."""
        one = self.random.choice(self.processes) if self.processes else self.start()
        match self.random.randrange(8):
            case 0 if not one.is_busy:
                self.processes.remove(one)  # it is killed
            case 1 if not (one.is_busy or one.is_suspended or one.access.is_away):
                one.share.leave()
                self.processes.remove(one)
            case 2:
                self.start(frozenset(self.random.sample(sorted(self.sources), 12)))
            case 3:
                self.start()
            case 4:
                one.is_suspended = not one.is_suspended
            case 5:
                one.access.is_away = not one.access.is_away
            case 6:
                for each in self.processes:
                    each.access.is_away = True
            case 7:
                one.share.set_listed(self.random.sample(sorted(self.sources), 15))

    def calm(self) -> None:
        self.is_calm = True
        for each in self.processes:
            each.access.is_away = each.is_suspended = False
            each.share.set_listed(self.sources)
        if not self.processes:
            self.start()

    def followed(self) -> list[int]:
        return sorted(len(one.followed()) for one in self.processes)
