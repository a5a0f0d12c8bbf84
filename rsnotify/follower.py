"""The follower: how a Destination stays in step with one set of resources.

Theory of operation
-------------------

The follower is told events and returns actions; the program around it does the I/O. Times
called `now` are seconds of any clock that does not jump; instants are the Source's.

Three instants say how far a Destination is:

    T  <=  known        T: durably applied.  known: every change is known, if not yet applied.
    confirmed <= known  confirmed: every change is known from the standard documents.

A fragment whose interval reaches `known` moves it. One that begins later shows a gap: it is
held (bounded) for a moment, as it may only be out of order, and then the gap is pulled.
What push said is believed at once but not for ever: each pull starts from `confirmed`, so a
change that a hub withheld is found at the next poll. Applying a change twice does nothing.

    push                                         pull (from `confirmed`)

    fragment --reaches known--> apply            poll due, gap, push lost
       |                          ^                 |
       begins later               |                 v
       v                          |              Change List (or Index) --reaches--> apply
     held --grace over--> pull    |                 | begins later
       |                          |                 v
       +------ known moved -------+              Change List Archive --reaches--> its lists,
                                                    | begins later, or none       then again
                                                    v                             the Change List
                                                 Resource List: compare, sweep what is not
                                                 listed, known = its `at`; then again the
                                                 Change List

A document that cannot be had or read ends the pull, which is tried again with backoff; what
was taken before stays. A list that vanished between two requests (404) starts the pull anew,
and after some such starts leads to the Resource List. Every way ends at the Resource List,
which is always right, and costs most.

What is known but not applied is in the `Worklist`. T is just before the earliest change
owed, so it passes none; when nothing is owed, T is `known`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from random import Random

from msgspec import Struct

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
from rsnotify.coverage import Change, Coverage, Frontier, fragment_coverage
from rsnotify.datetimes import MICROSECOND, Instant, format_datetime
from rsnotify.errors import DocumentError, NotFound, RsnotifyError, Unavailable
from rsnotify.ladder import Baseline, Listed, Pull
from rsnotify.model import Document, Resource
from rsnotify.offer import Offer
from rsnotify.vocabulary import ChangeType
from rsnotify.worklist import Retry, Worklist

_EARLIEST = datetime.min.replace(tzinfo=UTC)


#: How often in a row the Resource List is compared before a hole is left open. Twice, as the
#: first may have been replaced by a newer one while it was read.
_BASELINES = 2


class _Hole(Struct):
    """A time `(after, ends]` that no Change List covers; `due` is the next try to close it."""

    after: Instant
    ends: Instant
    due: float


class Pace(Struct, frozen=True):
    """How fast, and how much at once. Times are in seconds.

    Args:
        poll: Between two polls while push is away.
        poll_with_push: Between two polls while push works; they only confirm it.
        gap_grace: How long a gap may turn out to be mere disorder before it is pulled.
        in_flight: How many changes may be out to be applied at once.
        hold: How many changes of fragments beyond a gap are kept.
        gone_after: After so many 404s a resource counts as deleted.
        lag_tries: How often a Change List is asked again for what push announced.
        baseline_after: After so many failures to read Change Lists comes a baseline.
        retry: How failures are tried again.
    """

    poll: float = 10.0
    poll_with_push: float = 60.0
    gap_grace: float = 0.1
    in_flight: int = 64
    hold: int = 20_000
    gone_after: int = 5
    lag_tries: int = 8
    baseline_after: int = 3
    retry: Retry = Retry()


class Follower:
    """Follows one set of resources. Call `start` first, then one method for each event.

    Every event returns the actions to take, to be begun in this order; `wakeup` says when
    `tick` is due. After `applied`, `progress` is to be kept in the same transaction as what was applied.

    Args:
        offer: What the Source offers: at least a Resource List, or a Change List and progress.
        progress: Where an earlier run stopped; None to begin with a baseline.
        pace: How fast, and how much at once.
        random: The source of jitter.
    """

    def __init__(
        self,
        offer: Offer,
        progress: Progress | None = None,
        *,
        pace: Pace | None = None,
        random: Random | None = None,
    ) -> None:
        self._offer = offer
        self._pace = pace or Pace()
        self._random = random or Random()
        self._worklist = Worklist(self._pace.retry, self._random)
        self._through = progress.through if progress else None
        self._known = Frontier.at(progress.through) if progress else None
        self._confirmed = Frontier.at(progress.confirmed, progress.seen) if progress else None
        self._held: list[Coverage] = []
        self._wanted: Instant | None = None
        self._pull: Pull | None = None
        self._baseline: Baseline | None = None
        self._listed: Listed | None = None
        self._baseline_idle = False
        self._baselines = 0
        self._need_baseline = False
        self._hole: _Hole | None = None
        self._failures = 0
        self._lag_tries = 0
        self._gap_due: float | None = None
        self._pull_due: float | None = None
        self._pushing = False
        self._settled = False
        self._actions: list[Action] = []

    # What there is to see

    @property
    def progress(self) -> Progress | None:
        """What is to be kept; None until a first baseline is complete."""
        if self._known is None or self._confirmed is None:
            return None
        low = self._worklist.low_water()
        reached = self._known.instant if self._hole is None else self._hole.after
        if low is not None and low > _EARLIEST:
            reached = min(reached, low - MICROSECOND)
        if low != _EARLIEST:
            self._through = max(self._through or reached, reached)
        if self._through is None:
            return None
        confirmed = self._confirmed
        if confirmed.instant > self._through:
            return Progress(self._through, self._through)
        return Progress(self._through, confirmed.instant, tuple(confirmed.seen.elements()))

    @property
    def since(self) -> Instant | None:
        """Where push has to join: every change up to here is known."""
        return self._known.instant if self._known else None

    @property
    def level(self) -> bool:
        """Whether nothing is known to be missing, and the Source's lists have said so."""
        missing = self._worklist or self._held or self._hole
        return self._settled and not (missing or self._busy)

    @property
    def failures(self) -> int:
        """How often in a row the Source's lists could not be followed."""
        return self._failures

    @property
    def baselining(self) -> bool:
        """Whether a baseline is under way."""
        return self._baseline is not None

    @property
    def owed(self) -> int:
        """How many resources have changes that are known and not yet applied."""
        return len(self._worklist)

    def failing(self) -> list[Change]:
        """Return the changes that could not be applied so far, and are tried again."""
        return self._worklist.failing()

    @property
    def stuck(self) -> bool:
        """Whether only what has failed several times keeps this from being level."""
        failing = self._worklist.failing(self._pace.gone_after)
        if self._busy or len(failing) < len(self._worklist):
            return False
        return bool(failing) or self._hole is not None

    @property
    def wakeup(self) -> float | None:
        """When `tick` is due, if nothing happens before."""
        due = [self._gap_due, self._worklist.wakeup(), None if self._busy else self._pull_due]
        return min((time for time in due if time is not None), default=None)

    @property
    def _busy(self) -> bool:
        return self._pull is not None or self._baseline is not None

    # Events: time and the Source's offer

    def start(self, now: float) -> list[Action]:
        """Begin: with a baseline if there is no progress, else with a pull."""
        self._climb(now)
        return self._take(now)

    def tick(self, now: float) -> list[Action]:
        """Do what has become due."""
        if self._gap_due is not None and self._gap_due <= now:
            self._gap_due = None
            if self._held:
                self._pull_due = now
        if self._pull_due is not None and self._pull_due <= now and not self._busy:
            self._climb(now)
        return self._take(now)

    def offered(self, offer: Offer, now: float) -> list[Action]:
        """Take what the Source offers now; it counts from the next pull on."""
        if offer.change_list != self._offer.change_list:
            self._pull_soon(now)
        self._offer = offer
        return self._take(now)

    # Events: push

    def fragment(self, document: Document, now: float) -> list[Action]:
        """Take a fragment that was pushed."""
        try:
            coverage = fragment_coverage(document)
        except DocumentError as error:
            return self.fragment_unreadable(error, now)
        if coverage.from_ is None:
            # It proves nothing, but tells that there is something to read.
            self._owe(coverage)
            self._pull_soon(now + self._pace.gap_grace)
        elif not self._absorb(coverage):
            self._hold(coverage)
            if self._gap_due is None and not self._busy:
                self._gap_due = now + self._pace.gap_grace
        return self._take(now)

    def fragment_unreadable(self, error: RsnotifyError, now: float) -> list[Action]:
        """Hear that something was pushed which is no fragment."""
        self._note(f"a fragment was refused, so the Change List is read: {error}", warning=True)
        self._pull_soon(now + self._pace.gap_grace)
        return self._take(now)

    def push_up(self, now: float) -> list[Action]:
        """Hear that fragments arrive from `since` on."""
        self._pushing = True
        return self._take(now)

    def push_gap(self, now: float) -> list[Action]:
        """Hear that the hub cannot replay from `since` on."""
        self._note("the hub's log does not reach back far enough, so the Change List is read")
        self._pull_soon(now)
        return self.tick(now)

    def push_down(self, now: float) -> list[Action]:
        """Hear that no fragments arrive any more."""
        if self._pushing:
            self._pushing = False
            self._pull_soon(now + self._pace.poll * self._random.random())
        return self._take(now)

    # Events: pull and baseline

    def fetched(self, fetch: Fetch, document: Document, now: float) -> list[Action]:
        """Take a document that was asked for, read to its end."""
        try:
            if self._pull is not None and fetch is self._pull.current:
                self._read_changes(self._pull, document, now)
            elif self._baseline is not None and fetch is self._baseline.current:
                self._read_resources(self._baseline, document)
        except DocumentError as error:
            return self.fetch_failed(fetch, error.at(fetch.uri), now)
        return self._take(now)

    def fetch_failed(self, fetch: Fetch, error: RsnotifyError, now: float) -> list[Action]:
        """Hear that a document could not be had or read; nothing of it was used."""
        asked = self._pull or self._baseline
        if asked is None or fetch is not asked.current:
            return self._take(now)
        self._failures += 1
        self._settled = False
        self._note(f"the {fetch.rung} could not be used: {error}", warning=True)
        if isinstance(error, NotFound):
            self._actions.append(Discover())
        if self._pull is not None and not isinstance(error, Unavailable):
            # Not merely out of reach: after a few tries go where the truth is. Counted in
            # doublings, so that a list that stays broken does not cost a baseline each time.
            doublings = {self._pace.baseline_after << n for n in range(16)}
            self._need_baseline = self._need_baseline or self._failures in doublings
        self._pull = self._baseline = self._listed = None
        asked_to_wait = getattr(error, "retry_after", None) or 0.0
        delay = self._pace.retry.delay(self._failures, self._random)
        self._pull_due = now + max(asked_to_wait, delay)
        return self._take(now)

    def differing(self, resources: Iterable[Resource], now: float) -> list[Action]:
        """Hear which resources of the last `Compare` are not held as they are listed."""
        if self._listed is not None:
            for resource in resources:
                change = Change(resource.uri, ChangeType.UPDATED, self._listed.at, resource)
                self._worklist.add(change, since=_EARLIEST)
            self._listed = None
            self._baseline_idle = True
        return self._take(now)

    def missing(self, uris: Iterable[str], now: float) -> list[Action]:
        """Hear which resources of the last `Sweep` are held but not listed."""
        baseline = self._baseline
        if baseline is not None:
            for uri in uris:
                change = Change(uri, ChangeType.DELETED, baseline.at, Resource(uri))
                self._worklist.add(change, since=_EARLIEST)
            self._end_baseline(baseline.at, now)
        return self._take(now)

    # Events: what was applied

    def applied(self, changes: Iterable[Change], now: float) -> list[Action]:
        """Hear that changes of an `Apply` are in the state that is about to be committed."""
        for change in changes:
            self._worklist.applied(change)
        return self._take(now)

    def failed(self, change: Change, error: RsnotifyError, now: float) -> list[Action]:
        """Hear that a change of an `Apply` could not be applied; it is tried again."""
        asked_to_wait = getattr(error, "retry_after", None) or 0.0
        attempts = self._worklist.failed(change, now, asked_to_wait)
        if attempts and isinstance(error, NotFound) and attempts >= self._pace.gone_after:
            self._note(f"{change.uri} is gone without notice: taken as deleted", warning=True)
            gone = Change(change.uri, ChangeType.DELETED, change.at, change.resource)
            self._worklist.add(gone)
        elif attempts:
            self._note(f"could not apply, try {attempts}: {error}", warning=attempts > 2)
            # It may have changed or gone since: then the lists say so.
            self._pull_soon(now + self._pace.retry.delay(attempts, self._random))
        return self._take(now)

    # Push

    def _absorb(self, coverage: Coverage) -> bool:
        """Take what a fragment covers, if it joins; then what was held and joins now."""
        known = self._known
        if known is None or not coverage.reaches(known.instant):
            return False
        self._owe(coverage)
        if coverage.until is not None:
            known.advance(coverage.until, coverage.changes)
        self._absorb_held()
        return True

    def _absorb_held(self) -> None:
        known = self._known
        while known and self._held and self._held[0].reaches(known.instant):
            coverage = self._held.pop(0)
            self._owe(coverage)
            if coverage.until is not None:
                known.advance(coverage.until, coverage.changes)
        if not self._held:
            self._gap_due = None

    def _owe(self, coverage: Coverage) -> None:
        if self._known is not None:
            for change in self._known.fresh(coverage):
                self._worklist.add(change)

    def _hold(self, coverage: Coverage) -> None:
        """Keep a fragment beyond a gap. When there are too many, the lists have them."""
        if sum(len(held.changes) for held in self._held) < self._pace.hold:
            self._held.append(coverage)
            self._held.sort(key=lambda held: held.from_ or _EARLIEST)
        elif coverage.changes:
            self._wanted = coverage.until

    # Pull

    def _pull_soon(self, when: float) -> None:
        self._pull_due = when if self._pull_due is None else min(self._pull_due, when)

    def _climb(self, now: float) -> None:
        """Begin a pull, or a baseline where only that helps."""
        self._pull_due = self._gap_due = None
        offer = self._offer
        hole_due = self._hole is not None and self._hole.due <= now
        if self._known is None and offer.resource_list is None:
            # Without a Resource List all there is to know is what the Change Lists hold.
            self._known, self._confirmed = Frontier.at(_EARLIEST), Frontier.at(_EARLIEST)
        if offer.resource_list is not None and (
            self._known is None or self._need_baseline or hole_due or offer.change_list is None
        ):
            self._begin_baseline(offer)
        elif offer.change_list is not None:
            self._pull = Pull(offer)
            self._actions.append(self._pull.current)
        else:
            self._note("the Source offers neither a Resource List nor a Change List", warning=True)
            self._actions.append(Discover())
            self._pull_soon(now + self._pace.retry.most)

    def _read_changes(self, pull: Pull, document: Document, now: float) -> None:
        known, confirmed = self._known, self._confirmed
        assert known is not None
        assert confirmed is not None
        asked = pull.current
        step = pull.read(document, confirmed.instant)
        if step.coverage is not None:
            fresh = confirmed.fresh(step.coverage)
            for change in fresh:
                self._worklist.add(change)
            if step.coverage.until is not None:
                confirmed.advance(step.coverage.until, step.coverage.changes)
                known.advance(step.coverage.until, step.coverage.changes)
            if fresh:
                self._note(f"{len(fresh)} changes from the {asked.rung} {asked.uri}")
            self._absorb_held()
        if step.fetch is not None:
            self._actions.append(step.fetch)
        elif step.hole is not None:
            self._fall_into(step.hole, now)
        else:
            if step.coverage is not None and step.coverage.closed:
                self._actions.append(Discover())  # core §12.1: a closed list has a successor
            self._end_pull(now)

    def _fall_into(self, begins: Instant, now: float) -> None:
        """Nothing the Source has covers `(confirmed, begins]`."""
        known, confirmed = self._known, self._confirmed
        assert known is not None
        assert confirmed is not None
        self._pull = None
        if self._offer.resource_list is not None and self._baselines < _BASELINES:
            self._note(f"no Change List reaches back to {format_datetime(confirmed.instant)}")
            self._need_baseline = True
        else:
            self._leave_open(begins, now)
        self._climb(now)

    def _leave_open(self, begins: Instant, now: float) -> None:
        """Go on with what there is: the Resource List is older than the oldest Change List.

        T stays before the hole, until a Resource List that is newer than its end was compared.
        """
        known, confirmed = self._known, self._confirmed
        assert known is not None
        assert confirmed is not None
        self._note(f"the Source tells nothing of the time before {format_datetime(begins)}")
        if self._offer.resource_list is not None:
            after = self._hole.after if self._hole else confirmed.instant
            self._hole = _Hole(after, begins, now + self._pace.poll)
        confirmed.advance(begins)
        known.advance(begins)

    def _end_pull(self, now: float) -> None:
        known = self._known
        assert known is not None
        self._pull = None
        self._baselines = 0
        self._failures = 0
        self._settled = True
        if self._wanted is not None and self._wanted <= known.instant:
            self._wanted = None
        if self._held or self._wanted is not None:
            self._lag(now)
        else:
            self._lag_tries = 0
            self._poll_later(now)

    def _poll_later(self, now: float) -> None:
        pace = self._pace
        self._pull_soon(now + (pace.poll_with_push if self._pushing else pace.poll))

    def _lag(self, now: float) -> None:
        """The lists do not reach what push announced: they lag behind it, or it lied."""
        self._lag_tries += 1
        if self._lag_tries <= self._pace.lag_tries:
            self._pull_soon(now + self._pace.retry.delay(self._lag_tries, self._random))
            return
        self._note("the hub announced changes that the Source's lists do not show", warning=True)
        self._held.clear()
        self._wanted = None
        self._lag_tries = 0
        self._poll_later(now)

    # Baseline

    def _begin_baseline(self, offer: Offer) -> None:
        at_least = self._known.instant if self._known else _EARLIEST
        self._baseline = Baseline(offer, at_least)
        self._baseline_idle = False
        self._note(f"baseline from the Resource List {self._baseline.current.uri}")
        self._actions += [BeginBaseline(), self._baseline.current]

    def _read_resources(self, baseline: Baseline, document: Document) -> None:
        self._listed = baseline.read(document)
        if self._listed is None:
            self._baseline_idle = True
        else:
            self._actions.append(Compare(self._listed.resources, self._listed.at))

    def _go_on_with_baseline(self) -> None:
        """Read the next list once most of the last is applied, so that memory stays flat."""
        baseline = self._baseline
        if baseline is None or not self._baseline_idle:
            return
        if len(self._worklist) <= self._pace.in_flight:
            self._baseline_idle = False
            self._actions.append(baseline.next() or Sweep(baseline.at))

    def _end_baseline(self, at: Instant, now: float) -> None:
        if self._known is None or self._confirmed is None:
            self._known, self._confirmed = Frontier.at(at), Frontier.at(at)
        else:
            self._known.advance(at)
            self._confirmed.advance(at)
        self._baseline = None
        self._baselines += 1
        self._need_baseline = False
        if self._hole is not None:
            if at >= self._hole.ends:
                self._hole = None
            else:
                self._hole.due = now + self._pace.poll
        self._absorb_held()
        if self._offer.change_list is not None:
            self._climb(now)
        else:
            self._failures = 0
            self._settled = True
            self._poll_later(now)

    # Actions

    def _note(self, text: str, *, warning: bool = False) -> None:
        self._actions.append(Note(text, warning))

    def _take(self, now: float) -> list[Action]:
        self._go_on_with_baseline()
        changes = self._worklist.take(self._pace.in_flight, now)
        if changes:
            self._actions.append(Apply(tuple(changes)))
        actions, self._actions = self._actions, []
        return actions
