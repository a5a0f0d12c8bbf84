"""A Destination's store in memory around the real Follower, and a Source for it.

Everything is decided by the test: which fragments arrive, in which order, what can be
fetched, when the Destination crashes. The only clock is `now`, which the test moves.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from random import Random

from msgspec.structs import replace

from rsnotify.errors import ContentMismatch, MalformedDocument, NotFound, RsnotifyError, Unavailable
from rsnotify.format.coverage import EARLIEST, Change, CheckMethod
from rsnotify.format.datetimes import MICROSECOND, is_undecided
from rsnotify.format.hashes import SetSum
from rsnotify.format.model import ChangeType, Document, Resource
from rsnotify.format.offer import Offer
from rsnotify.format.reader import read_document
from rsnotify.format.uris import normalize
from rsnotify.format.writer import write_document
from rsnotify.selection import has_inline_content
from rsnotify.sync.actions import (
    Action,
    Apply,
    BacklogAction,
    BacklogExtent,
    BeginBaseline,
    ClearBacklog,
    Compare,
    Discover,
    Fetch,
    FindUnlisted,
    ForgetDatetimes,
    LogNote,
    StoreBacklog,
    TakeBacklog,
)
from rsnotify.sync.follower import Follower
from rsnotify.sync.pace import Pace
from rsnotify.sync.progress import Progress
from rsnotify.sync.retry import Retry
from tests.core.source import BASE, EPOCH, EVERYTHING, OFFER, Source

__all__ = ["BASE", "EPOCH", "EVERYTHING", "OFFER", "PACE", "PATIENT", "Destination", "Source"]

PACE = Pace(
    poll=1.0,
    poll_with_push=5.0,
    gap_grace=0.1,
    in_flight=4,
    hold=20,
    gone_after=3.0,
    stale=3.0,
    retry=Retry(0.1, 2),
)
#: For random faults: only very many 404s mean that a resource is gone. But they do mean it in the
#: end, as no document may list what is deleted while a first copy is made.
PATIENT = replace(PACE, gone_after=7e3)
FAILURES: tuple[Callable[[str], RsnotifyError], ...] = (
    lambda uri: NotFound(uri, "rotated away"),
    lambda uri: Unavailable(uri, "out of reach"),
    lambda uri: ContentMismatch(uri, "not what was announced"),
    lambda uri: MalformedDocument("truncated", source=uri),
)


@lru_cache(maxsize=1_000)
def as_read(document: Document) -> Document:
    """Return a document as it is read after it was written; most are fetched several times."""
    return read_document(write_document(document))


class Destination:
    """A store in memory around a Follower; `crash` loses all but what was committed."""

    def __init__(
        self,
        source: Source,
        random: Random,
        offer: Offer = OFFER,
        pace: Pace = PACE,
        *,
        verifies: bool = False,
    ) -> None:
        self.source = source
        #: One change may be parked in memory, so that the others are in the backlog.
        self.pace = replace(pace, parked=1)
        self.random = random
        self.offer = offer
        self.now = 0.0
        self.content: dict[str, str] = {}
        self.records: dict[str, tuple[datetime, ChangeType]] = {}
        #: When the Source's server sent the content, by its clock.
        self.fetched: dict[str, datetime] = {}
        #: The time of the latest version of each resource that was stored, or passed as missing.
        self.reached: dict[str, datetime] = {}
        self.seen: set[str] = set()
        self.progress: Progress | None = None
        self.gets = 0
        self.unpacked = 0
        self.verified = 0
        self.steps_back = 0
        self.fetches: list[str] = []
        self.notes: list[str] = []
        self.broken = 0.0
        #: How often a cache answers with an older version of a document or content.
        self.stale = 0.0
        self.compared = 0.0
        self._served: dict[str, list[tuple[Document, datetime | None]]] = {}
        self.packages: dict[str, dict[str, str]] = {}
        self.lied_to = False
        #: Whether content counts only with the hash that was announced.
        self.verifies = verifies
        self.pending: list[Action] = []
        #: The changes in the backlog, in their order.
        self.backlog: list[tuple[Change, datetime]] = []
        self.restart()

    def restart(self) -> None:
        """Restart from what was committed."""
        self.follower = Follower(
            self.offer,
            self.progress,
            pace=self.pace,
            random=self.random,
            compared=self.compared,
            pushed=self._pushed(),
        )
        self.pending = []
        self.backlog = []
        self._backlog_actions: list[BacklogAction] = []
        self.packages.clear()
        self._begin(self.follower.start(self.now))

    def _pushed(self) -> list[Change]:
        """Return what is held and later than what the lists confirmed, as a real state does."""
        if self.progress is None:
            return []
        confirmed = self.progress.confirmed
        return [
            Change(uri, kind, at, Resource(uri, change=kind, hash=self.content.get(uri)))
            for uri, (at, kind) in self.records.items()
            if at > confirmed
        ]

    def push(self, document: Document) -> None:
        read = self.source.as_written(as_read(document))
        self._begin(self.follower.fragment(read, self.now, self.source.today))

    def notify(self, document: Document) -> None:
        read = as_read(document)
        self._begin(self.follower.notified(read, self.now))

    def discover(self) -> None:
        self._begin(self.follower.offered(self.offer, self.now))

    def push_up(self) -> None:
        self._begin(self.follower.push_up(self.now))

    def push_gap(self) -> None:
        self._begin(self.follower.push_gap(self.now))

    def push_down(self) -> None:
        self._begin(self.follower.push_down(self.now))

    def step(self) -> None:
        """Carry out one action, in any order."""
        if self.pending:
            self._do(self.pending.pop(self.random.randrange(len(self.pending))))

    def work(self) -> None:
        """Carry out all actions without moving the clock."""
        while self.pending:
            self.step()

    def settle(self, rounds: int = 20_000) -> None:
        """Carry out everything, moving the clock on, until the Destination is level."""
        for _ in range(rounds):
            self.work()
            if self.follower.level:
                return
            self.tick()
        raise AssertionError(f"never level: {self.notes[-5:]}")

    def poll(self) -> None:
        """Move the clock on until the Source's lists were read once more, and settle."""
        self.read_lists()
        self.settle()

    def read_lists(self) -> None:
        """Move the clock on until the Source's lists were read once more.

        A pull that is under way may have read the latest list already.
        """
        self.work()
        before = len(self.fetches)
        while len(self.fetches) == before:
            self.tick()
            self.work()

    def tick(self, seconds: float | None = None) -> None:
        """Move the clock, by default to the next wake-up."""
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
            elif isinstance(action, ForgetDatetimes):
                self._undate(action)
            elif isinstance(action, LogNote):
                self.notes.append(action.text)
            elif isinstance(action, ClearBacklog):
                while self._backlog_actions:  # these were to be carried out before
                    self._use_backlog(self._backlog_actions.pop(0))
                self.backlog.clear()
            else:
                if isinstance(action, StoreBacklog | TakeBacklog):
                    self._backlog_actions.append(action)
                self.pending.append(action)
        if self.follower.audit_due:
            self._audit()

    def _audit(self) -> None:
        held = SetSum()
        held.add(self.content.items())
        latest = max((at for at, _ in self.records.values()), default=EPOCH)
        self._begin(self.follower.audited(held, latest, self.now))
        assert self.lied_to or self.follower.in_step is not False, self.follower.difference

    def _do(self, action: Action) -> None:
        follower = self.follower
        match action:
            case Fetch(uri=uri):
                self.fetches.append(uri)
                try:
                    self._maybe_fail(uri)
                    given, sent = self._get(uri)
                    document = self.source.as_written(as_read(given))
                except RsnotifyError as error:
                    self._begin(follower.fetch_failed(action, error, self.now))
                else:
                    if action.package is not None:
                        self._keep_package(uri, document)
                    self._begin(follower.fetched(action, document, self.now, sent))
            case Apply(changes=changes):
                for change in changes:
                    self._apply(change)
            case Compare(resources=resources, at=at):
                listed = [(normalize(resource.uri), resource) for resource in resources]
                self.seen.update(uri for uri, _ in listed)
                differing = [
                    (uri, resource)
                    for uri, resource in listed
                    if self.content.get(uri) != resource.hash and not self._later(uri, at)
                ]
                held = [resource for uri, resource in differing if uri in self.content]
                absent = [resource for uri, resource in differing if uri not in self.content]
                self._begin(follower.differing(held, self.now, absent))
            case FindUnlisted(at=at):
                missing = [
                    uri for uri in self.content if uri not in self.seen and not self._later(uri, at)
                ]
                self._begin(follower.unlisted(missing, self.now))
            case StoreBacklog() | TakeBacklog():
                if self._backlog_actions:  # in their order, whichever of them is drawn
                    self._use_backlog(self._backlog_actions.pop(0))
            case Discover():
                self.discover()

    def _use_backlog(self, action: BacklogAction) -> None:
        taken: list[tuple[Change, datetime]] = []
        if isinstance(action, StoreBacklog):
            self.backlog += action.changes
        else:
            ordered = sorted(self.backlog, key=lambda row: row[1])
            uris = action.uris or [*dict.fromkeys(change.uri for change, _ in ordered)]
            named = set(uris if action.uris else uris[: action.most])
            taken = [row for row in self.backlog if row[0].uri in named]
            self.backlog = [row for row in self.backlog if row[0].uri not in named]
        resources = {change.uri for change, _ in self.backlog}
        since = min((since for _, since in self.backlog), default=None)
        extent = BacklogExtent(len(resources), since)
        self._begin(self.follower.backlog_done(action, extent, taken, self.now))

    def _undate(self, action: ForgetDatetimes) -> None:
        if action.entirely:
            self.progress = None
            self.steps_back += 1
        for uri, (at, kind) in self.records.items():
            if at > action.after:
                self.records[uri] = (EARLIEST, kind)

    def _get(self, uri: str) -> tuple[Document, datetime | None]:
        """Return a document, and when it was sent; a cache may answer with an older one."""
        served = self._served.setdefault(uri, [])
        if served and self.random.random() < self.stale:
            return self.random.choice(served)
        document, sent = self.source.document(uri), self.source.sent
        served[:] = [*served[-2:], (document, sent)]
        if self.random.random() < self.broken / 10:
            return replace(document, capability="moonlist"), sent
        return document, sent

    def _keep_package(self, uri: str, manifest: Document) -> None:
        """Keep what is in a package, and in the one before it."""
        members = [entry for entry in manifest.resources if entry.path and entry.hash]
        self.packages.pop(uri, None)
        self.packages[uri] = {entry.path or "": entry.hash or "" for entry in members}
        for old in list(self.packages)[:-2]:
            del self.packages[old]

    def _later(self, uri: str, at: datetime) -> bool:
        record = self.records.get(uri)
        return record is not None and record[0] > at

    def _maybe_fail(self, uri: str) -> None:
        if self.random.random() < self.broken:
            raise self.random.choice(FAILURES)(uri)

    def _apply(self, change: Change) -> None:
        follower = self.follower
        record = self.records.get(change.uri)
        if change.check is CheckMethod.FETCH or (
            record is not None
            and (record[0] >= change.at or is_undecided(change.stated_at, record[0]))
            and self._contradicts(change)
        ):
            self._verify(change)
            return
        if record is not None and record[0] > change.at:
            self._commit(change, None)
            return
        if change.change is ChangeType.DELETED:
            self._store(change.uri, None)
            self._commit(change, change)
            return
        try:
            self._store(change.uri, *self._content(change))
        except RsnotifyError as error:
            self._begin(follower.failed(change, error, self.now))
            return
        self._commit(change, change)

    def _bypasses_caches(self, change: Change) -> bool:
        """Return whether the copy may be later than a change that is compared."""
        if change.check is not CheckMethod.COMPARE or change.resource.change is None:
            return False
        return self.fetched.get(change.uri, EARLIEST) > change.at and self._contradicts(change)

    def _contradicts(self, change: Change) -> bool:
        """Return whether an entry that is compared, or has a coarse date, differs from the copy."""
        if change.check is not CheckMethod.COMPARE and not change.stated_at.fold:
            return False
        held = self.content.get(change.uri)
        return held != (None if change.change is ChangeType.DELETED else change.resource.hash)

    def _verify(self, change: Change) -> None:
        follower = self.follower
        self.verified += 1
        try:
            self._maybe_fail(change.uri)
            current = self.source.served(change.uri)
            if current is None and change.change is not ChangeType.DELETED:
                raise NotFound(change.uri, "404")
            known = (None, change.resource.hash, self.content.get(change.uri))
            if change.resource.hash is not None and current not in known:
                raise ContentMismatch(change.uri, "not what was announced")
        except RsnotifyError as error:
            self._begin(follower.failed(change, error, self.now))
            return
        self._store(change.uri, current, self.source.clock)
        kind = ChangeType.DELETED if current is None else ChangeType.UPDATED
        self._commit(change, replace(change, change=kind))

    def _store(self, uri: str, content: str | None, fetched: datetime = EARLIEST) -> None:
        self.content.pop(uri, None)
        self.fetched.pop(uri, None)
        if content is not None:
            self.content[uri], self.fetched[uri] = content, fetched

    def _content(self, change: Change) -> tuple[str, datetime]:
        """Return the content from the package if it is available, else with a GET.

        Also return when the Source's server sent it, or `EARLIEST` if that is unknown.
        """
        held = self.packages.get(change.package or "", {}).get(change.resource.path or "")
        if held is not None and self.random.random() >= self.broken:
            self.unpacked += 1
            return held, EARLIEST
        announced = change.resource.hash
        if announced is not None and has_inline_content(change):
            return announced, EARLIEST
        self.gets += 1
        self._maybe_fail(change.uri)
        current = self.source.served(change.uri)
        is_cached = self.random.random() < self.stale and not self._bypasses_caches(change)
        if is_cached:
            current = self.random.choice([None, current, *self.source.versions(change.uri)])
        if current is None:
            raise NotFound(change.uri, "404")
        if self.verifies and announced is not None and current != announced:
            raise ContentMismatch(change.uri, "it has changed since")
        return current, EARLIEST if is_cached else self.source.clock

    def _commit(self, change: Change, record: Change | None) -> None:
        if record is not None:
            self.records[change.uri] = (record.at, record.change)
        self._reach(change.uri, self.content.get(change.uri))
        self.compared = self.follower.catch_up.comparisons.compared
        before, foreseen = self.progress, self.follower.progress_after([change])
        actions = self.follower.applied([change], self.now)
        reached = self.follower.progress
        # Some programs keep the one, in the transaction of the change, some the other.
        self.progress = self.random.choice((foreseen, reached))
        self._begin(actions)
        if self.progress is None:
            return
        assert before is None or self.progress.through >= before.through, "T went back"
        assert reached is not None
        assert foreseen is None or foreseen.through <= reached.through, "T was not to be there yet"
        self._prune(self.progress.deletions_since)
        if not self.lied_to:
            self.check_t()

    def _reach(self, uri: str, version: str | None) -> None:
        """Record the time of a version that was stored."""
        times = [
            one.at for one in self.source.history if one.uri == uri and one.resource.hash == version
        ]
        self.reached[uri] = max([self.reached.get(uri, EARLIEST), *times])

    def _prune(self, since: datetime) -> None:
        """Forget deletions that no document can contradict any more, as a real state does."""
        for uri, (at, kind) in list(self.records.items()):
            if kind is ChangeType.DELETED and at < since:
                del self.records[uri]

    def check_t(self) -> None:
        """I4: T never passes a change that is not applied, unless it is stored as missing.

        An older entry of a reread list may undo it if the later lists cannot be read. The copy is
        not level then.
        """
        assert self.progress is not None
        missing = {one.uri for one in self.progress.missing}
        last: dict[str, Change] = {}
        # Where datetimes are not unique, more may come of the very instant T.
        unique = self.source.granularity == MICROSECOND
        for change in self.source.history:
            at = change.at
            if at < self.progress.through or (unique and at == self.progress.through):
                last[change.uri] = change
        for uri, change in last.items():
            # The content may be later: a GET returns the current state.
            since = [later for later in self.source.history if later.uri == uri]
            versions = {later.resource.hash for later in since if later.at >= change.at}
            record = self.records.get(uri)
            applied = record is not None and record[0] >= change.at
            if uri in missing:
                self.reached[uri] = max(self.reached.get(uri, EARLIEST), change.at)
            elif not applied and self.content.get(uri) not in versions:
                text = f"T={self.progress.through} passed {change}"
                assert self.reached.get(uri, EARLIEST) >= change.at, text
                assert not self.follower.level, text
