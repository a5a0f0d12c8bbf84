"""Known changes that are not applied yet.

Each resource is pending at most once, with its latest change. The instant of its *first* unapplied
change is also kept, because T must not pass it (`low_water`). A pending change is in one of these
states:

    parked      waits until all lists are read                        release ──> ready
    delayed     waits until its `due` time: a backoff, or a random    due ──> ready
                delay that spreads the requests of all subscribers
    ready       waits for a free slot                                 dispatch ──> in flight
    in flight   is being applied                                      applied ──> removed
                                                                      failed ──> delayed

    not watched ──failed too often (`give_up`)──> watched: T passes it; retries become rarer
    watched ──a new entry of the resource──> not watched

Up to `Pace.parked` changes are parked in memory, the others in the `ChangeBacklog`. Memory use
therefore does not grow with the number of changes. A failed change delays T, but no other change.
Only a new entry ends a backoff early.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Set
from heapq import heappop, heappush
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.format.coverage import EARLIEST, Change, CheckMethod
from rsnotify.format.datetimes import LATEST, MICROSECOND, Instant
from rsnotify.format.model import ChangeType, Resource
from rsnotify.format.uris import normalize
from rsnotify.selection import has_inline_content
from rsnotify.sync.actions import (
    ActionList,
    BacklogAction,
    BacklogExtent,
    ClearBacklog,
    StoreBacklog,
    TakeBacklog,
)
from rsnotify.sync.reduction import (
    announced_at,
    as_listed,
    listed_at_of,
    successor_of,
    verified_if_needed,
)
from rsnotify.sync.retry import LONGEST_RETRY_AFTER, Retry
from rsnotify.sync.unconfirmed_changes import verification


class ChangeBacklog:
    """Changes that wait in the Destination's state until all lists are read.

    While a Destination catches up, later lists supersede most changes in earlier ones. Fetching a
    resource too early would mostly fail, because its server already has a later version than
    announced. Changes are therefore parked until all lists are read: some in memory, the others in
    the backlog, because there may be millions.

        `PendingChanges.announce` ──> stored ──> taken ──> `PendingChanges.add`
                                        │          once all lists are read, the earliest first;
                                        │          at once if push announces the resource, or if
                                        │          it is already pending
                                        └─> cleared if everything will be listed again

    While the backlog is not empty, all announced changes pass through it, so the changes of a
    resource are merged in the order of their announcement. The backlog need not survive a restart:
    T does not pass its changes, so the next run reads them again.
    """

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


#: Time after a resource's first failure until a new entry resets its attempts, in seconds. Some
#: Sources give entries a new date at each request.
_ATTEMPTS_RESET_SECONDS = 600.0
#: Maximum number of failures to ignore because a new change superseded the one in flight.
_MAX_SUPERSEDED_FAILURES = 2
#: The `since` of a change for which T does not wait. It is later than any real datetime.
UNWAITED = LATEST - MICROSECOND


class _Pending(Struct):
    change: Change
    since: Instant
    #: The last entry that announced the resource, even if `change` fetches the resource.
    entry: Resource
    attempts: int = 0
    #: Number of failed attempts with earlier entries, since `failed_at`.
    earlier: int = 0
    #: Number of these attempts that failed after a new entry had superseded theirs.
    superseded: int = 0
    #: When the first of all these attempts failed.
    failed_at: float = 0.0
    missing_since: float | None = None
    #: Whether this run has made enough attempts.
    given_up: bool = False
    #: Number of retries since the resource became watched.
    retries: int = 0
    #: Whether T has passed the change.
    passed: bool = False
    #: Whether the resource was removed from the copy after repeated 404 responses.
    removed: bool = False
    in_flight: bool = False
    #: The instant of the list that lacked the resource while it was in flight, or failing.
    unlisted: Instant | None = None
    #: Whether the change waits for `release`.
    parked: bool = False
    #: When the change may be dispatched; None for immediately.
    due: float | None = None
    #: The change that announced the resource, if `change` removes the resource because of a 404.
    missing: Change | None = None
    #: When documents announced the resource before a pushed change superseded theirs.
    listed_at: Instant = EARLIEST

    @property
    def is_watched(self) -> bool:
        return self.since == LATEST

    @property
    def is_contested(self) -> bool:
        """Whether the resource must be verified once the change is applied.

        A list lacks the resource, and its content may be from a package.
        """
        if self.unlisted is None or self.change.check is CheckMethod.FETCH:
            return False
        return self.change.change is not ChangeType.DELETED

    def is_known(self, change: Change) -> bool:
        """Return whether a change was already tried, or is equivalent to one that was."""
        if change.change is not self.change.change or not (self.attempts or self.is_watched):
            return False
        if change.check is CheckMethod.FETCH:
            has_same_hash = change.resource.hash == self.change.resource.hash
            return self.change.check is CheckMethod.FETCH and has_same_hash
        return change.resource == self.entry

    def repeats(self, change: Change) -> bool:
        """Return whether a change is the same, or equivalent."""
        return (
            self.change.change is change.change
            and self.change.check is change.check
            and self.change.resource == change.resource
        )


def _is_verification(change: Change) -> bool:
    """Return whether a change verifies a pushed one, and announces nothing."""
    return change.pushed and change.check is CheckMethod.FETCH


class PendingChanges:
    """The pending changes, and the order in which to dispatch them.

    At most `most_parked` changes are parked in memory. The others are in `backlog`.
    """

    def __init__(self, retry: Retry, random: Random, actions: ActionList, most_parked: int) -> None:
        self._retry = retry
        self._random = random
        self.backlog = ChangeBacklog(actions)
        self._most_parked = most_parked
        self._pending: dict[str, _Pending] = {}
        self._ready: deque[str] = deque()
        self._parked: list[str] = []
        self._delayed: list[tuple[float, str]] = []
        self._since: list[tuple[Instant, str]] = []
        self._failing = 0
        self._passed: tuple[Change, ...] | None = ()
        #: Whether changes are parked until `release`.
        self.is_holding = False
        #: Number of dispatched changes without a result.
        self.in_flight = 0

    def __len__(self) -> int:
        return len(self._pending) + len(self.backlog)

    def __contains__(self, uri: str) -> bool:
        """Return whether a resource is pending in memory, without the backlog."""
        return uri in self._pending

    def find(self, uri: str) -> Change | None:
        """Return the change of a resource that is pending in memory."""
        pending = self._pending.get(uri)
        return None if pending is None else pending.change

    @property
    def untried(self) -> int:
        """The number of resources pending in memory whose latest change has not failed."""
        return len(self._pending) - self._failing

    @property
    def watched(self) -> tuple[Change, ...]:
        """The changes of resources that were announced but are not available."""
        # T has passed all of these, and searching all pending changes would be slow.
        return tuple(change for change in self.passed if self.is_watched(change.uri))

    @property
    def passed(self) -> tuple[Change, ...]:
        """The changes that T has passed because their resources are, or were, watched.

        If such a resource has changed again, the change fetches the current version, because the
        later entry may be false. The same tuple object is returned until its value changes.
        """
        if self._passed is None:
            self._passed = tuple(
                each.change if each.is_watched else replace(each.change, check=CheckMethod.FETCH)
                for each in self._pending.values()
                if each.passed
            )
        return self._passed

    @property
    def all_given_up(self) -> bool:
        """Whether this run has made enough attempts at every pending change."""
        return not self.backlog and all(pending.given_up for pending in self._pending.values())

    def first_failures(self) -> Iterator[float]:
        """Yield the time of the first failure of each failing change."""
        return (each.failed_at for each in self._pending.values() if each.attempts)

    def is_watched(self, uri: str) -> bool:
        pending = self._pending.get(uri)
        return pending is not None and pending.is_watched

    def is_removed(self, uri: str) -> bool:
        """Return whether a resource was removed from the copy after repeated 404 responses."""
        pending = self._pending.get(uri)
        return pending is not None and pending.removed

    def listed_at(self, uri: str) -> Instant:
        """Return when documents announced a pending resource before push did."""
        return self._pending[uri].listed_at

    def announced(self, uri: str) -> Instant | None:
        """Return when documents announced that a pending resource exists; None if none did."""
        pending = self._pending.get(uri)
        if pending is None:
            return None
        change = pending.missing or pending.change
        return None if change.change is ChangeType.DELETED else announced_at(change)

    def holds(self, change: Change) -> bool:
        """Return whether a change with the same entry is pending."""
        pending = self._pending.get(change.uri)
        if pending is None or pending.change.resource != change.resource:
            return False
        return (pending.change.check is CheckMethod.FETCH) is (change.check is CheckMethod.FETCH)

    # Adding and removing

    def announce(
        self,
        change: Change,
        since: Instant | None = None,
        *,
        parked: bool = False,
        at_once: bool = False,
        due: float | None = None,
    ) -> bool:
        """Add a change after all earlier ones, some of which may be in the backlog.

        See `add` for the other arguments. With `at_once`, the change does not wait in the backlog.
        Return whether the change announces anything that has not been tried yet.
        """
        pending = self._pending.get(change.uri)
        self.is_holding = self.is_holding or parked
        is_full = parked and pending is None and len(self._parked) >= self._most_parked
        # A resource that is parked in memory has no changes in the backlog.
        if (pending is not None and pending.parked) or not (is_full or self.backlog):
            return self.add(change, since, parked=parked, due=due)
        at_once = at_once or pending is not None
        self.backlog.add(change, since or change.at, at_once=at_once, due=due)
        return pending is None or not pending.is_known(change)

    def add(
        self,
        change: Change,
        since: Instant | None = None,
        *,
        parked: bool = False,
        due: float | None = None,
        missing: Change | None = None,
    ) -> bool:
        """Add a change, which supersedes an earlier change of the same resource.

        A new change also ends the backoff of the earlier one. A change that fetches the resource
        supersedes any other, regardless of datetimes. A change that follows before the fetch is
        done is compared with the copy, because the stored datetime may be wrong. If a list of
        changes contradicts an unapplied entry of a Resource List, the resource is fetched, because
        either document may be wrong.

        Args:
            change: The change.
            since: The instant that T must not reach before the change is applied; by default, the
                datetime of the change. A resource from a Resource List may have changed at any
                time.
            parked: Whether to wait for `release`, because a later change may follow. A change that
                does not wait also makes an earlier one ready.
            due: When the change may be dispatched; None for immediately.
            missing: The change that announced the resource, if `change` removes it because of a
                404. The Source did not state that deletion, so further lists are compared with the
                announcement.

        Returns:
            Whether the change announces anything that has not been tried yet.
        """
        since = since or change.at
        pending = self._pending.get(change.uri)
        if pending is None:
            pending = self._pending[change.uri] = _Pending(change, since, change.resource)
            self._hold(pending, since)
            self._enqueue(change.uri, due, parked=parked)
            return True
        if pending.change.pushed and not change.pushed:
            pending.listed_at = listed_at_of(change)
        if missing is None and pending.missing is None and pending.is_known(change):
            if since < pending.since and not pending.is_watched:
                self._hold(pending, since)
            return False
        if pending.parked and not parked:
            self._enqueue(change.uri, due)
        is_delayed = bool(pending.attempts) or pending.is_watched
        if since < pending.since:
            self._hold(pending, since)
        announced = pending.missing or pending.change
        successor = successor_of(verified_if_needed(change, announced), pending.change)
        if successor is not None:
            if not pending.change.pushed:
                pending.listed_at = listed_at_of(announced)
            change = as_listed(successor, pending.listed_at)
            if is_delayed and not pending.in_flight:
                self._enqueue(change.uri, due)  # end the backoff of the earlier change
            self._failing -= pending.attempts > 0
            self._forget_passed(pending)
            pending.change = change
            if change.check is not CheckMethod.FETCH:
                pending.entry = change.resource
            pending.missing = missing
            pending.earlier += pending.attempts
            pending.attempts = pending.retries = 0
            pending.given_up = pending.removed = False
            pending.unlisted = pending.unlisted if _is_verification(successor) else None
        elif pending.change.pushed:
            pending.change = as_listed(pending.change, pending.listed_at)
            self._forget_passed(pending)
        return True

    def watch(self, change: Change, due: float, *, removed: bool = False) -> None:
        """Add a change of an unavailable resource, for which T does not wait.

        It is retried at `due`. `removed` means that the resource was removed from the copy.
        """
        self.add(change, LATEST, due=due)
        self._pending[change.uri].removed = removed

    def add_links(self, listed: Resource) -> None:
        """Retry a verification with the links of an entry, which show where alternates are."""
        uri = normalize(listed.uri)
        pending = self._pending[uri]
        change, links = pending.change, listed.links
        if change.check is CheckMethod.FETCH and change.resource.links != links:
            pending.change = replace(change, resource=replace(change.resource, links=links))
            self._forget_passed(pending)
            if not pending.in_flight:
                self._enqueue(uri, None)

    def give_up(self, uri: str, *, watch: bool) -> None:
        """Record that this run has made enough attempts. With `watch`, T may pass the change."""
        pending = self._pending[uri]
        pending.given_up = True
        if watch and pending.since < UNWAITED:
            self._hold(pending, LATEST)

    def _hold(self, pending: _Pending, since: Instant) -> None:
        """Make T wait before `since` until a change is applied."""
        pending.since = since
        pending.passed = pending.passed or pending.is_watched
        self._forget_passed(pending)
        heappush(self._since, (since, pending.change.uri))

    def _forget_passed(self, pending: _Pending) -> None:
        if pending.passed:
            self._passed = None

    def drop_unlisted(self, at: Instant, listed: Set[str]) -> bool:
        """Drop pending resources that both their server and a list of all as of `at` lack.

        A watched resource is kept if documents announced it after `at`. A resource that is being
        verified may be stored with a later datetime, so it is also removed from the copy.

        `listed` contains the watched resources in the list, and other resources to keep. Resources
        that the copy has lost (`UNWAITED`) are also kept: they are stored, so the comparison
        itself finds out whether they are listed.

        Returns:
            Whether this settles all resources that the list lacks. One that is being fetched or
            removed, or that fails for another reason, is dropped as soon as its server lacks it,
            too. If the server has one that is being fetched, another comparison is needed.
        """
        is_settled = True
        for uri, pending in list(self._pending.items()):
            if pending.since == UNWAITED:
                continue
            change = pending.change
            is_missing = bool(pending.attempts) and pending.missing_since is not None
            is_old = change.at < at and (change.resource.change is None or is_missing)
            if pending.is_watched:
                is_old = announced_at(change) <= at
            announced = pending.missing or change
            is_entry = announced.resource.change is None and announced.at == at  # of this list
            is_earlier = announced_at(announced) <= at and not is_entry
            is_failing = bool(pending.attempts) and not (is_missing or pending.is_watched)
            may_exist = is_earlier and (pending.in_flight or is_failing)
            pending.unlisted = at if uri not in listed and may_exist else None
            if pending.in_flight:
                is_open = is_earlier or pending.is_watched or pending.missing is not None
                is_settled = is_settled and (uri in listed or not is_open)
            elif uri not in listed and is_old:
                self._drop(uri, pending, at)
        return is_settled

    def _drop(self, uri: str, pending: _Pending, at: Instant) -> None:
        """Drop an unlisted resource, and delete it from the copy if it may be stored there."""
        change = pending.change
        resource = replace(change.resource, change=ChangeType.DELETED)
        deletion = replace(change, change=ChangeType.DELETED, resource=resource)
        if pending.removed or not (change.pushed or change.check is CheckMethod.FETCH):
            self._remove(uri, pending)
            return
        if change.pushed:  # a push dated too late may have deleted it before
            pending.listed_at = EARLIEST
            self.add(verification(deletion, at))
        else:
            self.add(replace(deletion, at=max(at, change.at), check=CheckMethod.COMPARE))
        self._enqueue(uri, None)

    def is_unlisted(self, uri: str) -> bool:
        """Return whether a comparison found a pending resource unlisted."""
        pending = self._pending.get(uri)
        return pending is not None and pending.unlisted is not None

    def drop_waiting(self) -> None:
        """Remove the changes that are not in flight, because they will be listed again."""
        self.backlog.clear()
        self._pending = {uri: each for uri, each in self._pending.items() if each.in_flight}
        self._parked.clear()
        self._passed = None
        self._failing = sum(pending.attempts > 0 for pending in self._pending.values())

    def _remove(self, uri: str, pending: _Pending) -> None:
        self._failing -= pending.attempts > 0
        self._forget_passed(pending)
        del self._pending[uri]

    def _enqueue(self, uri: str, due: float | None, *, parked: bool = False) -> None:
        pending = self._pending[uri]
        pending.due, pending.parked = due, parked and due is None
        if due is not None:
            heappush(self._delayed, (due, uri))
        else:
            (self._parked if parked else self._ready).append(uri)

    def release(self) -> None:
        """Make the parked changes ready. The backlog follows as these are applied."""
        self.is_holding = False
        for uri in self._parked:
            pending = self._pending.get(uri)
            if pending is not None and pending.parked:
                pending.parked = False
                self._ready.append(uri)
        self._parked.clear()

    # The backlog

    def use_backlog(self, most: int) -> None:
        """Store new changes in the backlog, and request up to `most` resources if few are left."""
        backlog = self.backlog
        backlog.store()
        if backlog and not (self.is_holding or backlog.is_taking) and self.untried <= most:
            backlog.take(most)

    def taken(
        self,
        action: BacklogAction,
        extent: BacklogExtent,
        changes: Iterable[tuple[Change, Instant]],
    ) -> None:
        """Add changes taken from the backlog. `extent` describes the remaining backlog."""
        if self.backlog.answered(action, extent):
            due = action.due if isinstance(action, TakeBacklog) else None
            for change, since in changes:
                self.add(change, since, due=None if has_inline_content(change) else due)

    # Dispatching and results

    def dispatch(self, limit: int, now: float) -> list[Change]:
        while self._delayed and self._delayed[0][0] <= now:
            due, uri = heappop(self._delayed)
            pending = self._pending.get(uri)
            if pending is not None and pending.due == due:  # else it was rescheduled
                pending.due = None
                self._ready.append(uri)
        changes = []
        while self._ready and self.in_flight < limit:
            pending = self._pending.get(self._ready.popleft())
            if pending is not None and not pending.in_flight:
                pending.in_flight = True
                self.in_flight += 1
                changes.append(pending.change)
        return changes

    def applied(self, change: Change) -> bool:
        """Record a dispatched change as durably applied. Return whether it was the latest."""
        pending = self._answered(change)
        if pending is None:
            return True
        if pending.change is not change:
            self._ready.append(change.uri)  # a later change has superseded it
            return False
        self._remove(change.uri, pending)
        if pending.is_contested:
            assert pending.unlisted is not None
            deletion = replace(change, change=ChangeType.DELETED)
            self.add(verification(deletion, pending.unlisted), pending.since)
        return True

    def failed(
        self,
        change: Change,
        now: float,
        at_least: float = 0.0,
        *,
        missing: bool = False,
        longest: float = LONGEST_RETRY_AFTER,
    ) -> int:
        """Record the failure of a dispatched change, and schedule a retry.

        `at_least` is the wait that the server requested, and `missing` means that the server lacks
        the resource. For a watched resource, the wait doubles with each failure, up to `longest`.

        Returns:
            The number of failures of the resource; 0 if the change was superseded, or if the
            resource is not listed either.
        """
        pending = self._answered(change)
        if pending is None:
            return 0
        if not pending.repeats(change) and pending.superseded < _MAX_SUPERSEDED_FAILURES:
            pending.failed_at = pending.failed_at if pending.earlier else now
            pending.earlier += 1
            pending.superseded += 1
            self._ready.append(change.uri)
            return 0
        if missing and pending.unlisted is not None:
            self._drop(change.uri, pending, pending.unlisted)
            return 0
        if pending.attempts == 0:
            self._failing += 1
            if now - pending.failed_at >= _ATTEMPTS_RESET_SECONDS:
                pending.earlier = pending.superseded = 0
            if not pending.earlier:
                pending.failed_at = now
            pending.missing_since = None
        if not missing:
            pending.missing_since = None
        elif pending.missing_since is None:
            pending.missing_since = now
        pending.attempts += 1
        if pending.is_watched:
            pending.given_up = True
            pending.retries += 1
            wait = self._retry.most * 2.0 ** min(pending.retries, 16)
            at_least = max(at_least, min(wait, longest))
        attempts = pending.earlier + pending.attempts
        delay = self._retry.delay(attempts, self._random, at_least=at_least)
        self._enqueue(change.uri, now + delay)
        return attempts

    def _answered(self, change: Change) -> _Pending | None:
        pending = self._pending.get(change.uri)
        if pending is None or not pending.in_flight:
            return None
        pending.in_flight = False
        self.in_flight -= 1
        return pending

    def failing(self, attempts: int = 1) -> list[Change]:
        return [each.change for each in self._pending.values() if each.attempts >= attempts]

    def missing_since(self, change: Change) -> float | None:
        """Return when the first of the latest consecutive 404 responses arrived.

        None if the last attempt failed otherwise, or if the resource was removed from the copy.
        """
        pending = self._pending[change.uri]
        return None if pending.removed else pending.missing_since

    def is_superseded(self, change: Change) -> bool:
        """Return whether another change of a failing resource has followed this one."""
        return not self._pending[change.uri].repeats(change)

    def failed_at(self, change: Change) -> float:
        """Return when a failing change failed for the first time."""
        return self._pending[change.uri].failed_at

    def retried_at(self, change: Change) -> float:
        """Return when a change that has just failed will be retried."""
        due = self._pending[change.uri].due
        assert due is not None
        return due

    # The low-water mark, which limits T

    def low_water(self) -> Instant | None:
        """Return the earliest instant that T must not reach; None for no limit."""
        return self._with_backlog(self._low_water())

    def _with_backlog(self, since: Instant | None) -> Instant | None:
        return min((one for one in (since, self.backlog.since) if one is not None), default=None)

    def _low_water(self) -> Instant | None:
        while self._since:
            since, uri = self._since[0]
            pending = self._pending.get(uri)
            if pending is not None and pending.since == since:
                return since
            heappop(self._since)
        return None

    def low_water_after(self, changes: Iterable[Change]) -> Instant | None:
        """Return the value of `low_water` after these dispatched changes are applied."""
        done = {change.uri: change for change in changes}
        passed = []
        while (since := self._low_water()) is not None:
            pending = self._pending[self._since[0][1]]
            is_applied = pending.change is done.get(pending.change.uri)  # and not superseded
            if not is_applied or pending.is_contested:
                break
            passed.append(heappop(self._since))
        for entry in passed:
            heappush(self._since, entry)
        return self._with_backlog(since)

    @property
    def is_deferred(self) -> bool:
        """Whether the earliest pending change only waits for its due time, and has not failed."""
        if self.backlog or self._low_water() is None:
            return False
        pending = self._pending[self._since[0][1]]
        return pending.due is not None and not (pending.attempts or pending.in_flight)

    def wakeup(self) -> float | None:
        """Return when the next delayed change is due; None if none is delayed."""
        return self._delayed[0][0] if self._delayed else None
