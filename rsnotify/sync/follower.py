"""The follower: the state machine that keeps a Destination in sync with one set of resources.

It receives events and returns actions; its caller does the I/O. `now` is the time of a monotonic
clock, in seconds. Instants are times of the Source's clock.

Theory of operation
-------------------

Every document of changes, and every fragment, covers an interval `(from, until]`. The Destination
is synced through T. The three processes of core §5.2 are states of the follower:

    baseline synchronization      no T yet, or no document covers the changes since T
    incremental synchronization   T is known; changes are pushed, and pulled from documents
    audit                         the copy is at the instant of a digest that the Source published

    push                                         pull (from `confirmed`)

    fragment ──reaches known──> apply            poll due, gap, push lost
       │                          ^                 │
       begins later               │                 v
       v                          │              Change List (or Index) ──reaches──> apply
     held ──grace over──> pull    │                 │ begins later
       │                          │                 v
       └──── known advances ──────┘              Change List Archive   each ──reaches──> its
                                                 Change Dump           lists or packages, then
                                                 Change Dump Archive   the Change List again
                                                    │ all begin later, or none is offered
                                                    v
                                                 Resource List or Dump: compare, delete what is
                                                 not listed, known = its `at`; then the Change
                                                 List again

Each step down costs more than the previous one. If a document is an index, its members are read. A
Source may offer only some of these documents; the first one offered then replaces the Change List.
The last fallback is the whole set, which costs most but always works.

The state is distributed over these modules, each of which documents its own transitions:

    `frontiers`             T <= known, confirmed <= known; fragments beyond a gap
    `pending_changes`       known changes that are not applied: parked, in flight, retried, watched
    `backlog`               changes that wait in the state's database until all lists are read
    `unconfirmed_changes`   pushed changes that no list has confirmed
    `catch_up`              idle, pull or baseline; the reaction to each failure
    `poll_schedule`         when to read documents next
    `doubts`                why the copy may be wrong; `level` while there is no doubt; the audit

Pushed changes are applied at once, but not trusted: each pull starts from `confirmed`, so the next
poll finds changes that a hub withheld. Documents may list changes dated before T, because a hub
withheld them or because they are duplicates. While these are pending, `confirmed` waits instead of
T, and the next run reads them again. Applying a change twice has no effect.

A failed change is retried. After some attempts, T passes a resource that is not available
(`ApplyResults`). The resource is stored with the progress and retried, less and less frequently.
Until it is available, the follower is not `level`.

The caller must answer each `Fetch`, `Apply`, `Compare` and `FindUnlisted`, in any order, and each
`StoreBacklog` and `TakeBacklog` in order. It may stop at any point. A new run that starts from the
last stored `progress` leads to the same copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

from msgspec.structs import replace

from rsnotify.errors import DocumentError, NotFound, RsnotifyError, StorageError, Unavailable
from rsnotify.format.coverage import EARLIEST, Change, CheckMethod, fragment_coverage
from rsnotify.format.datetimes import LATEST, Instant
from rsnotify.format.hashes import SetSum
from rsnotify.format.model import ChangeType, Document, Resource
from rsnotify.format.offer import Offer
from rsnotify.format.uris import normalize
from rsnotify.selection import has_inline_content
from rsnotify.sync.actions import (
    Action,
    Apply,
    BacklogAction,
    BacklogExtent,
    Discover,
    Fetch,
    ForgetDatetimes,
)
from rsnotify.sync.baseline import BaselineRun
from rsnotify.sync.catch_up import CatchUp
from rsnotify.sync.doubts import ContinuousAudit, DoubtKind, Remedy, has_doubts, list_doubts
from rsnotify.sync.pace import Pace
from rsnotify.sync.pending_changes import UNWAITED
from rsnotify.sync.poll_schedule import DocumentNotices, DocumentsToRead
from rsnotify.sync.progress import ComparedList, MissingResource, Progress
from rsnotify.sync.pull import RESOURCE_KINDS
from rsnotify.sync.reduction import announced_at
from rsnotify.sync.retry import LONGEST_RETRY_AFTER
from rsnotify.sync.sync_state import SyncState

#: Minimum time between two warnings with the same reason, in seconds.
_WARNING_INTERVAL = 60.0
#: Number of resources to take from the backlog at once, per resource that may be in flight.
_TAKEN_PER_SLOT = 2
#: Maximum number of unavailable resources to store with the progress. T waits for any others.
_MAX_MISSING = 10_000


class Follower:
    """Follows one set of resources. Call `start` first, then one method per event.

    Every event method returns the actions to start, in order. `wakeup` is the time at which `tick`
    is due. Store applied changes in one transaction with the `progress` after `applied`, or with
    `progress_after` if you call `applied` only after the commit.

    Args:
        offer: The Source's offer.
        progress: The progress that an earlier run stored; None to begin with a baseline.
        pace: The settings for speed and concurrency.
        random: The source of jitter.
        compared: The time of the last comparison with the whole set, by the clock of `now`.
        pushed: The changes later than `progress.confirmed` that an earlier run applied.
        last_list: The last list of all resources that was compared, if there is no progress.
        incomparable: Why the copy cannot be audited with the Source's digests, as a sentence; empty
            if it can.

    Attributes:
        state: The state that the parts share: pending changes, frontiers and so on.
        catch_up: The part that reads the Source's lists.
        failures: The consecutive failures to read the lists, and the last error.
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
        last_list: ComparedList | None = None,
        incomparable: str = "",
    ) -> None:
        pace = pace or Pace()
        self.state = SyncState(progress, pace, random or Random(), pushed, last_list)
        self.catch_up = CatchUp(offer, self.state, compared)
        self.failures = self.catch_up.failures
        self._audit = ContinuousAudit(pace, self.state.actions, incomparable)
        #: Number of subscribers that receive the same fragments; 0 if unknown.
        self._listeners = 0
        #: When to pull a gap; None without a gap.
        self._gap_due: float | None = None
        missing = progress.missing if progress is not None else ()
        self._results = ApplyResults(self.state, self.catch_up, self._audit, missing)
        self._notices = DocumentNotices(self.state.frontiers)

    def _next_actions(self, now: float) -> list[Action]:
        if self.catch_up.run is not None:
            self.catch_up.proceed()
        if self.catch_up.run is None and not self.catch_up.is_incomplete:
            # Even if a run failed, the new changes that it has read are applied.
            self.state.pending.release()
        self.state.pending.use_backlog(_TAKEN_PER_SLOT * self.state.pace.in_flight)
        changes = self.state.pending.dispatch(self.state.pace.in_flight, now)
        if changes:
            self.state.actions.append(Apply(tuple(changes)))
        actions = list(self.state.actions)
        self.state.actions.clear()
        if any(isinstance(action, ForgetDatetimes) and action.entirely for action in actions):
            self._audit.reset()
        return actions

    # Time and the Source's offer

    def start(self, now: float) -> list[Action]:
        """Begin with a pull, or with a baseline if there is no progress yet."""
        self.catch_up.news_at = now
        self._results.start()
        self.catch_up.begin(now)
        return self._next_actions(now)

    def tick(self, now: float) -> list[Action]:
        """Do everything that is due."""
        schedule = self.state.schedule
        if self._gap_due is not None and self._gap_due <= now:
            self._gap_due = None
            schedule.catch_up_by(now)
        if schedule.due is not None and schedule.due <= now and self.catch_up.run is None:
            self._gap_due = None
            self.catch_up.begin(now)
        if schedule.is_offer_due(now):
            self.state.actions.append(Discover())
        return self._next_actions(now)

    def offered(self, offer: Offer, now: float) -> list[Action]:
        """Use the Source's current offer, beginning with the next pull."""
        self.catch_up.set_offer(offer, now)
        return self._next_actions(now)

    # Push

    def fragment(
        self, document: Document, now: float, today: Instant | None = None
    ) -> list[Action]:
        """Add the changes of a pushed fragment.

        `today` is the Destination's wall-clock time, if known. It may be wrong.
        """
        try:
            coverage = fragment_coverage(document)
        except DocumentError as error:
            return self.fragment_unreadable(error, now)
        state = self.state
        joined = state.frontiers.push(coverage, today)
        state.unconfirmed.add(joined, now)
        until = None if coverage.from_ is None else coverage.until
        if document.attributes or until is None:  # a digest, or the end of the last one
            self._audit.read_fragment(document, until, state.frontiers.known)
        is_early = state.frontiers.has_push_gap
        later = now
        if coverage.from_ is None or is_early or not all(map(has_inline_content, joined)):
            # One delay for all changes: they are on one host, so connections can be reused.
            later += self._spread()
        for change in joined:
            due = None if later == now or has_inline_content(change) else later
            state.pending.announce(change, at_once=True, due=due)
        if coverage.from_ is None:
            state.schedule.catch_up_by(later + state.pace.gap_grace)
        elif not is_early:
            self._gap_due = None
        elif self._gap_due is None and self.catch_up.run is None:
            self._gap_due = later + state.pace.gap_grace
        return self._next_actions(now)

    def fragment_unreadable(self, error: RsnotifyError, now: float) -> list[Action]:
        """Schedule a read of the Change List, because a pushed fragment is unreadable."""
        state = self.state
        text = f"ignored an invalid fragment; reading the Change List instead: {error}"
        state.actions.note(text, warning=True)
        state.schedule.catch_up_by(now + self._spread() + state.pace.gap_grace)
        return self._next_actions(now)

    def audience(self, listeners: int) -> None:
        """Set the number of subscribers that receive the same fragments."""
        self._listeners = listeners

    def _spread(self) -> float:
        """Return a random delay before a request that all subscribers send at the same time."""
        state = self.state
        return state.random.uniform(0.0, state.pace.spread_among(self._listeners))

    def push_up(self, now: float) -> list[Action]:
        """Poll less often, because push delivers all changes since `known`."""
        self.state.schedule.push_works = True
        return self._next_actions(now)

    def push_gap(self, now: float) -> list[Action]:
        """Read the Change List, because the hub cannot replay all changes since `known`."""
        self.state.actions.note(
            "the hub's log does not reach back far enough; reading the Change List"
        )
        self.state.schedule.catch_up_by(now)
        return self.tick(now)

    def push_down(self, now: float) -> list[Action]:
        """Poll more often, because push is down."""
        self.state.schedule.push_lost(now)
        return self._next_actions(now)

    # Framework Notifications

    @property
    def notified_through(self) -> Instant | None:
        """The instant up to which Framework Notifications were received; None before the first."""
        return self._notices.through

    def notified(self, document: Document, now: float) -> list[Action]:
        """Schedule a read of the documents announced by a Framework Notification, if useful."""
        failing = self.failures.count > 0
        try:
            to_read = self._notices.read(document, self.catch_up.offer, failing=failing)
        except DocumentError as error:
            self.state.actions.note(f"ignored an invalid Framework Notification: {error}")
            to_read = DocumentsToRead()
        self.state.schedule.documents_changed(to_read, now, self._listeners)
        return self._next_actions(now)

    # Resources that the copy has lost

    def verify(self, changes: Iterable[Change], now: float) -> list[Action]:
        """Fetch resources again instead of applying their pending changes.

        T does not wait for them, because the caller stores which resources the copy has lost. While
        there is a backlog, this has no effect, since a comparison may have announced the resources
        in it; call it again later.
        """
        pending = self.state.pending
        for change in changes:
            if not (pending.backlog or pending.is_watched(change.uri)):
                pending.announce(change, since=UNWAITED)
        return self._next_actions(now)

    def compare_lost(self, now: float) -> list[Action]:
        """Compare all resources with the lists, because `verify` found no matching content."""
        self.catch_up.compare_lost(now)
        return self._next_actions(now)

    def resumed(self, now: float) -> list[Action]:
        """Read the lists again after a time in which no change could be applied.

        They may have been read before that time.
        """
        self.state.settled = False
        self.state.schedule.catch_up_by(now)
        return self._next_actions(now)

    # Answers to `Fetch`, `Compare` and `FindUnlisted`

    def fetched(
        self, fetch: Fetch, document: Document, now: float, sent: Instant | None = None
    ) -> list[Action]:
        """Process a requested document. `sent` is its `Date`, if known."""
        try:
            self.catch_up.fetched(fetch, document, now, sent)
            if fetch.kind in RESOURCE_KINDS:
                self._audit.read_list(document)
        except DocumentError as error:
            return self.fetch_failed(fetch, error.at(fetch.uri), now)
        return self._next_actions(now)

    def fetch_failed(self, fetch: Fetch, error: RsnotifyError, now: float) -> list[Action]:
        """Retry later or read other documents, because one is unavailable or unreadable."""
        self.catch_up.failed(fetch, error, now)
        return self._next_actions(now)

    def differing(
        self,
        resources: Iterable[Resource],
        now: float,
        absent: Iterable[Resource] = (),
        unproven: Iterable[Resource] = (),
        checkable: Iterable[Resource] = (),
        undecided: Iterable[Resource] = (),
    ) -> list[Action]:
        """Add the resources of the last `Compare` that the copy stores differently or lacks.

        The entries of `unproven` and `checkable` resources do not show whether they have changed,
        so these are requested from time to time. For `checkable` ones, a conditional request is
        enough. `undecided` ones are stored differently, but changed in the second of the list.
        """
        resources, absent, undecided = list(resources), list(absent), list(undecided)
        self._audit.differences += len(resources) + len(absent) + len(undecided)
        self.catch_up.add_differing(
            resources, absent, now, list(unproven), list(checkable), undecided
        )
        return self._next_actions(now)

    def unlisted(
        self, uris: Iterable[str], now: float, undecided: Iterable[str] = ()
    ) -> list[Action]:
        """Delete the resources that the last `FindUnlisted` has found.

        `undecided` ones changed in the second of the list, either before or after.
        """
        uris, undecided = list(uris), list(undecided)
        self._audit.differences += len(uris) + len(undecided)
        self.catch_up.add_unlisted(uris, undecided, now)
        return self._next_actions(now)

    # Answers to `StoreBacklog` and `TakeBacklog`

    def backlog_done(
        self,
        action: BacklogAction,
        extent: BacklogExtent,
        changes: Iterable[tuple[Change, Instant]],
        now: float,
    ) -> list[Action]:
        """Use the changes removed by an action. `extent` describes the remaining backlog."""
        self.state.pending.taken(action, extent, changes)
        return self._next_actions(now)

    # Answers to `Apply` and `audit_due`

    def applied(self, changes: Iterable[Change], now: float) -> list[Action]:
        """Record that changes of an `Apply` are committed, or will be with the next progress."""
        self._results.applied(changes, now)
        return self._next_actions(now)

    def failed(self, change: Change, error: RsnotifyError, now: float) -> list[Action]:
        """Schedule a retry of a change of an `Apply` that failed."""
        self._results.failed(change, error, now)
        return self._next_actions(now)

    def audited(self, held: SetSum, latest: Instant, now: float) -> list[Action]:
        """Compare the copy with the Source's digest. Call this while `audit_due`.

        `held` is the sum over the copy; all applied changes must be committed. `latest` is the
        datetime of the copy's latest change.
        """
        can_list = self.catch_up.can_compare
        remedy = self._audit.compare(held, latest, now, can_list=can_list)
        if self._audit.in_step:
            self.catch_up.comparisons.compared = now
        if remedy is not Remedy.NOTHING:
            # A change that a hub withheld is missing in the copies of all its subscribers.
            when = now + self._spread()
            self.catch_up.check(now, when, everything=remedy is Remedy.COMPARE)
        return self._next_actions(now)

    # Progress and timing

    @property
    def progress(self) -> Progress | None:
        """The progress to store; None before the first baseline is complete."""
        return self._results.progress()

    def progress_after(self, changes: Iterable[Change]) -> Progress | None:
        """Return the progress to store with changes of an `Apply`, before calling `applied`."""
        return self._results.progress_after(list(changes))

    @property
    def wakeup(self) -> float | None:
        """The time at which `tick` is due, unless another event occurs first."""
        catch_up = None if self.catch_up.run is not None else self.state.schedule.due
        offer, pending = self.state.schedule.offer_due, self.state.pending.wakeup()
        due = (self._gap_due, pending, catch_up, offer)
        return min((time for time in due if time is not None), default=None)

    @property
    def audit_due(self) -> bool:
        """Whether to call `audited`, because the copy is at the instant of a digest."""
        audit, is_idle = self._audit, self.catch_up.run is None
        return is_idle and audit.statement is not None and self.level and audit.is_due(self.known)

    # The state of the copy

    @property
    def known(self) -> Instant | None:
        """The instant up to which all changes are known, and from which push must continue."""
        return self.state.frontiers.known

    @property
    def level(self) -> bool:
        """Whether the copy has everything that the Source's lists announce.

        Routine polls do not change the value until they find something new.
        """
        return not has_doubts(self.state, self.catch_up)

    @property
    def doubts(self) -> tuple[str, ...]:
        """The reasons why the copy may differ from the Source's documents; empty while `level`."""
        return tuple(self.doubts_by_kind.values())

    @property
    def doubts_by_kind(self) -> dict[DoubtKind, str]:
        """The doubts, at most one of each kind."""
        return dict(list_doubts(self.state, self.catch_up))

    @property
    def pending(self) -> int:
        """The number of resources with known changes that are not applied yet."""
        return len(self.state.pending)

    # Comparisons with the whole set

    @property
    def baselining(self) -> bool:
        return isinstance(self.catch_up.run, BaselineRun)

    @property
    def share_listed(self) -> float | None:
        """The share of the documents that the current baseline has read, if known."""
        run = self.catch_up.run
        return run.baseline.share_read if isinstance(run, BaselineRun) else None

    @property
    def in_step(self) -> bool | None:
        """Whether the copy matched the Source's digest when last compared; None if unknown."""
        return self._audit.in_step

    @property
    def difference(self) -> str:
        """The last difference found, or why no comparison is possible; empty if there was none."""
        return self._audit.reason

    def is_stuck(self, now: float) -> bool:
        """Return whether the copy can become `level` only if the Source's responses change.

        This is the case if all failed changes were retried often enough and the lists were read
        since, or if nothing new has arrived for `Pace.patience`, or cannot arrive within that time.
        """
        state, catch_up = self.state, self.catch_up
        if catch_up.run is not None or not state.pending.all_given_up:
            return False
        is_read = all(failed < catch_up.began for failed in state.pending.first_failures())
        if state.settled and is_read:
            frontiers = state.frontiers
            if state.pending or frontiers.uncovered_gap or frontiers.has_older_list:
                return True
        patience, failures = state.pace.patience, catch_up.failures
        if failures.count:
            return max(now, state.schedule.due or now) - failures.since >= patience
        return now - catch_up.news_at >= patience


