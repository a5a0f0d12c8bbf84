"""A Source, a lossy hub and a Destination's store in memory, around the real Follower.

Everything is decided by the test: which fragments arrive, in which order, what can be
fetched, when the Destination crashes. The only clock is `now`, which the test moves.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

from rsnotify.actions import (
    Action,
    Apply,
    BeginBaseline,
    Compare,
    Discover,
    Fetch,
    Note,
    Progress,
    Sweep,
)
from rsnotify.coverage import Change
from rsnotify.datetimes import MICROSECOND
from rsnotify.errors import NotFound, RsnotifyError, Unavailable
from rsnotify.follower import Follower
from rsnotify.model import Document, Link, Resource
from rsnotify.offer import Offer
from rsnotify.pace import Pace
from rsnotify.reading import read_document
from rsnotify.retry import Retry
from rsnotify.vocabulary import Capability, ChangeType
from rsnotify.writing import write_document

BASE = "http://source.example/"
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
OFFER = Offer(
    capability_list=BASE + "capabilitylist.xml",
    resource_list=BASE + "resourcelist.xml",
    change_list=BASE + "changelist.xml",
    change_list_archive=BASE + "changelist-archive.xml",
)
PACE = Pace(poll=1.0, poll_with_push=5.0, gap_grace=0.1, in_flight=4, hold=20, retry=Retry(0.1, 2))


class Source:
    """A set of resources, its history, and the documents that tell it.

    Args:
        granularity: The step of its datetimes; changes within one share a datetime.
        per_list: How many changes a closed Change List holds.
        kept: How many closed Change Lists are kept.
        index: Whether all lists stand in a Change List Index rather than an Archive.
    """

    def __init__(
        self,
        granularity: timedelta = MICROSECOND,
        per_list: int = 4,
        kept: int = 100,
        index: bool = False,
    ) -> None:
        self.granularity = granularity
        self.per_list = per_list
        self.kept = kept
        self.index = index
        self.clock = EPOCH + granularity
        self.history: list[Change] = []
        self.state: dict[str, str] = {}
        self.closed: list[tuple[datetime, datetime, list[Change]]] = []
        self.open_from = EPOCH
        self.listed_at = EPOCH
        self.listed: dict[str, str] = {}
        self.emitted = 0
        self.version = 0

    def change(self, name: str, deleted: bool = False, same_instant: bool = False) -> None:
        """Create, update or delete a resource."""
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
        """Publish a new Resource List."""
        self.listed_at = self._ended()
        self.listed = dict(self.state)

    def _ended(self) -> datetime:
        """Return the last datetime that no further change can get."""
        return self.clock - self.granularity if self.granularity > MICROSECOND else self.clock

    def rotate(self) -> None:
        """Close the older changes of the open list, and forget what is not kept."""
        last = self.open_from
        pending = [change for change in self.history if last < change.at <= self._ended()]
        while len(pending) >= self.per_list:
            until = pending[self.per_list - 1].at
            # A list is never cut inside one datetime.
            chunk = [change for change in pending if change.at <= until]
            pending = [change for change in pending if change.at > until]
            self.closed.append((last, until, chunk))
            last = self.open_from = until
        del self.closed[: -self.kept or None]

    def fragment(self, size: int) -> Document:
        """Emit the next fragment; with nothing to tell, a heartbeat.

        Its `until` says that nothing up to it is missing, so no datetime is parted, and what
        carries the present one waits where others can share it.
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
        )

    def document(self, uri: str) -> Document:
        """Answer a GET of a document."""
        last = self.open_from
        if uri == OFFER.resource_list:
            resources = tuple(
                Resource(uri, hash=digest) for uri, digest in sorted(self.listed.items())
            )
            return Document(Capability.RESOURCE_LIST, resources, at=self.listed_at)
        if uri == OFFER.change_list and self.index:
            open_ = Resource(BASE + "open.xml", from_=last)
            return Document(
                Capability.CHANGE_LIST,
                (*self._closed_entries(), open_),
                index=True,
                from_=self.closed[0][0] if self.closed else last,
            )
        if uri in (OFFER.change_list, BASE + "open.xml"):
            pending = tuple(change.resource for change in self.history if change.at > last)
            links = () if self.index else (Link("archives", OFFER.change_list_archive or ""),)
            return Document(Capability.CHANGE_LIST, pending, from_=last, links=links)
        if uri == OFFER.change_list_archive:
            return Document(Capability.CHANGE_LIST_ARCHIVE, self._closed_entries())
        for from_, until, changes in self.closed:
            if uri == self._closed_uri(from_):
                resources = tuple(change.resource for change in changes)
                return Document(Capability.CHANGE_LIST, resources, from_=from_, until=until)
        raise NotFound(uri, "404")

    def _closed_uri(self, from_: datetime) -> str:
        return f"{BASE}closed-{from_.isoformat()}.xml"

    def _closed_entries(self) -> tuple[Resource, ...]:
        return tuple(
            Resource(self._closed_uri(from_), from_=from_, until=until)
            for from_, until, _ in self.closed
        )


