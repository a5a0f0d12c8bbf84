"""What a Destination still owes: for each resource the latest change not yet applied.

However often a resource changed, it is owed once; the instant of its *first* unapplied
change is kept, because the Destination's T must not pass it. A failure is tried again with
backoff, and holds up nothing but T.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Set
from heapq import heappop, heappush
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.format.coverage import Change, CheckMethod
from rsnotify.format.datetimes import LATEST, Instant
from rsnotify.format.digest import agree
from rsnotify.format.vocabulary import ChangeType
from rsnotify.sync.retry import Retry


class _Pending(Struct):
    change: Change
    since: Instant
    attempts: int = 0
    missing_since: float | None = None
    handed_out: bool = False
    #: What announced the resource, while `change` removes it from the copy because of a 404.
    missing: Change | None = None


class PendingChanges:
    """The owed changes, and in which order they are handed out.

    Args:
        retry: How failures are tried again.
        random: The source of jitter.
    """

    def __init__(self, retry: Retry, random: Random) -> None:
        self._retry = retry
        self._random = random
        self._owed: dict[str, _Pending] = {}
        self._ready: deque[str] = deque()
        self._parked: list[str] = []
        self._delayed: list[tuple[float, str]] = []
        self._since: list[tuple[Instant, str]] = []
        self._failing = 0
        self.handed_out = 0

    def __len__(self) -> int:
        return len(self._owed)

    @property
    def untried(self) -> int:
        """How many resources are owed whose latest change has not failed so far."""
        return len(self._owed) - self._failing

    def add(
        self,
        change: Change,
        since: Instant | None = None,
        *,
        parked: bool = False,
        due: float | None = None,
        missing: Change | None = None,
    ) -> None:
        """Add a change. It supersedes an earlier one of its resource, and waits no longer.

        To fetch the resource supersedes every change, whatever its datetime. If another change
        comes before that is done, it is compared, as the datetime of what is held may be wrong.
        Where a list of changes contradicts an entry of a Resource List that is not applied yet,
        the resource is fetched, as either document may be the wrong one.

        Args:
            change: The change.
            parked: Whether to wait for `release`, as a later change may be about to come.
            since: The instant that T must not reach before this is applied, if that is not
                the change's own: an entry of a Resource List may have changed at any time.
            due: When it may be handed out, if not at once.
            missing: What announced the resource, if this removes it from the copy because its
                server answers 404. A 404 is no statement of the Source, so the change lists that
                come next are compared with this.
        """
        since = since or change.at
        owed = self._owed.get(change.uri)
        if owed is None:
            self._owed[change.uri] = _Pending(change, since)
            heappush(self._since, (since, change.uri))
            self._line_up(change.uri, parked, due)
            return
        waits = bool(owed.attempts) or owed.since == LATEST
        if since < owed.since:
            owed.since = since
            heappush(self._since, (since, change.uri))
        announced = owed.missing or owed.change
        if change.at < announced.at and _contradicts(change, announced):
            change = _verification(change, announced)
        if change.at >= owed.change.at or change.check is CheckMethod.FETCH:
            if change.check is CheckMethod.DATE and owed.change.check is not CheckMethod.DATE:
                change = replace(change, check=CheckMethod.COMPARE)
            if waits and not owed.handed_out:
                self._line_up(change.uri, False, due)  # not to wait out the old failure
            self._failing -= owed.attempts > 0
            owed.change = change
            owed.missing = missing
            owed.attempts = 0

    def watch(self, change: Change, due: float) -> None:
        """Add a change that does not hold up T: what is listed and not there may come back."""
        self.add(change, LATEST, due=due)

    @property
    def watched(self) -> list[str]:
        """Resources that are listed and not there."""
        return [uri for uri, owed in self._owed.items() if owed.since == LATEST]

    def drop_unlisted(self, at: Instant, listed: Set[str]) -> bool:
        """Remove what the whole set does not have any more, and what the server did not have.

        Args:
            at: The datetime of the whole set.
            listed: Watched resources that it has.

        Returns:
            Whether that settles all of them. What is being fetched or removed just then may still
            turn out to be missing, and needs another comparison.
        """
        is_settled = True
        for uri, owed in list(self._owed.items()):
            is_watched = owed.since == LATEST
            is_missing = bool(owed.attempts) and owed.missing_since is not None
            is_old = owed.change.at < at and (owed.change.resource.change is None or is_missing)
            if owed.handed_out:
                may_be_gone = is_watched or owed.missing is not None
                is_settled = is_settled and not (may_be_gone and uri not in listed)
            elif uri not in listed if is_watched else is_old:
                self._failing -= owed.attempts > 0
                del self._owed[uri]
        return is_settled

    def is_watched(self, uri: str) -> bool:
        """Return whether a resource is listed and not there."""
        owed = self._owed.get(uri)
        return owed is not None and owed.since == LATEST

    def _line_up(self, uri: str, parked: bool, due: float | None) -> None:
        if due is not None:
            heappush(self._delayed, (due, uri))
        else:
            (self._parked if parked else self._ready).append(uri)

    @property
    def parked(self) -> int:
        """How many resources wait for `release`."""
        return len(self._parked)

    def release(self) -> None:
        """Let what is parked be handed out."""
        self._ready.extend(self._parked)
        self._parked.clear()

    def forget(self) -> None:
        """Owe no more what is not out to be applied, as all of it will be told anew."""
        self._owed = {uri: owed for uri, owed in self._owed.items() if owed.handed_out}
        self._failing = sum(owed.attempts > 0 for owed in self._owed.values())

    def take(self, limit: int, now: float) -> list[Change]:
        """Hand out changes to apply, so that at most `limit` are out at once."""
        while self._delayed and self._delayed[0][0] <= now:
            self._ready.append(heappop(self._delayed)[1])
        taken = []
        while self._ready and self.handed_out < limit:
            owed = self._owed.get(self._ready.popleft())
            if owed is not None and not owed.handed_out:
                owed.handed_out = True
                self.handed_out += 1
                taken.append(owed.change)
        return taken

    def applied(self, change: Change) -> bool:
        """Record that a change handed out is durably applied.

        Returns:
            Whether nothing later is known of its resource.
        """
        owed = self._returned(change)
        if owed is None:
            return True
        if owed.change is not change:
            self._ready.append(change.uri)  # superseded meanwhile
            return False
        self._failing -= owed.attempts > 0
        del self._owed[change.uri]
        return True

    def failed(
        self, change: Change, now: float, at_least: float = 0.0, *, missing: bool = False
    ) -> int:
        """Hear that a change handed out could not be applied.

        Args:
            change: The change.
            now: The time, in seconds of any clock that does not jump.
            at_least: Seconds not to try again within, if the server asked for it.
            missing: Whether it is because its resource was not there.

        Returns:
            How often this very change has failed; 0 if it was superseded meanwhile.
        """
        owed = self._returned(change)
        if owed is None:
            return 0
        if owed.change is not change:
            self._ready.append(change.uri)
            return 0
        if owed.attempts == 0:
            self._failing += 1
            owed.missing_since = None
        if not missing:
            owed.missing_since = None
        elif owed.missing_since is None:
            owed.missing_since = now
        owed.attempts += 1
        delay = self._retry.delay(owed.attempts, self._random, at_least=at_least)
        heappush(self._delayed, (now + delay, change.uri))
        return owed.attempts

    def missing_since(self, change: Change) -> float | None:
        """Return since when the resource of a change that failed has been missing at each try."""
        return self._owed[change.uri].missing_since

    def _returned(self, change: Change) -> _Pending | None:
        owed = self._owed.get(change.uri)
        if owed is None or not owed.handed_out:
            return None
        owed.handed_out = False
        self.handed_out -= 1
        return owed

    def low_water(self) -> Instant | None:
        """Return the datetime of the earliest change owed, if any is."""
        while self._since:
            since, uri = self._since[0]
            owed = self._owed.get(uri)
            if owed is not None and owed.since == since:
                return since
            heappop(self._since)
        return None

    def low_water_after(self, changes: Iterable[Change]) -> Instant | None:
        """Return what `low_water` will be once changes handed out are applied."""
        done = {change.uri: change for change in changes}
        passed = []
        while (since := self.low_water()) is not None:
            uri = self._since[0][1]
            if self._owed[uri].change is not done.get(uri):  # or superseded meanwhile
                break
            passed.append(heappop(self._since))
        for one in passed:
            heappush(self._since, one)
        return since

    @property
    def waits(self) -> bool:
        """Whether the earliest of all that is owed has not failed, and waits for its time."""
        if self.low_water() is None:
            return False
        uri = self._since[0][1]
        is_new = not (self._owed[uri].attempts or self._owed[uri].handed_out)
        return is_new and any(uri == delayed for _, delayed in self._delayed)

    def wakeup(self) -> float | None:
        """Return when the next delayed change is due, if one waits."""
        return self._delayed[0][0] if self._delayed else None

    def failing(self, attempts: int = 1) -> list[Change]:
        """Return the changes that failed at least so often."""
        return [owed.change for owed in self._owed.values() if owed.attempts >= attempts]


def _contradicts(change: Change, listed: Change) -> bool:
    """Return whether a change that is compared says otherwise than an entry of a Resource List."""
    if change.check is not CheckMethod.COMPARE or listed.resource.change is not None:
        return False
    is_deletion = change.change is ChangeType.DELETED
    if is_deletion or listed.change is ChangeType.DELETED:
        return is_deletion is not (listed.change is ChangeType.DELETED)
    return agree(change.resource.hash, listed.resource.hash) is False


def _verification(change: Change, listed: Change) -> Change:
    """Return a change that makes a Destination keep whatever the resource is now.

    If one of the two says that the resource is deleted, it need not be there.
    """
    is_deleted = ChangeType.DELETED in (change.change, listed.change)
    kind = ChangeType.DELETED if is_deleted else change.change
    resource = replace(change.resource, change=kind, hash=None, length=None)
    return replace(change, change=kind, resource=resource, package=None, check=CheckMethod.FETCH)