class ApplyResults:
    """Records applied and failed changes, and derives the progress to store.

    `missing` has the resources that were not available when the last run ended.
    """

    def __init__(
        self,
        state: SyncState,
        catch_up: CatchUp,
        audit: ContinuousAudit,
        missing: tuple[MissingResource, ...],
    ) -> None:
        self._state = state
        self._catch_up = catch_up
        self._audit = audit
        #: The resources to store with the progress, and the changes from which they are derived.
        self._missing = missing
        self._passed: Sequence[Change] = ()
        self._only_pushed: frozenset[str] = frozenset()
        #: The reason for the last warning, and when it was logged.
        self._warned = ("", 0.0)
        #: The changes of missing resources, and the deletions applied instead, keyed by URI.
        self._removals: dict[str, tuple[Change, Change]] = {}

    def start(self) -> None:
        """Fetch the resources that were not available when the last run ended.

        If only push announced a resource, Change Lists may never list its deletion. A comparison
        with the whole set shows whether it exists.
        """
        for one in self._missing:
            self._state.pending.add(_change_of(one), since=LATEST)
        if any(one.announced == EARLIEST for one in self._missing):
            self._catch_up.comparisons.expedite()

    # Progress

    def progress(self) -> Progress | None:
        state = self._state
        return self._with_missing(state.frontiers.progress(state.pending.low_water()))

    def progress_after(self, changes: Sequence[Change]) -> Progress | None:
        """Return the progress to store with these changes, before a call of `applied`."""
        low_water = self._state.pending.low_water_after(changes)
        removed = [one for one in changes if self._is_removal(one)]
        return self._with_missing(self._state.frontiers.progress_at(low_water), removed)

    def _with_missing(
        self, progress: Progress | None, removed: Sequence[Change] = ()
    ) -> Progress | None:
        passed, unconfirmed = self._state.pending.passed, self._state.unconfirmed
        if progress is None or not (passed or removed):
            return progress
        candidates = passed if unconfirmed else ()
        pushed = frozenset(one.uri for one in candidates if one.uri in unconfirmed)
        if passed is not self._passed or pushed != self._only_pushed:
            self._passed, self._only_pushed = passed, pushed
            # No list has to confirm a change that was not applied.
            self._missing = tuple(
                MissingResource(one.resource.uri, self._state.pending.listed_at(one.uri))
                if one.uri in pushed
                else _missing_resource(one)
                for one in passed
            )
        return replace(progress, missing=self._missing + tuple(map(_removed_resource, removed)))

    def _is_removal(self, change: Change) -> bool:
        """Return whether a change removes a resource that is listed but missing."""
        return change.uri in self._removals and change is self._removals[change.uri][1]

    # Answers

    def applied(self, changes: Iterable[Change], now: float) -> None:
        """Record changes as applied, and watch the resources removed because they are missing."""
        pending = self._state.pending
        for change in changes:
            if change.check is not CheckMethod.FETCH:  # a verification is not news
                self._catch_up.news_at = now
            is_unlisted = pending.is_unlisted(change.uri)
            is_latest = pending.applied(change)
            if self._is_removal(change):
                listed, _ = self._removals.pop(change.uri)
                # Otherwise a later change or list shows whether the resource exists.
                if is_latest and not is_unlisted:
                    fetch = replace(listed, check=CheckMethod.FETCH)
                    pending.watch(fetch, now + self._state.pace.gone_after, removed=True)

    def failed(self, change: Change, error: RsnotifyError, now: float) -> None:
        """Schedule a retry, or remove the resource if it was missing for long enough."""
        state = self._state
        is_watched = state.pending.is_watched(change.uri)
        is_missing = isinstance(error, NotFound)
        gone_after = state.pace.gone_after
        attempts = state.pending.failed(
            change,
            now,
            max(
                error.retry_after or 0.0,
                gone_after if state.pending.is_removed(change.uri) else 0.0,
            ),
            missing=is_missing,
            longest=gone_after if is_missing else LONGEST_RETRY_AFTER,
        )
        if not attempts:
            return
        if self._is_gone(change, error, attempts, now):
            state.actions.note(
                f"{change.resource.uri} is listed, but its server returns 404; removing it from "
                "the copy and retrying from time to time",
                warning=True,
            )
            removal = replace(change, change=ChangeType.DELETED, package=None)
            self._removals[change.uri] = (change, removal)
            # T waits for the removal only if it waited for the resource.
            state.pending.add(removal, since=LATEST, missing=change)
            self._catch_up.comparisons.expedite()
        elif not is_watched:
            text = f"could not apply a change (attempt {attempts}): {error}"
            state.actions.note(text, warning=attempts == 3 and self._is_news(error, now))
            if self._is_enough(change, error, attempts):
                self._give_up(change, error)
        if state.pending.failed_at(change) >= self._catch_up.began:
            # The lists show whether the resource has changed or been deleted since.
            delay = state.pace.retry.delay(attempts, state.random)
            state.schedule.catch_up_by(now + delay)

    def _is_news(self, error: RsnotifyError, now: float) -> bool:
        """Return whether to log a warning, since a server that is down causes many failures."""
        if not (isinstance(error, Unavailable) and error.is_transient):
            return True
        reason, since = self._warned
        if error.reason == reason and now - since < _WARNING_INTERVAL:
            return False
        self._warned = error.reason, now
        return True

    def _is_enough(self, change: Change, error: RsnotifyError, attempts: int) -> bool:
        """Return whether to give up after this many failures.

        If a newer change has superseded the failed one, it is tried first. A resource that changes
        faster than it can be fetched counts as unavailable after twice as many failures.
        """
        pace, pending = self._state.pace, self._state.pending
        if isinstance(error, Unavailable) and error.is_transient:
            return pending.retried_at(change) - pending.failed_at(change) >= pace.patience
        return attempts >= pace.give_up * (2 if pending.is_superseded(change) else 1)

    def _give_up(self, change: Change, error: RsnotifyError) -> None:
        """Record an unavailable resource as missing, so that T can pass it.

        T still waits if the fault is local, such as a full disk, or if too many resources are
        already stored as missing.
        """
        pending = self._state.pending
        is_here = isinstance(error, StorageError)
        watch = not is_here and len(pending.passed) < _MAX_MISSING
        pending.give_up(change.uri, watch=watch)
        if announced_at(change) == EARLIEST:
            # Only push announced the resource. A comparison shows whether it exists.
            self._catch_up.comparisons.expedite()

    def _is_gone(self, change: Change, error: RsnotifyError, attempts: int, now: float) -> bool:
        pace = self._state.pace
        is_listed = change.resource.change is None
        if is_listed and self._audit.repairing and attempts >= pace.give_up:
            # In a repair after a digest differed, T does not wait for `Pace.gone_after`. If the
            # removal is wrong, the next digest differs again.
            return isinstance(error, NotFound)
        since = self._state.pending.missing_since(change)
        return since is not None and now - since >= pace.gone_after


def _removed_resource(change: Change) -> MissingResource:
    return MissingResource(change.resource.uri, announced_at(change))


def _missing_resource(change: Change) -> MissingResource:
    if change.check is CheckMethod.FETCH:
        return _removed_resource(change)
    return MissingResource(change.resource.uri, announced_at(change), change.resource, change.at)


def _change_of(missing: MissingResource) -> Change:
    uri, kind = normalize(missing.uri), ChangeType.UPDATED
    at, entry = missing.announced, missing.entry
    if entry is not None:
        # The copy may have stored this version since.
        check = CheckMethod.COMPARE
        return Change(uri, entry.change or kind, missing.at, entry, check=check)
    entry = Resource(missing.uri, change=kind, datetime=at if at > EARLIEST else None)
    return Change(uri, kind, at, entry, check=CheckMethod.FETCH)
