"""Getting level from the Source's documents: one pull or baseline at a time, when it is due.

due ──> pull ──reaches what is confirmed──> settled, until the next poll
│  └─ cannot be read: again with backoff; after some failures a baseline
│  └─ a list vanished: discover what is offered now, again
└─ nothing covers ──> baseline ──> pull
└─ the Resource List is too old as well: a hole is left
open, and closed by a later Resource List
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from msgspec import structs

from rsnotify.actions import Action, BeginBaseline, Compare, Discover, Fetch, Note, Sweep
from rsnotify.coverage import Change, Coverage
from rsnotify.datetimes import Instant, format_datetime
from rsnotify.errors import NotFound, RsnotifyError, Unavailable
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


class Climb:
    """The pulling half of a `Follower`.

    Args:
        offer: What the Source offers.
        knowledge: What is known, shared with the pushing half.
        worklist: Where changes are owed.
        actions: Where what is to be done is put.
        pace: How fast.
        random: The source of jitter.
    """

    def __init__(
        self,
        offer: Offer,
        knowledge: Knowledge,
        worklist: Worklist,
        actions: list[Action],
        pace: Pace,
        random: Random,
    ) -> None:
        self._offer = offer
        self._knowledge = knowledge
        self._worklist = worklist
        self._actions = actions
        self._pace = pace
        self._random = random
        self._pull: Pull | None = None
        self._baseline: Baseline | None = None
        self._listed: Listed | None = None
        self._baseline_idle = False
        self._baselines = 0
        self._need_baseline = False
        self._until: tuple[str, Instant | None] | None = None
        self._lag_tries = 0
        #: When the next climb begins.
        self.due: float | None = None
        #: Whether push works, so that polls only confirm it.
        self.relaxed = False
        #: Whether the last climb came to its end.
        self.settled = False
        #: How often in a row the Source's lists could not be followed, and why at last.
        self.failures = 0
        self.error: RsnotifyError | None = None

    @property
    def busy(self) -> bool:
        """Whether a pull or a baseline is under way."""
        return self._pull is not None or self._baseline is not None

    @property
    def baselining(self) -> bool:
        """Whether a baseline is under way."""
        return self._baseline is not None

    def soon(self, when: float) -> None:
        """Climb at this time, if not before."""
        self.due = when if self.due is None else min(self.due, when)

    def offered(self, offer: Offer, now: float) -> None:
        """Take what the Source offers now; it counts from the next climb on."""
        if offer.change_list != self._offer.change_list:
            self.soon(now)
        self._offer = offer

    def begin(self, now: float) -> None:
        """Begin a pull, or a baseline where only that helps."""
        self.due = None
        offer, known = self._offer, self._knowledge.known
        if known is None and offer.resource_list is None:
            # Without a Resource List all there is to know is what the Change Lists hold.
            self._knowledge.skip(EARLIEST)
        pointless = known is None or offer.change_list is None
        if offer.resource_list is not None and (pointless or self._need_baseline):
            self._begin_baseline(offer)
        elif offer.change_list is not None:
            self._pull = Pull(offer)
            self._actions.append(self._pull.current)
        else:
            self._note("the Source offers neither a Resource List nor a Change List", warning=True)
            self._actions.append(Discover())
            self.soon(now + self._pace.retry.most)

    def fetched(self, fetch: Fetch, document: Document, now: float) -> None:
        """Take a document that was asked for.

        Raises:
            DocumentError: It cannot be used.
        """
        if self._pull is not None and fetch is self._pull.current:
            self._read_changes(self._pull, document, now)
        elif self._baseline is not None and fetch is self._baseline.current:
            self._read_resources(self._baseline, document)

    def failed(self, fetch: Fetch, error: RsnotifyError, now: float) -> None:
        """End the climb, because a document could not be had or read."""
        asked = self._pull or self._baseline
        if asked is None or fetch is not asked.current:
            return
        self.failures += 1
        self.error = error
        self.settled = False
        self._note(f"the {fetch.rung} could not be used: {error}", warning=True)
        if isinstance(error, NotFound):
            self._actions.append(Discover())
        if self._pull is not None and not isinstance(error, Unavailable):
            # Not merely out of reach: after a few tries go where the truth is. Counted in
            # doublings, so that a list that stays broken does not cost a baseline each time.
            doublings = {self._pace.baseline_after << n for n in range(16)}
            self._need_baseline = self._need_baseline or self.failures in doublings
        self._pull = self._baseline = self._listed = None
        self._worklist.release()
        delay = self._pace.retry.delay(
            self.failures, self._random, at_least=error.retry_after or 0.0
        )
        self.due = now + delay

    # Pull

    def _read_changes(self, pull: Pull, document: Document, now: float) -> None:
        asked = pull.current
        step = pull.read(document, self._knowledge.confirmed)
        if step.coverage is not None:
            self._learn(asked, step.coverage, more=step.fetch is not None)
        if step.fetch is not None:
            self._actions.append(step.fetch)
        elif step.hole is not None:
            self._pull = None
            self._worklist.release()
            self._fall_into_hole(step.hole)
            self.begin(now)
        else:
            if step.coverage is not None and step.coverage.closed:
                self._actions.append(Discover())  # core §12.1: a closed list has a successor
            self._end_pull(now)

    def _learn(self, asked: Fetch, coverage: Coverage, *, more: bool) -> None:
        fresh = self._knowledge.pull(self._believed(asked, coverage))
        # With more lists to come, a resource may change once more: one GET will do.
        parked = more and self._worklist.parked < self._pace.hold
        for change in fresh:
            self._worklist.add(change, parked=parked)
        if fresh:
            self._note(f"{len(fresh)} changes from the {asked.rung} {asked.uri}")

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

    def _fall_into_hole(self, begins: Instant) -> None:
        """No list covers the time from what is confirmed until what there is begins."""
        if self._offer.resource_list is None:
            self._note(f"the Source tells nothing of the time before {format_datetime(begins)}")
            self._knowledge.skip(begins)
        elif self._baselines < _BASELINES:
            after = format_datetime(self._knowledge.confirmed)
            self._note(f"no Change List reaches back to {after}")
            self._need_baseline = True
        else:
            self._note(
                "the Resource List is older than the oldest Change List, which begins at "
                f"{format_datetime(begins)}; a newer one is waited for",
                warning=True,
            )
            self._knowledge.leave_open(begins)

    def _end_pull(self, now: float) -> None:
        self._pull = None
        self._worklist.release()
        self._baselines = 0
        self._need_baseline = self._knowledge.hole is not None
        self._settle()
        if self._knowledge.gap:
            self._lag(now)
        else:
            self._lag_tries = 0
            self._poll_later(now)

    def _settle(self) -> None:
        self.failures = 0
        self.error = None
        self.settled = True

    def _poll_later(self, now: float) -> None:
        relaxed = self.relaxed and self._knowledge.hole is None
        self.soon(now + (self._pace.poll_with_push if relaxed else self._pace.poll))

    def _lag(self, now: float) -> None:
        """The lists do not reach what push announced: they lag behind it, or it lied."""
        self._lag_tries += 1
        if self._lag_tries <= self._pace.lag_tries:
            self.soon(now + self._pace.retry.delay(self._lag_tries, self._random))
            return
        self._note("the hub announced changes that the Source's lists do not show", warning=True)
        self._knowledge.forget_announced()
        self._lag_tries = 0
        self._poll_later(now)

    # Baseline

    def _begin_baseline(self, offer: Offer) -> None:
        self._baseline = Baseline(offer, self._knowledge.known or EARLIEST)
        self._baseline_idle = False
        self._note(f"baseline from the Resource List {self._baseline.current.uri}")
        self._actions += [BeginBaseline(), self._baseline.current]

    def _read_resources(self, baseline: Baseline, document: Document) -> None:
        self._listed = baseline.read(document)
        if self._listed is None:
            self._baseline_idle = True
        else:
            self._actions.append(Compare(self._listed.resources, self._listed.at))

    def differing(self, resources: Iterable[Resource]) -> None:
        """Hear which resources of the last `Compare` are not held as they are listed."""
        if self._listed is not None:
            for resource in resources:
                change = Change(resource.uri, ChangeType.UPDATED, self._listed.at, resource)
                self._worklist.add(change, since=EARLIEST)
            self._listed = None
            self._baseline_idle = True

    def missing(self, uris: Iterable[str], now: float) -> None:
        """Hear which resources of the last `Sweep` are held but not listed."""
        baseline = self._baseline
        if baseline is not None:
            for uri in uris:
                change = Change(uri, ChangeType.DELETED, baseline.at, Resource(uri))
                self._worklist.add(change, since=EARLIEST)
            self._end_baseline(baseline.at, now)

    def go_on(self) -> None:
        """Read a baseline's next list once most of the last is applied: memory stays flat.

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
        for change in self._knowledge.baseline(at):
            self._worklist.add(change)
        self._baseline = None
        self._baselines += 1
        self._need_baseline = False
        if self._offer.change_list is not None:
            self.begin(now)
        else:
            self._settle()
            self._poll_later(now)

    def _note(self, text: str, *, warning: bool = False) -> None:
        self._actions.append(Note(text, warning))
