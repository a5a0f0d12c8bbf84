"""Changes that only push has announced so far.

Push is trusted at once, but not forever: a hub may invent, alter or withhold changes, and a Source
may be restored from a backup after it has pushed. Each pushed change stays unconfirmed until a list
that covers its datetime repeats it. If the list does not, or if the lists go on for too long
without reaching it, the resource itself is fetched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct, structs

from rsnotify.format.coverage import EARLIEST, Change, CheckMethod, Coverage
from rsnotify.format.datetimes import Instant
from rsnotify.format.digest import agree
from rsnotify.format.model import Resource
from rsnotify.format.timestamp_precision import end_of_unit
from rsnotify.format.vocabulary import ChangeType, Rel

#: A change that makes a Destination fetch a resource, and the datetime of the change that was
#: pushed: after a crash, the next run has to verify it.
Verification = tuple[Change, Instant]


class UnconfirmedChange(Struct, frozen=True):
    """What push announced of one resource, and when that arrived (by the clock of `now`)."""

    change: Change
    received: float


class UnconfirmedChanges:
    """The pushed changes of one set of resources that no list has confirmed.

    A list may lag behind push for `grace` seconds; after `patience` seconds the resources are
    fetched.
    """

    def __init__(self, grace: float, patience: float) -> None:
        self._grace = grace
        self._patience = patience
        self._pushed: dict[str, UnconfirmedChange] = {}
        #: How many changes are overdue: a list that was read long after they came lacks them.
        self.overdue = 0

    def __len__(self) -> int:
        return len(self._pushed)

    def __contains__(self, uri: str) -> bool:
        return uri in self._pushed

    def add(self, changes: Iterable[Change], now: float) -> None:
        for change in changes:
            self._pushed[change.uri] = UnconfirmedChange(change, now)

    def confirm(
        self, coverage: Coverage, latest: Mapping[str, Change], before: Instant
    ) -> list[Verification]:
        """Remove the changes that a list repeats; and verify those that it should repeat.

        `latest` has the latest change of each resource that is new in the list; earlier lists had
        all changes up to `before`.
        """
        until = coverage.until
        if not self._pushed or until is None:
            return []
        verifications = []
        for uri, pushed in list(self._pushed.items()):
            change, listed = pushed.change, latest.get(uri)
            is_covered = max(coverage.from_ or EARLIEST, before) < change.at < until
            if listed is not None and (listed.at > change.at or _repeats(listed, change)):
                del self._pushed[uri]
            elif is_covered:
                del self._pushed[uri]
                verified = (
                    verification(change, until)
                    if listed is None
                    else structs.replace(listed, check=CheckMethod.FETCH)
                )
                verifications.append((verified, change.at))
        return verifications

    def remove_compared(self, at: Instant) -> list[Change]:
        """Remove and return the changes up to an instant whose whole set was compared."""
        compared = [each.change for each in self._pushed.values() if each.change.at <= at]
        for change in compared:
            del self._pushed[change.uri]
        return compared

    def end_of_lists(self, confirmed: Instant, requested: float, now: float) -> list[Verification]:
        """Count the overdue changes at the end of the lists; and verify those lacked for too long.

        The lists end at `confirmed`; reading them began at `requested`.
        """
        self.overdue = 0
        verifications = []
        for uri, pushed in list(self._pushed.items()):
            if pushed.change.at < confirmed or now - pushed.received > self._patience:
                del self._pushed[uri]
                verifications.append((verification(pushed.change, confirmed), pushed.change.at))
            elif self._is_overdue(pushed, requested):
                self.overdue += 1
        return verifications

    def is_overdue(self, uri: str, requested: float) -> bool:
        """Return whether a list requested at a time should have a change that it lacks."""
        pushed = self._pushed.get(uri)
        return pushed is not None and self._is_overdue(pushed, requested)

    def _is_overdue(self, pushed: UnconfirmedChange, requested: float) -> bool:
        return requested - pushed.received > self._grace

    def clear(self) -> None:
        """Remove all changes, as everything is about to be compared."""
        self._pushed.clear()
        self.overdue = 0


def verification(change: Change, at: Instant) -> Change:
    """Return a change that makes a Destination fetch a resource and store its state as of `at`.

    The announced properties that may decide whether the resource is selected are kept. If a
    deletion was announced, the resource may be missing. The entry has no datetime, as no list has
    it.
    """
    announced = change.resource
    is_deletion = change.change is ChangeType.DELETED
    kind = ChangeType.DELETED if is_deletion else ChangeType.UPDATED
    links = tuple(link for link in announced.links if link.rel == Rel.COLLECTION)
    resource = Resource(announced.uri, change=kind, type=announced.type, links=links)
    return Change(change.uri, kind, at, resource, check=CheckMethod.FETCH)


def fetching(change: Change) -> Change:
    """Return a change that makes a Destination store what the server has, whatever was announced.

    If it is a deletion, the resource may be missing.
    """
    resource = structs.replace(change.resource, hash=None, length=None)
    return structs.replace(change, resource=resource, package=None, check=CheckMethod.FETCH)


def announced_at(change: Change) -> Instant:
    """Return when the documents announced a resource; `EARLIEST` if only push did."""
    is_listed = change.resource.change is None or change.resource.changed_at is not None
    return change.at if is_listed else EARLIEST


def _repeats(listed: Change, pushed: Change) -> bool:
    """Return whether a list has the change that was pushed, with its datetime.

    A stored datetime that is too late would hide the changes before it. Content that came inline,
    or from a mirror that the change named, was verified with the pushed hash alone; the list has
    to repeat the hash.
    """
    if end_of_unit(listed.at) <= pushed.at:
        return False
    deleted = ChangeType.DELETED
    if deleted in (listed.change, pushed.change):
        return listed.change is pushed.change
    same = agree(listed.resource.hash, pushed.resource.hash)
    return same if same is not None else not pushed.resource.links
