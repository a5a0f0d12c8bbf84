"""A Source in memory whose documents are wrong as those of real Sources, and a hub that lies.

Its `state` is always right. Its documents may be dated wrongly, out of order, late, or older than
a backup that was restored.
"""

from __future__ import annotations

from copy import deepcopy
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.format.coverage import Change
from rsnotify.format.datetimes import MICROSECOND
from rsnotify.format.model import Capability, ChangeType, Document, Link, Resource
from tests.core.source import BASE, EPOCH, EVERYTHING, Snapshot, Source
from tests.core.world import Destination

STEP = timedelta(seconds=10)
FORGED = "sha-256:" + 64 * "f"


class Faults(Struct, frozen=True):
    """How the documents of a Source are wrong.

    Args:
        at_ahead: How far the `at` of a Resource List lies ahead of when it was made.
        until_ahead: How far the `until` of the open list lies ahead; None if it has none.
        at_end: Whether `at` is taken when a Resource List is finished, and not when it is begun.
        order: How the open list is sorted: "as it came", "as it is dated", "newest first" or
            "shuffled".
        dateless: Whether answers have no Date.
        rotates: Whether the open list is closed now and then.
        coarse: Which changes are dated by the minute, which may not be over: "updates",
            "deletions", "some" or none of them.
        aliases: Whether lists spell the URI of a resource now in one way, now in another.
    """

    at_ahead: timedelta = timedelta()
    until_ahead: timedelta | None = None
    at_end: bool = False
    order: str = "as it came"
    dateless: bool = False
    rotates: bool = True
    coarse: str = ""
    aliases: bool = False