class Destination:
    """A store in memory around a Follower; `crash` loses all but what was committed."""

    def __init__(self, source: Source, random: Random, offer: Offer = OFFER) -> None:
        self.source = source
        self.random = random
        self.offer = offer
        self.now = 0.0
        self.content: dict[str, str] = {}
        self.records: dict[str, tuple[datetime, ChangeType]] = {}
        self.seen: set[str] = set()
        self.progress: Progress | None = None
        self.gets = 0
        self.fetches: list[str] = []
        self.notes: list[str] = []
        self.broken = 0.0
        self.lied_to = False
        self.pending: list[Action] = []
        self.restart()

    def restart(self) -> None:
        """Begin anew from what was committed."""
        self.follower = Follower(self.offer, self.progress, pace=PACE, random=self.random)
        self.pending = []
        self._begin(self.follower.start(self.now))

    def push(self, document: Document) -> None:
        """Deliver a fragment as bytes."""
        read = read_document(write_document(document))
        self._begin(self.follower.fragment(read, self.now))

    def step(self) -> None:
        """Carry out one action, in any order."""
        if self.pending:
            self._do(self.pending.pop(self.random.randrange(len(self.pending))))

    def settle(self, rounds: int = 20_000) -> None:
        """Carry out everything, moving the clock on, until the Destination is level."""
        for _ in range(rounds):
            while self.pending:
                self.step()
            if self.follower.level:
                return
            self.tick()
        raise AssertionError(f"never level: {self.notes[-5:]}")

    def poll(self) -> None:
        """Move the clock on until the Source's lists were read once more, and settle."""
        before = len(self.fetches)
        while len(self.fetches) == before:
            self.tick()
            while self.pending:
                self.step()
        self.settle()

    def tick(self, seconds: float | None = None) -> None:
        """Move the clock, to the next wake-up unless told how far."""
        wakeup = self.follower.wakeup
        if seconds is None:
            seconds = max(0.0, (wakeup or self.now) - self.now)
        self.now += seconds
        self._begin(self.follower.tick(self.now))

    def _begin(self, actions: list[Action]) -> None:
        """Take actions in order; those that need an answer may get it in any order."""
        for action in actions:
            if isinstance(action, BeginBaseline):
                self.seen.clear()
            elif isinstance(action, Note):
                self.notes.append(action.text)
            else:
                self.pending.append(action)

    def _do(self, action: Action) -> None:
        follower = self.follower
        match action:
            case Fetch(uri=uri):
                self.fetches.append(uri)
                try:
                    self._maybe_fail(uri)
                    document = read_document(write_document(self.source.document(uri)))
                except RsnotifyError as error:
                    self._begin(follower.fetch_failed(action, error, self.now))
                else:
                    self._begin(follower.fetched(action, document, self.now))
            case Apply(changes=changes):
                for change in changes:
                    self._apply(change)
            case Compare(resources=resources, at=at):
                self.seen.update(resource.uri for resource in resources)
                differing = [
                    resource
                    for resource in resources
                    if self.content.get(resource.uri) != resource.hash
                    and not self._later(resource.uri, at)
                ]
                self._begin(follower.differing(differing, self.now))
            case Sweep(at=at):
                missing = [
                    uri for uri in self.content if uri not in self.seen and not self._later(uri, at)
                ]
                self._begin(follower.missing(missing, self.now))
            case Discover():
                self._begin(follower.offered(self.offer, self.now))

    def _later(self, uri: str, at: datetime) -> bool:
        record = self.records.get(uri)
        return record is not None and record[0] > at

    def _maybe_fail(self, uri: str) -> None:
        if self.random.random() < self.broken:
            raise self.random.choice([NotFound, Unavailable])(uri, "broken by the test")

    def _apply(self, change: Change) -> None:
        follower = self.follower
        record = self.records.get(change.uri)
        if record is not None and record[0] > change.at:
            self._commit(change, None)
            return
        if change.change is ChangeType.DELETED:
            self.content.pop(change.uri, None)
            self._commit(change, change)
            return
        self.gets += 1
        try:
            self._maybe_fail(change.uri)
            if change.uri not in self.source.state:
                raise NotFound(change.uri, "404")
        except RsnotifyError as error:
            self._begin(follower.failed(change, error, self.now))
            return
        self.content[change.uri] = self.source.state[change.uri]
        self._commit(change, change)

    def _commit(self, change: Change, record: Change | None) -> None:
        if record is not None:
            self.records[change.uri] = (record.at, record.change)
        self._begin(self.follower.applied([change], self.now))
        before = self.progress
        self.progress = self.follower.progress
        if self.progress is None:
            return
        assert before is None or self.progress.through >= before.through, "T went back"
        if not self.lied_to:
            self.check_t()

    def check_t(self) -> None:
        """I4: T never passes a change that is not applied."""
        assert self.progress is not None
        last: dict[str, Change] = {}
        # Where datetimes are not unique, more may come of the very instant T.
        unique = self.source.granularity == MICROSECOND
        for change in self.source.history:
            at = change.at
            if at < self.progress.through or (unique and at == self.progress.through):
                last[change.uri] = change
        for uri, change in last.items():
            # What is held may come from a later time: a GET tells what is there now.
            since = [later for later in self.source.history if later.uri == uri]
            versions = {later.resource.hash for later in since if later.at >= change.at}
            record = self.records.get(uri)
            applied = record is not None and record[0] >= change.at
            assert applied or self.content.get(uri) in versions, (
                f"T={self.progress.through} passed {change}"
            )
