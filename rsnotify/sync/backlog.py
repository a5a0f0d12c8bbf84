"""The backlog: changes that wait in the Destination's state until no later one can supersede them.

While lists are read, later changes supersede most of those in them. Fetching a resource before the
last list is read would mostly fail, because its server has a later version than announced. Changes
are therefore parked until then: some in memory (`PendingChanges`), and all others here, because
there may be millions.

    `PendingChanges.announce` ──> stored ──> taken ──> `PendingChanges.add`
                                    │          when all lists are read, the earliest first;
                                    │          at once if push names the resource, or if it is
                                    │          already pending
                                    └─> cleared if everything will be listed again

While there is a backlog, all announced changes pass through it. The changes of one resource are
therefore merged in the order in which they were announced. The backlog does not have to outlive the
process: T does not pass its changes, so the next run reads them again.
"""

from __future__ import annotations

from rsnotify.format.coverage import Change
from rsnotify.format.datetimes import Instant
from rsnotify.sync.actions import (
    ActionList,
    BacklogAction,
    BacklogExtent,
    ClearBacklog,
    StoreBacklog,
    TakeBacklog,
)


class ChangeBacklog:
    """Tracks the backlog stored in the state, and the requests that have no answer yet."""

    def __init__(self, actions: ActionList) -> None:
        self._actions = actions
        self._extent = BacklogExtent()
        #: The unanswered requests, each with the earliest instant of the changes that it stores.
        self._unanswered: list[tuple[BacklogAction, Instant | None]] = []
        #: The changes that the current event adds, and the resources that it needs at once.
        self._new: list[tuple[Change, Instant]] = []
        self._needed: dict[str, None] = {}
        self._due: float | None = None

    def __bool__(self) -> bool:
        return bool(self._extent.resources or self._unanswered or self._new)

    def __len__(self) -> int:
        """Return the number of waiting resources. Each change being stored counts as one."""
        storing = (len(a.changes) for a, _ in self._unanswered if isinstance(a, StoreBacklog))
        return self._extent.resources + len(self._new) + sum(storing)

    @property
    def since(self) -> Instant | None:
        """The earliest instant that T must not reach, if there is one."""
        instants = [self._extent.since, *(since for _, since in self._unanswered)]
        instants += [since for _, since in self._new]
        return min((one for one in instants if one is not None), default=None)

    @property
    def is_storing(self) -> bool:
        """Whether changes are still being stored, so that more would only fill the memory."""
        return bool(self._new) or any(isinstance(a, StoreBacklog) for a, _ in self._unanswered)

    @property
    def is_taking(self) -> bool:
        """Whether the next resources were requested."""
        return any(isinstance(a, TakeBacklog) and not a.uris for a, _ in self._unanswered)

    def add(self, change: Change, since: Instant, *, at_once: bool, due: float | None) -> None:
        """Add a change. With `at_once`, request all changes of its resource.

        Those are dispatched at `due`, or at once if it is None.
        """
        self._new.append((change, since))
        if at_once:
            self._needed[change.uri] = None
            self._due = due

    def store(self) -> None:
        """Request the actions that the current event needs. Call this before the event ends."""
        if self._new:
            self._request(StoreBacklog(tuple(self._new)), min(since for _, since in self._new))
            self._new.clear()
        if self._needed:
            self._request(TakeBacklog(len(self._needed), tuple(self._needed), self._due))
            self._needed.clear()
            self._due = None

    def take(self, most: int) -> None:
        """Request the changes of the next resources."""
        self._request(TakeBacklog(most))

    def _request(self, action: BacklogAction, since: Instant | None = None) -> None:
        self._unanswered.append((action, since))
        self._actions.append(action)

    def answered(self, action: BacklogAction, extent: BacklogExtent) -> bool:
        """Record the backlog's extent after an action. Return whether the answer is expected."""
        if not self._unanswered or self._unanswered[0][0] is not action:
            return False  # the backlog was cleared since
        del self._unanswered[0]
        self._extent = extent
        return True

    def clear(self) -> None:
        """Remove everything, including unanswered requests, because it will be listed again."""
        if self:
            self._actions.append(ClearBacklog())
        self._extent = BacklogExtent()
        self._unanswered.clear()
        self._new.clear()
        self._needed.clear()
