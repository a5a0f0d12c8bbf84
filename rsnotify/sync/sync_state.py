"""The state that the parts of one follower share."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from random import Random

from rsnotify.format.coverage import Change
from rsnotify.sync.actions import ActionList, Progress
from rsnotify.sync.pace import Pace
from rsnotify.sync.pending_changes import PendingChanges
from rsnotify.sync.schedule import Schedule
from rsnotify.sync.sync_frontiers import SyncFrontiers
from rsnotify.sync.unconfirmed_changes import UnconfirmedChanges


class SyncState:
    """What is known, what is pending, and what is to be done next.

    `pushed` are the changes that an earlier run applied and no list has confirmed.
    """

    def __init__(
        self,
        progress: Progress | None,
        pace: Pace,
        random: Random,
        pushed: Iterable[Change] = (),
    ) -> None:
        self.pace = pace
        self.random = random
        self.actions = ActionList()
        self.frontiers = SyncFrontiers(progress, pace.hold)
        self.pending = PendingChanges(pace.retry, random)
        self.schedule = Schedule(pace, random)
        self.unconfirmed = UnconfirmedChanges(grace=pace.poll, patience=pace.stale)
        self.unconfirmed.add(pushed, -inf)
        #: Whether the documents were read to their end, and nothing has cast doubt on that since.
        self.settled = False
