"""The follower: how a Destination stays in step with one set of resources.

Theory of operation
-------------------

The follower is told events and returns actions; the program around it does the I/O. Times
called `now` are seconds of any clock that does not jump; instants are the Source's.

How far a Destination is stands in its `SyncFrontiers`: T, `known` and `confirmed`. A fragment
whose interval reaches `known` moves it. One that begins later shows a gap: it is held
(bounded) for a moment, as it may only be out of order, and then the gap is pulled (`CatchUp`).
What push said is believed at once but not for ever: each pull starts from `confirmed`, so a
change that a hub withheld is found at the next poll. Applying a change twice does nothing.

    push                                         pull (from `confirmed`)

    fragment --reaches known--> apply            poll due, gap, push lost
       |                          ^                 |
       begins later               |                 v
       v                          |              Change List (or Index) --reaches--> apply
     held --grace over--> pull    |                 | begins later
       |                          |                 v
       +------ known moved -------+              Change List Archive   each --reaches--> its
                                                 Change Dump           lists or packages, then
                                                 Change Dump Archive   again the Change List
                                                    | each begins later, or none
                                                    v
                                                 Resource List or Dump: compare, sweep what is
                                                 not listed, known = its `at`; then again the
                                                 Change List

Each arrow down costs more than the one before, and may lead to an index, whose members are
then read. Who holds nothing yet begins at the bottom, with the Resource Dump, as a download
costs less than a GET for each resource; who holds something compares the Resource List. Where
one of these two does not do, the other is read, and at last an archived one. A Source need not
offer all of this: the first that there is takes the place of the Change List.

A document that cannot be had or read ends the pull, which is tried again with backoff; what
was taken before stays. What tells of the past is given up at once, and the next way taken;
what tells of the present, after some tries; and if the Change List itself stays broken, the
others are read in its place, and now and then everything is compared. Every way ends at the
whole set of resources, which is always right, and costs most.

Packages are asked for one at a time, the next when little of the last is still to be applied;
a change of a package says so, and content that is not to be had from it is fetched.

What is known but not applied is in the `PendingChanges`. T is just before the earliest change
owed, so it passes none; when nothing is owed, T is `known`, or where a hole begins that no
document covers. A change of a time that T has passed, as a hub withheld it, or as the lists tell
it once more, holds up `confirmed` in its place, so that the next run is told of it again.

The `Schedule` says when: soon after news, then less and less often, hardly at all while push
works, and never before the Source said to come back. What the Source tells of its documents
(`DocumentNotices`) is a reason to look sooner, and no more. What many hear at once they do not ask for
at once: it waits for a moment by chance (`Pace.spread`).

A fragment may say what the whole set is. Whenever what is held is the set of that very instant
(`audit_due`), the program hands in what it holds, and the `ContinuousAudit` compares: what differs is
looked for in the lists, and if they do not tell it, everything is compared.

The program owes an answer to each `Fetch`, `Apply`, `Compare` and `Sweep`, in any order, and
may stop at any point: begun again from the last `progress` it kept, all ends the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from random import Random

from msgspec.structs import replace

from rsnotify.errors import DocumentError, NotFound, RsnotifyError
from rsnotify.format.coverage import EARLIEST, Change, CheckMethod, fragment_coverage
from rsnotify.format.datetimes import Instant
from rsnotify.format.digest import SetSum
from rsnotify.format.model import Document, Resource
from rsnotify.format.offer import Offer
from rsnotify.format.vocabulary import ChangeType
from rsnotify.selection.representations import has_inline_content
from rsnotify.sync.actions import Action, Apply, Discover, Fetch, ForgetDatetimes, LogNote, Progress
from rsnotify.sync.catch_up import CatchUp
from rsnotify.sync.continuous_audit import ContinuousAudit, Remedy
from rsnotify.sync.document_notices import DocumentNotices, DocumentsToRead
from rsnotify.sync.doubts import Doubts
from rsnotify.sync.fallback_order import RESOURCES
from rsnotify.sync.frontiers import SyncFrontiers
from rsnotify.sync.pace import Pace
from rsnotify.sync.pending_changes import PendingChanges
from rsnotify.sync.schedule import Schedule
from rsnotify.sync.unconfirmed import UnconfirmedChanges

#: How many resources that are listed and not there are kept with the progress.
_MISSING = 1_000


class Follower:
    """Follows one set of resources. Call `start` first, then one method for each event.

    Every event returns the actions to take, to be begun in this order; `wakeup` says when
    `tick` is due. What was applied is to be kept in one transaction with the `progress` after
    `applied`; or with `progress_after`, if `applied` is told only once that is durable.

    Args:
        offer: What the Source offers.
        progress: Where an earlier run stopped; None to begin with a baseline.
        pace: How fast, and how much at once.
        random: The source of jitter.
        compared: When the copy was last compared with the whole set, by the clock of `now`.
        pushed: What an earlier run applied and is later than `progress.confirmed`.
        incomparable: Why what is held cannot be compared with what the Source says of its whole
            set, in a sentence; empty if it can.
    """

    def __init__(
        self,
        offer: Offer,
        progress: Progress | None = None,
        *,
        pace: Pace | None = None,
        random: Random | None = None,
        compared: float = 0.0,
        pushed: Iterable[Change] = (),
        incomparable: str = "",
    ) -> None:
        self._pace = pace = pace or Pace()
        self._random = random = random or Random()
        self._actions: list[Action] = []
        self._knowledge = SyncFrontiers(progress, pace.hold)
        self._worklist = PendingChanges(pace.retry, random)
        self._schedule = Schedule(pace, random)
        self._provisional = UnconfirmedChanges(grace=pace.poll, patience=pace.stale)
        self._provisional.add(pushed, -inf)
        self._climb = CatchUp(
            offer,
            self._knowledge,
            self._worklist,
            self._provisional,
            self._actions,
            self._schedule,
            pace,
            compared,
        )
        self._doubts = Doubts(self._climb, self._knowledge, self._worklist, self._provisional)
        self._audit = ContinuousAudit(pace, self._note, incomparable)
        self._notices = DocumentNotices(self._knowledge)
        self._gap_due: float | None = None
        self._listeners = 0
        self._missing = progress.missing if progress is not None else ()
        self._is_watching = bool(self._missing)
        #: By URI, changes of resources that are not there, and the deletions applied for them.
        self._gone: dict[str, tuple[Change, Change]] = {}

    # What there is to see

    @property
    def progress(self) -> Progress | None:
        """What is to be kept; None until a first baseline is complete."""
        return self._with_missing(self._knowledge.progress(self._worklist.low_water()))

    def progress_after(self, changes: Iterable[Change]) -> Progress | None:
        """What is to be kept together with changes of an `Apply`, before `applied` is told."""
        changes = list(changes)
        low_water = self._worklist.low_water_after(changes)
        removed = [change.uri for change in changes if self._is_removal(change)]
        return self._with_missing(self._knowledge.progress_after(low_water), removed)

    def _is_removal(self, change: Change) -> bool:
        """Return whether a deletion is applied because its resource is listed and not there."""
        return change.uri in self._gone and change is self._gone[change.uri][1]

    def _with_missing(
        self, progress: Progress | None, removed: Sequence[str] = ()
    ) -> Progress | None:
        missing = [*(self._worklist.watched if self._is_watching else ()), *removed]
        if progress is None or not missing:
            return progress
        return replace(progress, missing=tuple(missing[:_MISSING]))

    @property
    def since(self) -> Instant | None:
        """Where push has to join: every change up to here is known."""
        return self._knowledge.known

    @property
    def level(self) -> bool:
        """Whether nothing is known to be missing, and the Source's lists have said so.

        It stays what it was while the lists are read as a matter of routine, until they tell
        something new.
        """
        return not self._doubts

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why the copy may not be what the Source's documents say; empty while `level`."""
        return tuple(self._doubts)

    @property
    def compared(self) -> float:
        """When the copy was last compared with the whole set, by the clock of `now`."""
        return self._climb.compared

    @property
    def unconfirmed(self) -> int:
        """How many resources were changed by what push announced and no list has repeated yet."""
        return len(self._provisional)

    @property
    def in_step(self) -> bool | None:
        """Whether what was held when it was last compared was what the Source said of its set."""
        return self._audit.in_step

    @property
    def difference(self) -> str:
        """What differed then, or why it cannot be compared; empty if there is nothing to tell."""
        return self._audit.reason

    @property
    def audit_due(self) -> bool:
        """Whether what is held is now what the Source spoke of, so that `audited` is to be told."""
        if not self._audit.speaks_of(self._knowledge.known) or self._climb.busy:
            return False
        return self.level

    @property
    def gap(self) -> bool:
        """Whether something was pushed that does not join what is known."""
        return self._knowledge.gap

    @property
    def stuck(self) -> bool:
        """Whether only what has failed several times keeps this from being level."""
        failing = self._worklist.failing(self._pace.give_up)
        if self._climb.busy or not self._climb.settled or len(failing) < len(self._worklist):
            return False
        return bool(failing) or self._knowledge.hole is not None

    @property
    def failures(self) -> int:
        """How often in a row the Source's lists could not be followed."""
        return self._climb.failures

    @property
    def error(self) -> RsnotifyError | None:
        """Why the Source's lists could not be followed the last time, if they could not."""
        return self._climb.error

    @property
    def baselining(self) -> bool:
        """Whether a baseline is under way."""
        return self._climb.baselining

    @property
    def owed(self) -> int:
        """How many resources have changes that are known and not yet applied."""
        return len(self._worklist)

    @property
    def waiting(self) -> bool:
        """Whether T waits for nothing but a change that is put off on purpose (`Pace.spread`)."""
        return self._worklist.waits

    def failing(self) -> list[Change]:
        """Return the changes that could not be applied so far, and are tried again."""
        return self._worklist.failing()

    @property
    def wakeup(self) -> float | None:
        """When `tick` is due, if nothing happens before."""
        climb = None if self._climb.busy else self._schedule.due
        due = (self._gap_due, self._worklist.wakeup(), climb, self._schedule.offer_due)
        return min((time for time in due if time is not None), default=None)

    # Events: time and the Source's offer

    def start(self, now: float) -> list[Action]:
        """Begin: with a baseline if there is no progress, else with a pull."""
        for uri in self._missing:
            change = Change(
                uri, ChangeType.UPDATED, EARLIEST, Resource(uri), check=CheckMethod.FETCH
            )
            self._worklist.watch(change, now)
        self._climb.begin(now)
        return self._take(now)

    def tick(self, now: float) -> list[Action]:
        """Do what has become due."""
        if self._gap_due is not None and self._gap_due <= now:
            self._gap_due = None
            self._schedule.soon(now)
        due = self._schedule.due
        if due is not None and due <= now and not self._climb.busy:
            self._gap_due = None
            self._climb.begin(now)
        if self._schedule.is_offer_due(now):
            self._actions.append(Discover())
        return self._take(now)

    def offered(self, offer: Offer, now: float) -> list[Action]:
        """Take what the Source offers now; it counts from the next pull on."""
        self._climb.offered(offer, now)
        return self._take(now)

    # Events: push

    def fragment(
        self, document: Document, now: float, today: Instant | None = None
    ) -> list[Action]:
        """Take a fragment that was pushed.

        Args:
            document: The fragment.
            now: The time.
            today: What a clock here shows, which may be wrong; None if there is none.
        """
        try:
            coverage = fragment_coverage(document)
        except DocumentError as error:
            return self.fragment_unreadable(error, now)
        joined = self._knowledge.push(coverage, today)
        self._provisional.add(joined, now)
        until = None if coverage.from_ is None else coverage.until
        self._audit.hear(document, until, self._knowledge.known)
        # One time for all: they are of one host, and its connections can be used again.
        later = now + self._chance()
        for change in joined:
            self._worklist.add(
                change, due=None if later == now or has_inline_content(change) else later
            )
        if coverage.from_ is None:
            self._schedule.soon(later + self._pace.gap_grace)
        elif not self._knowledge.gap:
            self._gap_due = None
        elif self._gap_due is None and not self._climb.busy:
            self._gap_due = later + self._pace.gap_grace
        return self._take(now)

    def audience(self, listeners: int) -> None:
        """Hear how many hear the fragments that arrive here."""
        self._listeners = listeners

    def _chance(self) -> float:
        """Return how long to wait before asking for what everybody has just heard of."""
        return self._random.uniform(0.0, self._pace.spread_among(self._listeners))

    def fragment_unreadable(self, error: RsnotifyError, now: float) -> list[Action]:
        """Hear that something was pushed which is no fragment."""
        self._note(f"a fragment was refused, so the Change List is read: {error}", warning=True)
        self._schedule.soon(now + self._chance() + self._pace.gap_grace)
        return self._take(now)

    def push_up(self, now: float) -> list[Action]:
        """Hear that fragments arrive from `since` on."""
        self._schedule.relaxed = True
        return self._take(now)

    def push_gap(self, now: float) -> list[Action]:
        """Hear that the hub cannot replay from `since` on."""
        self._note("the hub's log does not reach back far enough, so the Change List is read")
        self._schedule.soon(now)
        return self.tick(now)

    def push_down(self, now: float) -> list[Action]:
        """Hear that no fragments arrive any more."""
        self._schedule.push_lost(now)
        return self._take(now)

    # Events: what is told of documents

    @property
    def told_through(self) -> Instant | None:
        """Through here it was heard which documents are new; None before the first notice."""
        return self._notices.through

    def told(self, document: Document, now: float) -> list[Action]:
        """Take a Framework Notification: it is looked soon at what may help."""
        failing = self._climb.failures > 0
        try:
            look = self._notices.hear(document, self._climb.offer, failing=failing)
        except DocumentError as error:
            self._note(f"what was told of documents is passed over: {error}")
            look = DocumentsToRead()
        self._schedule.told(look, now, self._listeners)
        return self._take(now)

    # Events: documents

    def fetched(
        self, fetch: Fetch, document: Document, now: float, sent: Instant | None = None
    ) -> list[Action]:
        """Take a document that was asked for, read to its end.

        Args:
            fetch: What asked for it.
            document: The document.
            now: The time.
            sent: When it was sent, by the clock of the Source; None if that is not told.
        """
        try:
            self._climb.fetched(fetch, document, now, sent)
            if fetch.rung in RESOURCES:
                self._audit.listed(document)
        except DocumentError as error:
            return self.fetch_failed(fetch, error.at(fetch.uri), now)
        return self._take(now)

    def fetch_failed(self, fetch: Fetch, error: RsnotifyError, now: float) -> list[Action]:
        """Hear that a document could not be had or read; nothing of it was used."""
        self._climb.failed(fetch, error, now)
        return self._take(now)

    def differing(self, resources: Iterable[Resource], now: float) -> list[Action]:
        """Hear which resources of the last `Compare` are not held as they are listed."""
        resources = list(resources)
        self._audit.found(len(resources))
        self._climb.differing(resources, now)
        return self._take(now)

    def missing(self, uris: Iterable[str], now: float) -> list[Action]:
        """Hear which resources of the last `Sweep` are held but not listed."""
        uris = list(uris)
        self._audit.found(len(uris))
        self._climb.missing(uris, now)
        return self._take(now)

    # Events: what was applied

    def audited(self, held: SetSum, latest: Instant, now: float) -> list[Action]:
        """Hear what is held while `audit_due`; all that was applied must be committed.

        Args:
            held: The sum over it.
            latest: The datetime of the latest change that it has.
            now: The time.
        """
        listed = self._climb.can_compare
        remedy = self._audit.compare(held, latest, now, listed=listed)
        if self._audit.in_step:
            self._climb.compared = now
        if remedy is not Remedy.NOTHING:
            # What a hub withheld all lack who hear it, and all are told so at once.
            when = now + self._chance()
            self._climb.check(now, when, everything=remedy is Remedy.COMPARE)
        return self._take(now)

    def applied(self, changes: Iterable[Change], now: float) -> list[Action]:
        """Hear that changes of an `Apply` are in the state, or about to be committed to it."""
        for change in changes:
            is_latest = self._worklist.applied(change)
            if self._is_removal(change):
                listed, _ = self._gone.pop(change.uri)
                if not is_latest:  # what is known of it by now says what it is
                    continue
                self._is_watching = True
                self._worklist.watch(
                    replace(listed, check=CheckMethod.FETCH), now + self._pace.gone_after
                )
        return self._take(now)

    def failed(self, change: Change, error: RsnotifyError, now: float) -> list[Action]:
        """Hear that a change of an `Apply` could not be applied; it is tried again."""
        is_watched = self._worklist.is_watched(change.uri)
        missing = isinstance(error, NotFound)
        wish = max(error.retry_after or 0.0, self._pace.gone_after if is_watched else 0.0)
        attempts = self._worklist.failed(change, now, wish, missing=missing)
        if not attempts or is_watched:
            return self._take(now)
        if self._is_gone(change, error, attempts, now):
            self._note(
                f"{change.uri} is listed, but not there: it is removed from the copy, and fetched "
                "again from time to time",
                warning=True,
            )
            gone = replace(change, change=ChangeType.DELETED, package=None)
            self._gone[change.uri] = (change, gone)
            self._worklist.add(gone)
            self._climb.question()
        else:
            self._note(f"could not apply, try {attempts}: {error}", warning=attempts == 3)
            # It may have changed or gone since: then the lists say so.
            self._schedule.soon(now + self._pace.retry.delay(attempts, self._random))
        return self._take(now)

    def _is_gone(self, change: Change, error: RsnotifyError, attempts: int, now: float) -> bool:
        listed = change.resource.change is None
        if listed and self._audit.repairing and attempts >= self._pace.give_up:
            # What was missing when all was compared for a difference, and is not to be had, is no
            # reason to hold up T for long: if it was a mistake, that shows again.
            return isinstance(error, NotFound)
        since = self._worklist.missing_since(change)
        return since is not None and now - since >= self._pace.gone_after

    # Actions

    def _note(self, text: str, *, warning: bool = False) -> None:
        self._actions.append(LogNote(text, warning))

    def _take(self, now: float) -> list[Action]:
        self._climb.go_on()
        changes = self._worklist.take(self._pace.in_flight, now)
        if changes:
            self._actions.append(Apply(tuple(changes)))
        actions = self._actions.copy()
        if any(isinstance(action, ForgetDatetimes) and action.entirely for action in actions):
            self._audit.forget()
        self._actions.clear()
        return actions
