"""Taking in what a document tells of changes: what of it is new becomes owed."""

from __future__ import annotations

from msgspec import structs

from rsnotify.actions import Fetch
from rsnotify.coverage import Change, Coverage
from rsnotify.datetimes import Instant
from rsnotify.knowledge import Knowledge
from rsnotify.model import Resource
from rsnotify.worklist import Worklist

#: How many packages are remembered; what is forgotten is read once more.
_KEPT = 50_000


class Intake:
    """Takes in Change Lists and packages of Change Dumps, for all pulls of a follower.

    Args:
        knowledge: What is known.
        worklist: Where changes are owed.
        park: How many changes may wait for later ones of the same resource.
    """

    def __init__(self, knowledge: Knowledge, worklist: Worklist, park: int) -> None:
        self._knowledge = knowledge
        self._worklist = worklist
        self._park = park
        self._until: tuple[str, Instant | None] | None = None
        #: By URI, the packages that were taken in last, as their dump had them.
        self.packages: dict[str, Resource] = {}
        #: Whether there was something later than all before, since this was last unset.
        self.news = False

    def take(self, asked: Fetch, coverage: Coverage, *, more: bool) -> int:
        """Take in a document that joins what is confirmed.

        Args:
            asked: What asked for it.
            coverage: What it covers.
            more: Whether other documents are about to follow.

        Returns:
            How many changes were new.
        """
        before = self._knowledge.confirmed
        fresh = self._knowledge.pull(self._believed(asked, coverage))
        # With more lists to come, a resource may change once more: one GET will do. A package
        # brings what it has.
        parked = more and asked.package is None and self._worklist.parked < self._park
        for change in fresh:
            self._worklist.add(_unless_old(change, before), parked=parked)
        if asked.package is not None:
            self._note_read(asked.uri, asked.package)
        self.news = self.news or (bool(fresh) and self._knowledge.confirmed > before)
        return len(fresh)

    def _note_read(self, uri: str, package: Resource) -> None:
        self.packages.pop(uri, None)
        self.packages[uri] = package
        if len(self.packages) > _KEPT:
            del self.packages[next(iter(self.packages))]

    def _believed(self, asked: Fetch, coverage: Coverage) -> Coverage:
        """Take the `until` of a list that is rewritten, and so not closed, for what it is.

        A Source that stamps it with the present may append an earlier change a moment later.
        """
        if not coverage.closed:
            return coverage
        before, self._until = self._until, (asked.uri, coverage.until)
        if before is None or before[0] != asked.uri or before == self._until:
            return coverage
        latest = max((change.at for change in coverage.changes), default=coverage.from_)
        return structs.replace(coverage, until=latest, closed=False)


def _unless_old(change: Change, before: Instant) -> Change:
    """Take nothing from a package that is out of order.

    Something later may have been applied, and forgotten, already: a deletion. A GET tells.
    """
    return structs.replace(change, package=None) if change.at < before else change
