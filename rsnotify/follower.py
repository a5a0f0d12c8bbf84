"""The follower: how a Destination stays in step with one set of resources.

Theory of operation
-------------------

The follower is told events and returns actions; the program around it does the I/O. Times
called `now` are seconds of any clock that does not jump; instants are the Source's.

How far a Destination is stands in its `Knowledge`: T, `known` and `confirmed`. A fragment
whose interval reaches `known` moves it. One that begins later shows a gap: it is held
(bounded) for a moment, as it may only be out of order, and then the gap is pulled. What push
said is believed at once but not for ever: each pull starts from `confirmed`, so a change
that a hub withheld is found at the next poll. Applying a change twice does nothing.

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

The program owes an answer to each `Fetch`, `Apply`, `Compare` and `Sweep`, in any order, and
may stop at any point: begun again from the last `progress` it kept, all ends the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from msgspec import structs

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
from rsnotify.coverage import Change, Coverage, fragment_coverage
from rsnotify.datetimes import Instant, format_datetime
from rsnotify.errors import DocumentError, NotFound, RsnotifyError, Unavailable
from rsnotify.held import Held
from rsnotify.knowledge import EARLIEST, Knowledge
from rsnotify.ladder import Baseline, Listed, Pull
from rsnotify.model import Document, Resource
from rsnotify.offer import Offer
from rsnotify.pace import Pace
from rsnotify.vocabulary import ChangeType
from rsnotify.worklist import Worklist

#: How often in a row the Resource List is compared before a hole is left open. Twice, as the
#: first may have been replaced by a newer one while it was read.
_BASELINES = 2


class Follower:
    """Follows one set of resources. Call `start` first, then one method for each event.

    Every event returns the actions to take, to be begun in this order; `wakeup` says when
    `tick` is due. After `applied`, `progress` is to be kept in the same transaction as what
    was applied.

    Args:
        offer: What the Source offers.
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
        self._knowledge = Knowledge.of_progress(progress) if progress else None
        self._held = Held(self._pace.hold)
        self._pull: Pull | None = None
        self._baseline: Baseline | None = None
        self._listed: Listed | None = None
        self._baseline_idle = False
        self._baselines = 0
        self._need_baseline = False
        self._failures = 0
        self._error: RsnotifyError | None = None
        self._until: tuple[str, Instant | None] | None = None
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
        if self._knowledge is None:
            return None
        return self._knowledge.progress(self._worklist.low_water())

    @property
    def since(self) -> Instant | None:
        """Where push has to join: every change up to here is known."""
        return self._knowledge.known.instant if self._knowledge else None

    @property
    def level(self) -> bool:
        """Whether nothing is known to be missing, and the Source's lists have said so."""
        knowledge = self._knowledge
        if knowledge is None or self._busy or not self._settled:
            return False
        beyond = self._held.unexplained(knowledge.known.instant)
        return not (self._worklist or beyond or knowledge.hole)

    @property
    def stuck(self) -> bool:
        """Whether only what has failed several times keeps this from being level."""
        failing = self._worklist.failing(self._pace.gone_after)
        if self._busy or len(failing) < len(self._worklist):
            return False
        return bool(failing) or self._hole_open

    @property
    def failures(self) -> int:
        """How often in a row the Source's lists could not be followed."""
        return self._failures

    @property
    def error(self) -> RsnotifyError | None:
        """Why the Source's lists could not be followed the last time, if they could not."""
        return self._error

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
    def wakeup(self) -> float | None:
        """When `tick` is due, if nothing happens before."""
        due = [self._gap_due, self._worklist.wakeup(), None if self._busy else self._pull_due]
        return min((time for time in due if time is not None), default=None)

    @property
    def _busy(self) -> bool:
        return self._pull is not None or self._baseline is not None

    @property
    def _hole_open(self) -> bool:
        return self._knowledge is not None and self._knowledge.hole is not None

    # Events: time and the Source's offer

    def start(self, now: float) -> list[Action]:
        """Begin: with a baseline if there is no progress, else with a pull."""
        self._climb(now)
        return self._take(now)

    def tick(self, now: float) -> list[Action]:
        """Do what has become due."""
        if self._gap_due is not None and self._gap_due <= now:
            self._gap_due = None
            self._pull_soon(now)
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
        knowledge = self._knowledge
        if coverage.from_ is None:
            # It proves nothing, but tells that there is something to read.
            self._owe(knowledge.known.fresh(coverage) if knowledge else [])
            self._pull_soon(now + self._pace.gap_grace)
        elif knowledge is not None and (fresh := knowledge.push(coverage)) is not None:
            self._owe(fresh)
            self._absorb_held(knowledge)
        else:
            self._held.hold(coverage)
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

    def _absorb_held(self, knowledge: Knowledge) -> None:
        while (coverage := self._held.next(knowledge.known.instant)) is not None:
            self._owe(knowledge.push(coverage) or [])
        if not self._held.unexplained(knowledge.known.instant):
            self._gap_due = None

    def _owe(self, changes: Iterable[Change]) -> None:
        for change in changes:
            self._worklist.add(change)

    # Events: documents

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
        self._error = error
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
        self._worklist.release()
        delay = self._pace.retry.delay(self._failures, self._random)
        self._pull_due = now + max(_asked_to_wait(error), delay)
        return self._take(now)

    def differing(self, resources: Iterable[Resource], now: float) -> list[Action]:
        """Hear which resources of the last `Compare` are not held as they are listed."""
        if self._listed is not None:
            for resource in resources:
                change = Change(resource.uri, ChangeType.UPDATED, self._listed.at, resource)
                self._worklist.add(change, since=EARLIEST)
            self._listed = None
            self._baseline_idle = True
        return self._take(now)

    def missing(self, uris: Iterable[str], now: float) -> list[Action]:
        """Hear which resources of the last `Sweep` are held but not listed."""
        baseline = self._baseline
        if baseline is not None:
            for uri in uris:
                change = Change(uri, ChangeType.DELETED, baseline.at, Resource(uri))
                self._worklist.add(change, since=EARLIEST)
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
        attempts = self._worklist.failed(change, now, _asked_to_wait(error))
        if attempts and isinstance(error, NotFound) and attempts >= self._pace.gone_after:
            self._note(f"{change.uri} is gone without notice: taken as deleted", warning=True)
            gone = Change(change.uri, ChangeType.DELETED, change.at, change.resource)
            self._worklist.add(gone)
        elif attempts:
            self._note(f"could not apply, try {attempts}: {error}", warning=attempts == 3)
            # It may have changed or gone since: then the lists say so.
            self._pull_soon(now + self._pace.retry.delay(attempts, self._random))
        return self._take(now)

    # Pull

    def _pull_soon(self, when: float) -> None:
        self._pull_due = when if self._pull_due is None else min(self._pull_due, when)

    def _climb(self, now: float) -> None:
        """Begin a pull, or a baseline where only that helps."""
        self._pull_due = self._gap_due = None
        offer = self._offer
        if self._knowledge is None and offer.resource_list is None:
            # Without a Resource List all there is to know is what the Change Lists hold.
            self._knowledge = Knowledge.beginning(EARLIEST)
        pointless = self._knowledge is None or offer.change_list is None
        if offer.resource_list is not None and (pointless or self._need_baseline):
            self._begin_baseline(offer)
        elif offer.change_list is not None:
            self._pull = Pull(offer)
            self._actions.append(self._pull.current)
        else:
            self._note("the Source offers neither a Resource List nor a Change List", warning=True)
            self._actions.append(Discover())
            self._pull_soon(now + self._pace.retry.most)

    def _read_changes(self, pull: Pull, document: Document, now: float) -> None:
        knowledge = self._knowledge
        assert knowledge is not None
        asked = pull.current
        step = pull.read(document, knowledge.confirmed.instant)
        if step.coverage is not None:
            fresh = knowledge.pull(self._believed(asked, step.coverage))
            # With more lists to come, a resource may change once more: one GET will do.
            more = step.fetch is not None and self._worklist.parked < self._pace.hold
            for change in fresh:
                self._worklist.add(change, parked=more)
            if fresh:
                self._note(f"{len(fresh)} changes from the {asked.rung} {asked.uri}")
            self._absorb_held(knowledge)
        if step.fetch is not None:
            self._actions.append(step.fetch)
        elif step.hole is not None:
            self._pull = None
            self._worklist.release()
            self._fall_into_hole(knowledge, step.hole)
            self._climb(now)
        else:
            if step.coverage is not None and step.coverage.closed:
                self._actions.append(Discover())  # core §12.1: a closed list has a successor
            self._end_pull(knowledge, now)

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
        return structs.replace(coverage, until=latest)

    def _fall_into_hole(self, knowledge: Knowledge, begins: Instant) -> None:
        """No list covers the time from what is confirmed until what there is begins."""
        if self._offer.resource_list is None:
            self._note(f"the Source tells nothing of the time before {format_datetime(begins)}")
            knowledge.skip(begins)
        elif self._baselines < _BASELINES:
            after = format_datetime(knowledge.confirmed.instant)
            self._note(f"no Change List reaches back to {after}")
            self._need_baseline = True
        else:
            self._note(
                "the Resource List is older than the oldest Change List, which begins at "
                f"{format_datetime(begins)}; a newer one is waited for",
                warning=True,
            )
            knowledge.leave_open(begins)

    def _end_pull(self, knowledge: Knowledge, now: float) -> None:
        self._pull = None
        self._worklist.release()
        self._baselines = 0
        self._failures = 0
        self._error = None
        self._settled = True
        self._need_baseline = self._hole_open
        if self._held.unexplained(knowledge.known.instant):
            self._lag(now)
        else:
            self._lag_tries = 0
            self._poll_later(now)

    def _poll_later(self, now: float) -> None:
        relaxed = self._pushing and not self._hole_open
        self._pull_soon(now + (self._pace.poll_with_push if relaxed else self._pace.poll))

    def _lag(self, now: float) -> None:
        """The lists do not reach what push announced: they lag behind it, or it lied."""
        self._lag_tries += 1
        if self._lag_tries <= self._pace.lag_tries:
            self._pull_soon(now + self._pace.retry.delay(self._lag_tries, self._random))
            return
        self._note("the hub announced changes that the Source's lists do not show", warning=True)
        self._held.clear()
        self._lag_tries = 0
        self._poll_later(now)

    # Baseline

    def _begin_baseline(self, offer: Offer) -> None:
        self._baseline = Baseline(offer, self.since or EARLIEST)
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
        """Read the next list once most of the last is applied, so that memory stays flat.

        What failed is not waited for: it may have changed since the Resource List was made,
        and only the Change List, which comes after, tells how.
        """
        baseline = self._baseline
        if baseline is None or not self._baseline_idle:
            return
        if self._worklist.untried <= self._pace.in_flight:
            self._baseline_idle = False
            self._actions.append(baseline.next() or Sweep(baseline.at))

    def _end_baseline(self, at: Instant, now: float) -> None:
        if self._knowledge is None:
            self._knowledge = Knowledge.beginning(at)
        else:
            self._knowledge.baseline(at)
        self._baseline = None
        self._baselines += 1
        self._need_baseline = False
        self._absorb_held(self._knowledge)
        if self._offer.change_list is not None:
            self._climb(now)
        else:
            self._failures = 0
            self._error = None
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


def _asked_to_wait(error: RsnotifyError) -> float:
    return (isinstance(error, Unavailable) and error.retry_after) or 0.0
