"""Divides Sources among the processes that share a database.

Every `RENEWAL_INTERVAL` seconds, each process calls `FleetShare.beat`, which renews its leases, and
acquires or requests others. For simulations, the tables are behind an interface and the clock is a
parameter (docs/decisions/0044-sources-are-leased-in-their-database.md).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from random import Random
from typing import NamedTuple, Protocol

#: Seconds between renewals.
RENEWAL_INTERVAL = 1.5
#: Seconds without a renewal after which others remove a process, by the database's clock.
LEASE_DURATION = 6.0
#: Seconds for which a renewal is valid from its beginning, by the process's clock.
RENEWAL_VALIDITY = 5.0
#: Seconds after an interruption for which a process does not remove others.
_REMOVAL_DELAY = 3.0
#: Number of renewals after which a process acquires free Sources beyond its share.
_BEATS_BEFORE_EXTRA = 3
#: Divisor of the listed Sources: how many a process acquires beyond its share at a time.
_EXTRA_DIVISOR = 10


class Lease(NamedTuple):
    """The right of a member (`owner`) to follow a Source.

    Args:
        owner: The number of the member.
        fence: A number that no other lease has.
        wanted_by: The member that has requested the Source, if any.
    """

    owner: int
    fence: int
    wanted_by: int | None = None


class Members(NamedTuple):
    """The state of the tables at a renewal.

    Args:
        me: The number of this member, which is new if the member had been removed.
        names: The names of all members, by number.
        sharing: The unexpired members that take a share of the Sources.
        has_expired: Whether there are expired members, or leases of such members, to remove.
        version: A value that differs after each change of the leases.
    """

    me: int
    names: Mapping[int, str]
    sharing: frozenset[int]
    has_expired: bool
    version: object


class LeaseTable(Protocol):
    """The tables of members and leases. Each method is one transaction."""

    def renew(self, me: int | None, *, shares: bool) -> Members:
        """Renew a member, or add one if `me` is None. Return all members."""

    def leases(self) -> dict[str, Lease]:
        """Return all leases, by Source."""

    def remove_expired(self) -> None:
        """Remove the members that were not renewed for `LEASE_DURATION` seconds, and their leases.

        This also ends their open transactions. A lease in use may remain until the next call.
        """

    def take(self, me: int, sources: Collection[str]) -> None:
        """Add a lease for each Source without one."""

    def request(self, me: int, owner: int, sources: Collection[str], count: int) -> None:
        """Request `count` Sources of another member that nobody has requested yet."""

    def hand_over(self, me: int, sources: Collection[str]) -> None:
        """Transfer leases to the members that requested them. End the other leases."""

    def leave(self, me: int) -> None:
        """Remove a member and its leases."""


def boot_clock() -> float:
    """Return seconds on a clock that runs even while the machine is suspended, if there is one."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)  # only on Linux
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class FleetShare:
    """The leases of one process.

    `beat`, `hand_over` and `leave` access the tables, so they block. Everything else can be called
    in any thread.

    Args:
        table: The tables of members and leases.
        shares: Whether the process takes only a share of the Sources. If not, it acquires every
            Source that nobody follows.
        clock: Returns seconds.
        random: Chooses the free Sources to acquire.

    Attributes:
        listed: The Sources to follow, by this process or another.
        leases: All leases, as of the last beat.
        names: The names of the members.
        held: The fences of the Sources that this process may follow while `is_valid`.
        requested: The Sources that this process must hand over.
        superfluous: The unlisted Sources with a lease of this process.
    """

    def __init__(
        self,
        table: LeaseTable,
        *,
        shares: bool = True,
        clock: Callable[[], float] = boot_clock,
        random: Random | None = None,
    ) -> None:
        self._table = table
        self._shares = shares
        self._clock = clock
        self._me: int | None = None
        self._random = random or Random()
        self._renewed: float | None = None
        self._quiet_until = 0.0
        self._valid_until = float("-inf")
        self._version: object = None
        #: The number of beats with free Sources beyond the share.
        self._beats_without_room = 0
        self.listed: frozenset[str] = frozenset()
        self.leases: Mapping[str, Lease] = {}
        self.names: Mapping[int, str] = {}
        self.held: Mapping[str, int] = {}
        self.requested: Collection[str] = ()
        self.superfluous: Collection[str] = ()

    @property
    def is_valid(self) -> bool:
        return self.seconds_left > 0

    @property
    def seconds_left(self) -> float:
        """Seconds for which the last renewal is still valid."""
        return self._valid_until - self._clock()

    def fence_of(self, source: str) -> int | None:
        """Return the fence of a valid lease of this process, or None if it has none."""
        return self.held.get(source) if self.is_valid else None

    def owner_of(self, source: str) -> str | None:
        """Return the name of the process that follows a Source, or None if unknown."""
        lease = self.leases.get(source)
        return None if lease is None else self.names.get(lease.owner)

    def beat(self) -> None:
        """Renew the leases, and acquire or request Sources up to the share.

        Raises:
            StorageError: The database cannot be reached. If this continues, the leases expire.
        """
        began = self._clock()
        members = self._table.renew(self._me, shares=self._shares)
        if self._renewed is None or began - self._renewed >= LEASE_DURATION:
            self._quiet_until = began + _REMOVAL_DELAY
        if members.me != self._me or members.version != self._version:
            self._me = members.me
            self._read()
            self._version = members.version
        self.names = members.names
        # `held` was read after the renewal, so it excludes leases that others took before.
        self._renewed, self._valid_until = began, began + RENEWAL_VALIDITY
        if members.has_expired and began >= self._quiet_until:
            self._table.remove_expired()
            self._read()
        if self._take(members) or self._request(members):
            self._read()

    def set_listed(self, sources: Iterable[str]) -> None:
        self.listed = frozenset(sources)
        self._version = None

    def hand_over(self, sources: Collection[str]) -> None:
        """End leases of Sources that this process no longer follows."""
        if self._me is not None and sources:
            self._version = None
            ended = set(sources)
            self.held = {one: fence for one, fence in self.held.items() if one not in ended}
            self._table.hand_over(self._me, sources)

    def stop_sharing(self) -> None:
        """Acquire no more leases, but renew the held ones until they are handed over."""
        self._shares = False
        self.set_listed(())

    def leave(self) -> None:
        """End all leases, so that others can follow the Sources at once."""
        self.held = {}
        if self._me is not None:
            self._table.leave(self._me)
            self._me = None

    def _read(self) -> None:
        leases = self._table.leases()
        own = {source: one for source, one in leases.items() if one.owner == self._me}
        self.requested = [source for source, one in own.items() if one.wanted_by is not None]
        self.superfluous = [source for source in own if source not in self.listed]
        self.held = {source: one.fence for source, one in own.items()}
        self.leases = leases

    def _take(self, members: Members) -> bool:
        """Try to acquire free Sources, if the share allows. Return whether there were any."""
        free = [source for source in self.listed if source not in self.leases]
        if not free:
            self._beats_without_room = 0
            return False
        assert self._me is not None
        if not self._shares:
            count = len(free)
        else:
            share = -(-len(self.listed) // max(1, len(members.sharing)))
            count = share - len(self.held)
            if count <= 0:
                # After a few beats, the others have probably not listed these Sources.
                self._beats_without_room += 1
                if self._beats_without_room > _BEATS_BEFORE_EXTRA:
                    count = max(1, len(self.listed) // _EXTRA_DIVISOR)
        if count <= 0:
            return False
        # At random, so that concurrent processes seldom choose the same Sources.
        self._random.shuffle(free)
        self._table.take(self._me, free[:count])
        return True

    def _request(self, members: Members) -> bool:
        """Request Sources from members with too many, if this one has too few."""
        if not self._shares:
            return False
        assert self._me is not None
        processes = max(1, len(members.sharing))
        least = len(self.listed) // processes
        most = -(-len(self.listed) // processes)
        staying = Counter(
            one.owner
            for one in self.leases.values()
            if one.wanted_by is None and one.owner in members.sharing and one.owner != self._me
        )
        coming = len(self.held) + sum(one.wanted_by == self._me for one in self.leases.values())
        before = coming
        for share in (least, most):
            for owner, count in staying.most_common():
                wanted = min(share - coming, count - share)
                if wanted > 0 and (listed := self._to_request(owner)):
                    self._table.request(self._me, owner, listed, wanted)
                    staying[owner] -= wanted
                    coming += wanted
        return coming > before

    def _to_request(self, owner: int) -> list[str]:
        return [
            source
            for source, one in self.leases.items()
            if one.owner == owner and one.wanted_by is None and source in self.listed
        ]
