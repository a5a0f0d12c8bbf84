"""The state that the parts of a follower share."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from random import Random

from rsnotify.format.coverage import Change
from rsnotify.sync.actions import ActionList
from rsnotify.sync.frontiers import SyncFrontiers
from rsnotify.sync.pace import Pace
from rsnotify.sync.pending_changes import PendingChanges
from rsnotify.sync.poll_schedule import PollSchedule
from rsnotify.sync.progress import ComparedList, Progress
from rsnotify.sync.unconfirmed_changes import UnconfirmedChanges


class SyncState:
    """The parts of the state. See `Follower` for the arguments."""

    def __init__(
        self,
        progress: Progress | None,
        pace: Pace,
        random: Random,
        pushed: Iterable[Change] = (),
        last_list: ComparedList | None = None,
    ) -> None:
        self.pace = pace
        self.random = random
        self.actions = ActionList()
        self.frontiers = SyncFrontiers(progress, pace.hold, last_list)
        self.pending = PendingChanges(pace.retry, random, self.actions, pace.parked)
        self.schedule = PollSchedule(pace, random)
        self.unconfirmed = UnconfirmedChanges(grace=pace.poll, patience=pace.stale)
        self.unconfirmed.add(pushed, -inf)
        #: Whether all documents have been read, and nothing has raised a doubt since.
        self.settled = False

    @property
    def untried(self) -> int:
        """The number of resources whose pending changes have not failed yet."""
        return self.pending.untried + len(self.pending.backlog)

    @property
    def is_much_pending(self) -> bool:
        """Whether more resources wait to be fetched than may be in flight."""
        return self.untried > self.pace.in_flight