class FaultySource(Source):
    """A Source whose documents are always wrong in the same way, and which can be restored.

    Its clock goes on by ten seconds with each change.
    """

    def __init__(self, faults: Faults, *, index: bool = False) -> None:
        super().__init__(per_list=2, index=index)
        self.faults = faults
        self._lost: set[str] = set()
        self._begun: dict[str, str] | None = None
        self._transactions: list[tuple[datetime, str, bool]] = []
        self._backup: tuple[object, ...] | None = None

    @property
    def sent(self) -> datetime | None:
        return None if self.faults.dateless else self.clock + STEP / 2

    def change(self, name: str, deleted: bool = False, same_instant: bool = False) -> None:
        self.clock += STEP
        super().change(name, deleted)

    def list_resources(self) -> None:
        if not self.faults.at_end:
            self.clock += STEP
            super().list_resources()
            self.dump_resources()
        elif self._begun is None:
            self._begun = dict(self.state)
        else:
            self.clock += STEP
            number = self.lists[-1].number + 1
            self.lists = [*self.lists[-self.kept :], Snapshot(number, self.clock, self._begun)]
            self.dumps = list(self.lists)
            self._begun = None

    def list_all(self) -> None:
        """Write a new Resource List that has every change so far."""
        if self._begun is not None:
            self.list_resources()
        self.list_resources()
        if self._begun is not None:
            self.list_resources()

    def rotate(self, size: int | None = None) -> None:
        if self.faults.rotates:
            super().rotate(size)

    # Entries with a wrong date

    def move_here(self, name: str) -> None:
        """Create or update a resource by moving an old file there: its `lastmod` is the old one."""
        self.change(name)
        last = self.history[-1]
        old = EPOCH - timedelta(days=1, seconds=self.version)
        entry = replace(last.resource, datetime=None, lastmod=old)
        self.history[-1] = replace(last, resource=entry)

    def begin_transaction(self, name: str, deleted: bool) -> None:
        """Take the datetime of a change that is seen when it is committed."""
        self.clock += STEP
        if not self.faults.rotates:  # what is added to a list and closed at once, nobody sees
            self._transactions.append((self.clock, name, deleted))

    def commit(self) -> None:
        """Commit the oldest transaction, unless something else changed the resource since."""
        if not self._transactions:
            return
        at, name, deleted = self._transactions.pop(0)
        uri = BASE + name
        is_taken = any(one.uri == uri and one.at > at for one in self.history)
        if is_taken or at <= self.open_from or at <= self._announced_until():
            return
        clock = self.clock
        self.clock = at - STEP
        self.change(name, deleted)
        late = replace(self.history.pop(), at=at)
        self.clock = clock
        self.history.append(replace(late, resource=replace(late.resource, datetime=at)))
        self.history.sort(key=lambda one: one.at)

    def _announced_until(self) -> datetime:
        """Return the end of the last fragment that hubs received."""
        return self.history[self.emitted - 1].at if self.emitted else EPOCH

    # A server that is not what is listed

    def lose(self, name: str) -> None:
        """Make the server answer 404, though every list has the resource."""
        self._lost.add(BASE + name)

    def find(self) -> None:
        self._lost.clear()

    def served(self, uri: str) -> str | None:
        return None if uri in self._lost else super().served(uri)

    # Backups

    def back_up(self) -> None:
        known = (self.history, self.state, self.closed, self.open_from, self.emitted)
        self._backup = deepcopy((*known, self.lists, self.dumps))

    def restore(self) -> None:
        """Know only what the backup has; the clock goes on."""
        if self._backup is not None:
            known = deepcopy(self._backup)
            self.history, self.state, self.closed = known[:3]  # type: ignore[assignment]
            self.open_from, self.emitted, self.lists, self.dumps = known[3:]  # type: ignore[assignment]
            self._transactions.clear()
            self._begun = None

    def heal(self) -> None:
        """Write right documents from now on, and a Resource List at once."""
        self.clock += self.faults.at_ahead + (self.faults.until_ahead or timedelta())
        self.faults, self._begun = Faults(), None
        self._transactions.clear()
        self.find()
        self.list_resources()
        self.change("a")

    # Documents

    def as_written(self, document: Document) -> Document:
        if self.faults.aliases:
            respelled = tuple(map(self._respelled, document.resources))
            document = replace(document, resources=respelled)
        if not self.faults.coarse:
            return document
        entries = tuple(map(self._coarsely, document.resources))
        if document.capability == Capability.CHANGE_LIST and self.faults.order == "as it is dated":
            entries = tuple(sorted(entries, key=lambda entry: entry.datetime or EPOCH))
        return replace(document, resources=entries)

    def _respelled(self, entry: Resource) -> Resource:
        name = entry.uri.removeprefix(BASE)
        if len(name) != 1:  # a document
            return entry
        spellings = (entry.uri, f"{BASE}%{ord(name):X}", f"HTTP://Source.example:80/x/../{name}")
        return replace(entry, uri=spellings[(len(self.history) + len(self.lists)) % 3])

    def _coarsely(self, entry: Resource) -> Resource:
        is_deletion = entry.change is ChangeType.DELETED
        is_coarse = {
            "deletions": is_deletion,
            "updates": not is_deletion,
            "some": str(entry.hash)[-1] in "02468a" or is_deletion,
        }[self.faults.coarse]
        if entry.datetime is None or not is_coarse:
            return entry
        return replace(entry, datetime=entry.datetime.replace(second=0, microsecond=0, fold=1))

    def document(self, uri: str) -> Document:
        document = super().document(uri)
        if uri == EVERYTHING.resource_list:
            assert document.at is not None
            return replace(document, at=document.at + self.faults.at_ahead)
        if uri != EVERYTHING.change_list:
            return document
        ahead, entries = self.faults.until_ahead, list(document.resources)
        if self.faults.order == "newest first":
            entries.reverse()
        elif self.faults.order == "shuffled":
            entries.sort(key=lambda entry: (entry.hash or entry.uri)[::-1])
        until = None if ahead is None else self.clock + ahead
        return replace(document, resources=tuple(entries), until=until)


class Liar:
    """A hub that announces changes that never happened, or withholds others.

    Args:
        source: The Source of the changes.
        destination: The Destination that trusts it.
    """

    def __init__(self, source: FaultySource, destination: Destination) -> None:
        self._source = source
        self._destination = destination

    def invent(self, name: str, kind: ChangeType, ahead: timedelta, carried: bool) -> None:
        """Announce a change that never happened, with forged content or without."""
        at = max(self._source.clock, self._known()) + MICROSECOND + ahead
        data = (Link("duplicate", "data:,forged"),) if carried else ()
        digest = None if kind is ChangeType.DELETED else FORGED
        links = () if kind is ChangeType.DELETED else data
        entry = Resource(BASE + name, change=kind, datetime=at, hash=digest, links=links)
        self._push((entry,), at)

    def withhold(self, last: int) -> None:
        """Announce only the last few changes."""
        changes = [one for one in self._source.history if one.at > self._known()]
        announced: list[Change] = changes[len(changes) - last :] if last else []
        self._source.emitted = len(self._source.history)
        self._push(tuple(one.resource for one in announced), self._source.clock)

    def _known(self) -> datetime:
        return self._destination.follower.known or EPOCH

    def _push(self, entries: tuple[Resource, ...], until: datetime) -> None:
        from_ = self._known()
        capability = Capability.CHANGE_NOTIFICATION
        until = max(from_, until)
        self._destination.push(Document(capability, entries, from_=from_, until=until))
