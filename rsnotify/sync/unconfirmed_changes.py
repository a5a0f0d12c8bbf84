"""Pushed changes that no list has confirmed yet.

Pushed changes are applied at once, but not trusted: a hub may invent, alter or withhold changes,
and a Source may be restored from a backup after it has pushed.

    unconfirmed   a list repeats the change ──> confirmed
                  a list covers its datetime but lacks it or may have another version, or no list
                    reaches its datetime for too long ──> verified: the resource itself is fetched
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct, structs

from rsnotify.format.coverage import EARLIEST, Change, CheckMethod, Coverage
from rsnotify.format.datetimes import Instant, end_of_unit
from rsnotify.format.hashes import agree
from rsnotify.format.model import ChangeType, Rel, Resource

#: A change that fetches a resource, and the datetime of the pushed change. After a crash, the next
#: run verifies that change again.
Verification = tuple[Change, Instant]


class UnconfirmedChange(Struct, frozen=True):
    """The pushed change of one resource, and the time of its arrival."""

    change: Change
    received: float


class UnconfirmedChanges:
    """The pushed changes of one set of resources that no list has confirmed yet.

    A change is overdue if a list requested more than `grace` seconds after its arrival lacks it.
    After `patience` seconds, its resource is fetched.
    """

    def __init__(self, grace: float, patience: float) -> None:
        self._grace = grace
        self._patience = patience
        self._pushed: dict[str, UnconfirmedChange] = {}
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
        """Remove the changes that a list repeats or covers.

        `latest` has the latest change of each resource with new changes in the list. Earlier lists
        contained all changes up to `before`.

        Returns:
            Verifications of the changes that the list covers but does not repeat.
        """
        until = coverage.until
        assert until is not None
        verifications = []
        for uri, pushed in list(self._pushed.items()):
            change, listed = pushed.change, latest.get(uri)
            is_covered = max(coverage.from_ or EARLIEST, before) < change.at < until
            if listed is not None and (listed.at > change.at or _repeats(listed, change)):
                del self._pushed[uri]
            elif is_covered or (listed is not None and _is_not_earlier(listed, change)):
                del self._pushed[uri]
                verified = (
                    verification(change, until)
                    if listed is None
                    else structs.replace(listed, check=CheckMethod.FETCH)
                )
                verifications.append((verified, change.at))
        return verifications

    def remove_compared(self, at: Instant) -> list[Change]:
        """Remove and return the changes up to `at`, the instant of the last full comparison."""
        compared = [each.change for each in self._pushed.values() if each.change.at <= at]
        for change in compared:
            del self._pushed[change.uri]
        return compared

    def end_of_lists(
        self, confirmed: Instant, requested: float, now: float, sent: Instant | None
    ) -> list[Verification]:
        """Count the overdue changes, and return verifications of those missing for too long.

        Called after all lists were read. They end at `confirmed`, were requested at `requested`,
        and were sent at `sent`, if known. A verification has the datetime of its change, because a
        Resource List from before may lack the resource, but none in the future.
        """
        self.overdue = 0
        verifications = []
        for uri, pushed in list(self._pushed.items()):
            if pushed.change.at < confirmed or now - pushed.received > self._patience:
                del self._pushed[uri]
                pushed_at = pushed.change.at
                at = max(confirmed, min(pushed_at, sent or confirmed))
                verifications.append((verification(pushed.change, at), pushed_at))
            elif requested - pushed.received > self._grace:
                self.overdue += 1
        return verifications

    def is_covered(self, uri: str, coverage: Coverage) -> bool:
        """Return whether a list reaches the datetime of a resource's pushed change."""
        assert coverage.until is not None
        return self._pushed[uri].change.at <= coverage.until

    def is_overdue(self, uri: str, requested: float) -> bool:
        """Return whether a list requested at `requested` should contain the pushed change."""
        return requested - self._pushed[uri].received > self._grace

    def clear(self) -> None:
        """Remove all changes, because everything is about to be compared."""
        self._pushed.clear()
        self.overdue = 0


def verification(change: Change, at: Instant) -> Change:
    """Return a change that fetches a resource and stores its state as of `at`.

    The change keeps the announced properties by which a resource may be selected. If a deletion was
    announced, the resource may be missing. The entry has no datetime, because no list contains it.
    """
    announced = change.resource
    is_deletion = change.change is ChangeType.DELETED
    kind = ChangeType.DELETED if is_deletion else ChangeType.UPDATED
    links = tuple(link for link in announced.links if link.rel == Rel.COLLECTION)
    resource = Resource(announced.uri, change=kind, type=announced.type, links=links)
    check = CheckMethod.FETCH
    return Change(change.uri, kind, at, resource, check=check, pushed=change.pushed)


def _is_not_earlier(listed: Change, pushed: Change) -> bool:
    """Return whether a listed change is not earlier than the pushed one, as far as stated."""
    return end_of_unit(listed.at) > pushed.at


def _repeats(listed: Change, pushed: Change) -> bool:
    """Return whether a list contains the pushed change, with its datetime.

    If the pushed datetime were too late, changes before it would look old. Inline content and
    content from a mirror were verified only against the pushed hash, so the list must repeat it.
    """
    if not _is_not_earlier(listed, pushed):
        return False
    deleted = ChangeType.DELETED
    if deleted in (listed.change, pushed.change):
        return listed.change is pushed.change
    same = agree(listed.resource.hash, pushed.resource.hash)
    return same if same is not None else not pushed.resource.links
