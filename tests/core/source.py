"""A Source in memory: a set of resources, its history, and all its documents."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import NotFound
from rsnotify.format.coverage import Change
from rsnotify.format.datetimes import MICROSECOND
from rsnotify.format.hashes import SetDigest, SetSum
from rsnotify.format.model import Capability, ChangeType, Document, Link, Resource
from rsnotify.format.offer import Offer

BASE = "http://source.example/"
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
#: What a Source can offer; `OFFER` is the default.
EVERYTHING = Offer(
    capability_list=BASE + "capabilitylist.xml",
    resource_list=BASE + "resourcelist.xml",
    resource_dump=BASE + "resourcedump.xml",
    change_list=BASE + "changelist.xml",
    change_dump=BASE + "changedump.xml",
    resource_list_archive=BASE + "resourcelist-archive.xml",
    resource_dump_archive=BASE + "resourcedump-archive.xml",
    change_list_archive=BASE + "changelist-archive.xml",
    change_dump_archive=BASE + "changedump-archive.xml",
)
OFFER = Offer(
    capability_list=EVERYTHING.capability_list,
    resource_list=EVERYTHING.resource_list,
    change_list=EVERYTHING.change_list,
    change_list_archive=EVERYTHING.change_list_archive,
)
#: How many resources, or changes, are in one package.
PER_PACKAGE = 2
#: How many packages, lists or dumps are in one document, where these are parted.
PER_PART = 2


def at(seconds: float) -> datetime:
    """Return an instant so many seconds after the epoch of the tests."""
    return EPOCH + timedelta(seconds=seconds)


class Period(Struct):
    """What a Change List or a package holds: changes after `from_` until `until`."""

    from_: datetime
    until: datetime | None
    changes: list[Change]


class Snapshot(Struct):
    """All resources at an instant."""

    number: int
    at: datetime
    state: dict[str, str]


class Source:
    """A set of resources, its history, and its documents.

    Args:
        granularity: The step of its datetimes; changes within one share a datetime.
        per_list: How many changes a closed Change List holds.
        kept: How many closed Change Lists, older packages of changes and older snapshots of
            all resources are kept.
        index: Whether all lists stand in a Change List Index rather than an Archive.
        nested: Whether dumps and archives are parted, under an index.
        terse: Whether the entries of packages only have the time at which they were written.
        audits: Whether fragments state the size and digest of the set.
    """

    def __init__(
        self,
        granularity: timedelta = MICROSECOND,
        per_list: int = 4,
        kept: int = 100,
        index: bool = False,
        nested: bool = False,
        terse: bool = False,
        audits: bool = False,
    ) -> None:
        self.granularity = granularity
        self.per_list = per_list
        self.kept = kept
        self.index = index
        self.nested = nested
        self.terse = terse
        self.audits = audits
        self.clock = EPOCH + granularity
        self.history: list[Change] = []
        self.state: dict[str, str] = {}
        self.closed: list[Period] = []
        self.open_from = EPOCH
        self.packed: list[Period] = []
        self.archived = 0
        self.lists = [Snapshot(0, EPOCH, {})]
        self.dumps = [Snapshot(0, EPOCH, {})]
        self.emitted = 0
        self.version = 0
        #: How long after the last change documents are requested.
        self.read_later = timedelta()

    def served(self, uri: str) -> str | None:
        return self.state.get(uri)

    def versions(self, uri: str) -> list[str]:
        """Return the digests that a resource ever had."""
        return [one.resource.hash for one in self.history if one.uri == uri and one.resource.hash]

    @property
    def sent(self) -> datetime | None:
        """When a document requested now is sent."""
        return self.clock + self.read_later

    @property
    def today(self) -> datetime:
        """What the clock of a Destination shows."""
        return self.clock

    # What happens

    def change(self, name: str, deleted: bool = False, same_instant: bool = False) -> None:
        uri = BASE + name
        if not (same_instant and self.granularity > MICROSECOND):
            self.clock += max(self.granularity, MICROSECOND)
        self.version += 1
        if deleted:
            kind = ChangeType.DELETED
            self.state.pop(uri, None)
        else:
            kind = ChangeType.UPDATED if uri in self.state else ChangeType.CREATED
            self.state[uri] = f"sha-256:{self.version:064x}"
        digest = self.state.get(uri)
        resource = Resource(uri, change=kind, datetime=self.clock, lastmod=self.clock, hash=digest)
        self.history.append(Change(uri, kind, self.clock, resource))

    def list_resources(self) -> None:
        self._snapshot(self.lists)

    def dump_resources(self) -> None:
        self._snapshot(self.dumps)

    def _snapshot(self, snapshots: list[Snapshot]) -> None:
        number = snapshots[-1].number + 1
        snapshots.append(Snapshot(number, self._ended(), dict(self.state)))
        del snapshots[: -self.kept - 1]

    def _ended(self) -> datetime:
        """Return the last datetime that no further change can get."""
        return self.clock - self.granularity if self.granularity > MICROSECOND else self.clock

    def rotate(self, size: int | None = None) -> None:
        """Close the older changes of the open list, and forget what is not kept."""
        for period in self._periods(self.open_from, size or self.per_list):
            self.closed.append(period)
            assert period.until is not None
            self.open_from = period.until
        del self.closed[: -self.kept or None]

    def pack(self, size: int = PER_PACKAGE) -> None:
        """Add packages to the Change Dump, and forget what is not kept."""
        self.packed += self._periods(self._packed_until(), size)
        surplus = max(0, len(self.packed) - self.kept - 1)
        del self.packed[:surplus]
        self.archived = max(0, self.archived - surplus)

    def _packed_until(self) -> datetime:
        until = self.packed[-1].until if self.packed else EPOCH
        assert until is not None
        return until

    def archive(self) -> None:
        """Close the Change Dump, into its archive."""
        self.archived = len(self.packed)

    def _periods(self, last: datetime, size: int) -> list[Period]:
        periods = []
        pending = [change for change in self.history if last < change.at <= self._ended()]
        while len(pending) >= size:
            until = pending[size - 1].at
            # None is cut inside one datetime.
            chunk = [change for change in pending if change.at <= until]
            pending = [change for change in pending if change.at > until]
            periods.append(Period(last, until, chunk))
            last = until
        return periods

    def finish(self, offer: Offer) -> None:
        """Publish all documents once more, at a later instant, so that they are complete."""
        self.clock += self.granularity
        self.list_resources()
        self.dump_resources()
        self.pack(1)
        if offer.change_dump is None:
            self.archive()
        if offer.change_list is None:
            self.rotate(1)

    # Documents

    def fragment(self, size: int) -> Document:
        """Emit the next fragment; without changes, a heartbeat.

        Nothing up to its `until` may be missing. So changes of one datetime are never split, and
        those of the current one wait if others can share it.
        """
        ended = self._ended()
        ready = [change for change in self.history[self.emitted :] if change.at <= ended]
        last = ready[:size][-1].at if ready[:size] else None
        chunk = [change for change in ready if last is not None and change.at <= last]
        before = self.history[self.emitted - 1].at if self.emitted else EPOCH
        self.emitted += len(chunk)
        until = chunk[-1].at if chunk else max(before, ended)
        return Document(
            Capability.CHANGE_NOTIFICATION,
            tuple(change.resource for change in chunk),
            from_=before,
            until=until,
            attributes=self._digest(until).attributes if self.audits else (),
        )

    def _digest(self, until: datetime) -> SetDigest:
        state: dict[str, str | None] = {}
        for change in self.history:
            if change.at <= until:
                state[change.uri] = change.resource.hash
        total = SetSum()
        total.add(one for one in state.items() if one[1] is not None)
        digest = total.digest()
        assert digest is not None
        return digest

    def document(self, uri: str) -> Document:
        """Answer a GET of a document, or the manifest in answer to a GET of a package."""
        name = uri.removeprefix(BASE)
        found: dict[str, Document] = {}
        if name.startswith(("changelist", "closed", "open")):
            self._list_changes(found)
        elif name.startswith(("changedump", "changes")):
            self._list_packed_changes(found)
        elif name.startswith("resourcelist"):
            self._list_resources(found)
        else:
            self._list_packed_resources(found)
        if uri not in found:
            raise NotFound(uri, "404")
        return found[uri]

    def as_written(self, document: Document) -> Document:
        """Return a document that was read with the datetimes that this Source writes."""
        return document

    def _list_changes(self, found: dict[str, Document]) -> None:
        entries = []
        for period in self.closed:
            entries.append(_interval(f"closed-{period.from_.isoformat()}", period))
            found[entries[-1].uri] = listed_changes(Capability.CHANGE_LIST, period)
        pending = [change for change in self.history if change.at > self.open_from]
        open_ = listed_changes(Capability.CHANGE_LIST, Period(self.open_from, None, pending))
        top, archive = EVERYTHING.change_list, EVERYTHING.change_list_archive
        assert top is not None
        assert archive is not None
        self._put(found, archive, Document(Capability.CHANGE_LIST_ARCHIVE, tuple(entries)))
        if self.index:
            begins = self.closed[0].from_ if self.closed else self.open_from
            entries.append(Resource(BASE + "open.xml", from_=self.open_from))
            found[BASE + "open.xml"] = open_
            found[top] = Document(Capability.CHANGE_LIST, tuple(entries), index=True, from_=begins)
        else:
            found[top] = replace(open_, links=(Link("archives", archive),))

    def _list_packed_changes(self, found: dict[str, Document]) -> None:
        packages = []
        for period in self.packed:
            package = _interval(f"changes-{period.from_.isoformat()}.zip", period)
            found[package.uri] = listed_changes(Capability.CHANGE_DUMP_MANIFEST, period)
            packages.append(Resource(package.uri, lastmod=period.until) if self.terse else package)
        live = packages[self.archived :]
        begins = self.packed[self.archived].from_ if live else self._packed_until()
        dump = Document(Capability.CHANGE_DUMP, tuple(live), from_=begins)
        self._put(found, EVERYTHING.change_dump or "", dump)
        dumps = []
        for place in range(0, self.archived, PER_PART):
            periods = self.packed[place : min(place + PER_PART, self.archived)]
            whole = Period(periods[0].from_, periods[-1].until, [])
            dumps.append(_interval(f"changedump-{whole.from_.isoformat()}", whole))
            found[dumps[-1].uri] = Document(
                Capability.CHANGE_DUMP,
                tuple(packages[place : place + len(periods)]),
                from_=whole.from_,
                until=whole.until,
            )
        archive = Document(Capability.CHANGE_DUMP_ARCHIVE, tuple(dumps))
        self._put(found, EVERYTHING.change_dump_archive or "", archive)

    def _list_resources(self, found: dict[str, Document]) -> None:
        entries = []
        for snapshot in self.lists:
            document = Document(Capability.RESOURCE_LIST, _resources(snapshot), at=snapshot.at)
            entries.append(Resource(f"{BASE}resourcelist-{snapshot.number}", at=snapshot.at))
            found[EVERYTHING.resource_list or ""] = found[entries[-1].uri] = document
        archive = Document(Capability.RESOURCE_LIST_ARCHIVE, tuple(entries))
        self._put(found, EVERYTHING.resource_list_archive or "", archive)

    def _list_packed_resources(self, found: dict[str, Document]) -> None:
        entries = []
        for snapshot in self.dumps:
            packages = []
            resources = _resources(snapshot)
            for place in range(0, len(resources), PER_PACKAGE):
                uri = f"{BASE}resources-{snapshot.number}-{place}.zip"
                held = resources[place : place + PER_PACKAGE]
                found[uri] = Document(Capability.RESOURCE_DUMP_MANIFEST, held, at=snapshot.at)
                packages.append(Resource(uri, lastmod=snapshot.at))
            dump = Document(Capability.RESOURCE_DUMP, tuple(packages), at=snapshot.at)
            entries.append(Resource(f"{BASE}resourcedump-{snapshot.number}", at=snapshot.at))
            for uri in (entries[-1].uri, EVERYTHING.resource_dump or ""):
                self._put(found, uri, dump)
        archive = Document(Capability.RESOURCE_DUMP_ARCHIVE, tuple(entries))
        self._put(found, EVERYTHING.resource_dump_archive or "", archive)

    def _put(self, found: dict[str, Document], uri: str, document: Document) -> None:
        """Publish a document, in parts under an index if it is to be."""
        if not self.nested:
            found[uri] = document
            return
        entries = []
        for place in range(0, len(document.resources), PER_PART):
            part = document.resources[place : place + PER_PART]
            begins, ends = part[0].from_, part[-1].until
            closed = ends if document.capability == Capability.CHANGE_DUMP else None
            name = f"{uri}-{part[0].uri.removeprefix(BASE)}"
            found[name] = replace(document, resources=part, from_=begins or document.from_)
            entries.append(Resource(name, from_=begins if closed else None, until=closed))
        found[uri] = replace(document, resources=tuple(entries), index=True)


def _interval(name: str, period: Period) -> Resource:
    return Resource(BASE + name, from_=period.from_, until=period.until)


def listed_changes(capability: str, period: Period) -> Document:
    packed = capability == Capability.CHANGE_DUMP_MANIFEST
    resources = tuple(
        replace(change.resource, path=f"/{place}")
        if packed and change.change is not ChangeType.DELETED
        else change.resource
        for place, change in enumerate(period.changes)
    )
    return Document(capability, resources, from_=period.from_, until=period.until)


def _resources(snapshot: Snapshot) -> tuple[Resource, ...]:
    held = sorted(snapshot.state.items())
    return tuple(
        Resource(uri, hash=digest, path=f"/{place}") for place, (uri, digest) in enumerate(held)
    )
