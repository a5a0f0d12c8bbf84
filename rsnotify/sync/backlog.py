"""The backlog: changes that wait in the Destination's state until all lists are read.

While a Destination catches up, later lists supersede most changes in earlier ones. Fetching a
resource too early would mostly fail, because its server already has a later version than announced.
Changes are therefore parked until all lists are read: some in memory (`PendingChanges`), the others
in the backlog, because there may be millions.

    `PendingChanges.announce` ──> stored ──> taken ──> `PendingChanges.add`
                                    │          once all lists are read, the earliest first;
                                    │          at once if push announces the resource, or if
                                    │          it is already pending
                                    └─> cleared if everything will be listed again

While the backlog is not empty, all announced changes pass through it, so the changes of a resource
are merged in the order of their announcement. The backlog need not survive a restart: T does not
pass its changes, so the next run reads them again.
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
    """Tracks the backlog stored in the state, and the unanswered requests."""

    def __init__(self, actions: ActionList) -> None:
        self._actions = actions
        self._extent = BacklogExtent()
        #: The unanswered requests, each with the earliest instant of the changes that it stores.
        self._unanswered: list[tuple[BacklogAction, Instant | None]] = []
        #: The changes that the current event adds, and the resources whose changes it needs now.
        self._new: list[tuple[Change, Instant]] = []
        self._needed: dict[str, None] = {}
        self._due: float | None = None

    def __bool__(self) -> bool:
        return bool(self._extent.resources or self._unanswered or self._new)

    def __len__(self) -> int:
        """Return the number of waiting resources. Each change being stored counts as a resource."""
        storing = (len(a.changes) for a, _ in self._unanswered if isinstance(a, StoreBacklog))
        return self._extent.resources + len(self._new) + sum(storing)

    @property
    def since(self) -> Instant | None:
        """The earliest instant that T must not reach; None for no limit."""
        instants = [self._extent.since, *(since for _, since in self._unanswered)]
        instants += [since for _, since in self._new]
        return min((one for one in instants if one is not None), default=None)

    @property
    def is_storing(self) -> bool:
        """Whether changes are still being stored. Reading more would only fill the memory."""
        return bool(self._new) or any(isinstance(a, StoreBacklog) for a, _ in self._unanswered)

    @property
    def is_taking(self) -> bool:
        """Whether the next resources are requested but not received yet."""
        return any(isinstance(a, TakeBacklog) and not a.uris for a, _ in self._unanswered)

    def add(self, change: Change, since: Instant, *, at_once: bool, due: float | None) -> None:
        """Add a change. With `at_once`, also request all changes of its resource.

        These are dispatched at `due`, or immediately if it is None.
        """
        self._new.append((change, since))
        if at_once:
            self._needed[change.uri] = None
            self._due = due

    def store(self) -> None:
        """Request the actions for the current event. Called at the end of the event."""
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
        """Record the backlog's extent after an action. Return whether the answer was expected."""
        if not self._unanswered or self._unanswered[0][0] is not action:
            return False  # the backlog was cleared since
        del self._unanswered[0]
        self._extent = extent
        return True

    def clear(self) -> None:
        """Drop all changes and unanswered requests, because the changes will be listed again."""
        if self:
            self._actions.append(ClearBacklog())
        self._extent = BacklogExtent()
        self._unanswered.clear()
        self._new.clear()
        self._needed.clear()
