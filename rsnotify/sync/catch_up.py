"""Getting level from the Source's documents: one pull or baseline at a time, when it is due.

A climb ends settled, or is tried again with backoff:

    due ──> pull ──reaches what is confirmed──> settled, until the next poll
             │  └─ a document is broken: by another way; else again, after some failures
             │     from a baseline; if it vanished, discover what is offered now
             └─ nothing covers ──> baseline ──> pull
                                     └─ all that tells of the resources is too old as well:
                                        a hole is left open, and closed by a later baseline
"""

from __future__ import annotations

from collections.abc import Iterable

from rsnotify.errors import NotFound, RsnotifyError, TooLarge, Unavailable
from rsnotify.format.coverage import EARLIEST, Change
from rsnotify.format.datetimes import Instant, format_datetime
from rsnotify.format.model import Document, Resource
from rsnotify.format.offer import Offer
from rsnotify.format.timestamp_precision import postponed
from rsnotify.format.vocabulary import ChangeType
from rsnotify.plural import counted
from rsnotify.sync.actions import (
    Action,
    BeginBaseline,
    Compare,
    Discover,
    Fetch,
    ForgetDatetimes,
    LogNote,
    Sweep,
)
from rsnotify.sync.baseline import Baseline, ListedResources
from rsnotify.sync.change_intake import ChangeIntake
from rsnotify.sync.fallback_order import change_ways, resource_ways
from rsnotify.sync.frontiers import LEAP, SyncFrontiers
from rsnotify.sync.pace import Pace
from rsnotify.sync.pending_changes import PendingChanges
from rsnotify.sync.pull import Pull, PullStep
from rsnotify.sync.schedule import Schedule
from rsnotify.sync.unconfirmed import UnconfirmedChanges

#: How often in a row all resources are compared before a hole is left open. Twice, as the
#: Resource List may have been replaced by a newer one while it was read.
_BASELINES = 2
#: How much sooner than usual everything is compared after that has failed.
_SOONER = 24


class CatchUp:
    """The pulling half of a `Follower`.

    Args:
        offer: What the Source offers.
        knowledge: What is known, shared with the pushing half.
        worklist: Where changes are owed.
        provisional: What was pushed and no list has confirmed.
        actions: Where what is to be done is put.
        schedule: Where the next climb is put.
        pace: How much at once, and how often everything is compared.
        compared: When everything was compared last.
    """

    def __init__(
        self,
        offer: Offer,
        knowledge: SyncFrontiers,
        worklist: PendingChanges,
        provisional: UnconfirmedChanges,
        actions: list[Action],
        schedule: Schedule,
        pace: Pace,
        compared: float,
    ) -> None:
        self._offer = offer
        self._knowledge = knowledge
        self._worklist = worklist
        self._actions = actions
        self._schedule = schedule
        self._pace = pace
        self._intake = ChangeIntake(knowledge, worklist, provisional, pace)
        self._backwards = self._intake.backwards
        self._is_first = self._is_undated = True
        #: The time by the clock of the Source, as far as it has told that.
        self._today: Instant | None = None
        #: Where the Source's lists of changes begin and end, since its time has gone back.
        self._anew: tuple[Instant, Instant] | None = None
        self._pull: Pull | None = None
        self._baseline: Baseline | None = None
        self._walked: Document | None = None
        self._listed: ListedResources | None = None
        self._waiting: Fetch | Sweep | None = None
        self._baselines = 0
        self._need_baseline = False
        self._lag_tries = 0
        self._dump_is_new = False
        #: The Capability List under which everything was compared, or is just now.
        self._place = self._place_compared = offer.capability_list
        self._is_routine = self._has_compared = self._is_in_question = False
        self._next_comparison = compared + pace.compare
        self._still_listed: set[str] = set()
        #: When everything was compared last.
        self.compared = compared
        #: Whether the last climb came to its end, and nothing has cast doubt on that since.
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

    @property
    def is_behind(self) -> bool:
        """Whether the Change List ends before, or lacks, changes that it listed earlier."""
        return self._backwards.is_behind

    @property
    def offer(self) -> Offer:
        """What the Source was found to offer."""
        return self._offer

    @property
    def can_compare(self) -> bool:
        """Whether the Source tells of all its resources somewhere."""
        return bool(resource_ways(self._offer))

    def offered(self, offer: Offer, now: float) -> None:
        """Take what the Source offers now; it counts from the next climb on.

        A Resource Dump that was not offered before counts for a baseline that is under way.
        """
        before, self._offer = self._offer, offer
        new_lists = change_ways(offer) != change_ways(before)
        hole = self._knowledge.hole is not None
        if new_lists or (hole and resource_ways(offer) != resource_ways(before)):
            self._schedule.soon(now)
        if before.resource_dump is None and offer.resource_dump is not None:
            self._dump_is_new = True
        if self._has_moved:
            self.settled = False
            self._schedule.soon(now)

    @property
    def _has_moved(self) -> bool:
        """Whether the set is described elsewhere since everything was compared last.

        Its resources may have new URIs, of which no Change List tells.
        """
        return self._offer.capability_list not in (None, self._place) and self.can_compare

    def begin(self, now: float) -> None:
        """Begin a pull, or a baseline where only that helps."""
        self.settled = self._schedule.begun() and self.settled
        changes, resources = change_ways(self._offer), resource_ways(self._offer)
        if self._knowledge.known is None and not resources:
            # All there is to know is then what is told of changes.
            self._knowledge.skip(EARLIEST)
        pointless = self._knowledge.known is None or not changes
        needed = pointless or self._need_baseline or self._has_moved
        is_due, self._has_compared = self._is_comparison_due(now), False
        if resources and (needed or is_due):
            self._is_routine = not needed
            self._begin_baseline()
        elif changes:
            self._intake.begin(now)
            self._pull = Pull(self._offer, self._intake.packages)
            self._actions.append(self._pull.current)
        else:
            self._note("the Source offers nothing that can be followed", warning=True)
            self._actions.append(Discover())
            self._schedule.soon(now + self._pace.retry.most)

    def _is_comparison_due(self, now: float) -> bool:
        """Return whether everything has to be compared though no document shows a reason.

        Some Sources never list what they delete, other than by leaving it out of the Resource List.
        """
        due = max(self._next_comparison, self.compared + self._pace.compare)
        if self._is_in_question:
            due = min(due, self.compared + self._pace.repair)
        return now >= due and not self._has_compared

    def question(self) -> None:
        """Compare everything soon, as only that shows whether a resource is still listed."""
        self._is_in_question = True

    def check(self, now: float, when: float, *, everything: bool) -> None:
        """Begin, now or later, as something may be missing; only when none is under way.

        Args:
            now: The time.
            when: When to begin.
            everything: Whether not only what is told of changes is to be read.
        """
        self.settled = False
        self._need_baseline = everything
        self._schedule.soon(when)
        if when <= now:
            self.begin(now)

    def fetched(
        self, fetch: Fetch, document: Document, now: float, sent: Instant | None = None
    ) -> None:
        """Take a document that was asked for.

        Raises:
            DocumentError: It cannot be used.
        """
        self._today = sent or self._today
        if self._pull is not None and fetch is self._pull.current:
            step = self._pull.read(document, self._knowledge.frontier, sent)
            self._step(fetch, step, now)
        elif self._baseline is not None and fetch is self._baseline.current:
            self._listed = self._baseline.read(document, sent)
            if self._listed is None:
                self._walk_on(self._baseline, now)
            else:
                if self._is_undated and self._today is not None:
                    self._undate(self._listed.at)
                    self._is_undated = False
                self._actions.append(Compare(self._listed.resources, self._listed.at))

    def _undate(self, at: Instant) -> None:
        """Let no change of a wrong date outlive a crash that came before the progress over it.

        T may have waited for days while other changes were applied, so it is not enough to know.
        """
        latest = max(at, self._knowledge.known or EARLIEST, self._today or EARLIEST)
        self._actions.append(ForgetDatetimes(postponed(latest, LEAP)))

    def go_on(self) -> None:
        """Go on with a baseline or a dump once most of the last document is applied.

        So memory stays flat, and no more than two packages are needed at once. What failed is
        not waited for: it may have changed since the document was made, and only what comes
        after tells how.
        """
        if self._waiting is None:
            return
        if self._is_dump_better():
            self._change_over()
            return
        # Before another way is compared, all of the first is applied: it need not be fetched.
        anew = self._baseline is not None and self._waiting is self._baseline.way
        if self._worklist.untried <= (0 if anew else self._pace.in_flight):
            if isinstance(self._waiting, Fetch) and self._waiting.package is not None:
                self.settled = False  # it is not routine to be told something new
            self._actions.append(self._waiting)
            self._waiting = None

    def _is_dump_better(self) -> bool:
        """Whether a first copy is under way, resource by resource, and a dump has come since."""
        baseline = self._baseline
        if baseline is None or baseline.by_dump or not self._dump_is_new:
            return False
        first = self._knowledge.known is None
        return first and self._worklist.untried > self._pace.in_flight

    def _change_over(self) -> None:
        """Begin the baseline anew, by the dump; what was brought already need not be again."""
        self._note("the Source has a Resource Dump now, which is quicker")
        self._waiting = None
        self._worklist.forget()
        self._begin_baseline()

    # What fails

    def failed(self, fetch: Fetch, error: RsnotifyError, now: float) -> None:
        """Go on by another way, or end the climb, as a document could not be had or read."""
        asked = self._pull or self._baseline
        if asked is None or fetch is not asked.current:
            return
        self.settled = False
        is_new = str(error) != str(self.error)
        self._note(f"the {fetch.rung} could not be used: {error}", warning=is_new)
        if isinstance(error, NotFound):
            self._actions.append(Discover())
        if not self._is_hopeless(fetch, error):
            self._fail(error, now)
        elif self._pull is not None:
            self._step(fetch, self._pull.broken(error, self._knowledge.frontier), now)
        elif self._baseline is not None:
            self._baseline.broken(error)
            self._walk_on(self._baseline, now)

    def _is_hopeless(self, fetch: Fetch, error: RsnotifyError) -> bool:
        """Tell whether to look elsewhere rather than to try the same again.

        What tells of the past, packages, and what is too large are no better a moment later.
        What tells of the present may be; and where the Source is merely out of reach, so is all
        else.
        """
        tried = self.failures + 1 >= self._pace.baseline_after or isinstance(error, TooLarge)
        first = self._pull is not None and self._pull.at_first
        if isinstance(error, Unavailable):
            return tried and error.retry_after is None and not first
        return tried or fetch.package is not None or (self._pull is not None and not first)

    def _fail(self, error: RsnotifyError, now: float) -> None:
        if self._baseline is not None and self._is_routine:
            self._put_off_comparison(error, now)
            return
        self.failures += 1
        self.error = error
        self.settled = False
        if self._pull is not None and not isinstance(error, Unavailable):
            # After a few tries go where the truth is. Counted in doublings, so that a list
            # that stays broken does not cost a baseline each time.
            doublings = {self._pace.baseline_after << n for n in range(16)}
            too_large = isinstance(error, TooLarge) and self.failures == 1
            self._need_baseline = self._need_baseline or too_large or self.failures in doublings
        costly = 0.0
        by_dump = self._baseline is not None and self._baseline.by_dump and self._baseline.error
        if by_dump or isinstance(error, TooLarge):
            # What is large is not downloaded again and again where it is broken.
            costly = self._pace.poll * 2.0 ** min(self.failures, 16)
        self._pull = self._baseline = self._listed = self._waiting = None
        self._worklist.release()
        self._schedule.back_off(now, self.failures, error.retry_after, costly)

    def _put_off_comparison(self, error: RsnotifyError, now: float) -> None:
        """Go on with the lists of changes, which are enough unless they leave something out."""
        self._note(f"the copy could not be compared with the whole set: {error}", warning=True)
        self._next_comparison = now + self._pace.compare / _SOONER
        self._is_in_question = False
        self._baseline = self._listed = self._waiting = None
        self._still_listed.clear()
        self._worklist.release()
        self.begin(now)

    # Pull

    def _step(self, asked: Fetch, step: PullStep, now: float) -> None:
        if step.coverage is not None:
            present = self._pull is not None and self._pull.tells_present(asked)
            more = step.fetch is not None
            new = self._intake.take(asked, step.coverage, now, present=present, more=more)
            if new:
                self._note(f"{counted(new, 'change')} from the {asked.rung} {asked.uri}")
        if step.fetch is not None:
            self._ask(asked, step.fetch)
        elif step.failure is not None:
            self._fail(step.failure, now)
        elif step.hole is not None:
            self._pull = None
            self._worklist.release()
            self._fall_into_hole(step.hole)
            self.begin(now)
        else:
            if step.coverage is not None and step.coverage.closed and asked.package is None:
                self._actions.append(Discover())  # core §12.1: a closed list has a successor
            self._end_pull(now)

    def _ask(self, asked: Fetch, fetch: Fetch) -> None:
        if fetch.rung is not asked.rung:
            self.settled = False
            self._note(f"going on with the {fetch.rung} {fetch.uri}")
        if fetch.package is None:
            self._actions.append(fetch)
        else:
            self._worklist.release()
            self._waiting = fetch

    def _fall_into_hole(self, begins: Instant) -> None:
        """No document covers the time from what is confirmed until what there is begins."""
        self.settled = False
        after, before = format_datetime(self._knowledge.confirmed), format_datetime(begins)
        resources = resource_ways(self._offer)
        if not resources and self._knowledge.confirmed == EARLIEST:
            # A first copy of a Source that tells changes alone can begin nowhere else.
            self._note(f"the Source tells nothing of the time before {before}")
            self._knowledge.skip(begins)
        elif not resources:
            self._note(
                f"nothing tells of the time from {after} to {before}, and the Source offers no "
                "list of all its resources that could make up for it",
                warning=True,
            )
            self._knowledge.leave_open(begins)
        elif self._baselines < _BASELINES:
            self._note(f"nothing that tells of changes reaches back to {after}")
            self._need_baseline = True
        else:
            self._note(
                "what tells of all resources is older than what tells of changes, which begins "
                f"at {before}; a newer Resource List or Dump is waited for",
                warning=True,
            )
            self._knowledge.leave_open(begins)

    def _end_pull(self, now: float) -> None:
        self._pull = None
        self._intake.end(now)
        self._worklist.release()
        if self._backwards.has_gone_back(now) and not self._worklist.handed_out:
            self._step_back(now)
            return
        if self._is_first:
            self._is_first = False
            self._undate(EARLIEST)
        self._need_baseline = self._knowledge.hole is not None
        if not self._need_baseline:
            self._baselines = 0
        self._settle()
        if self._knowledge.gap:
            self._lag(now)
        else:
            self._lag_tries = 0
            self._poll_later(now)

    def _step_back(self, now: float) -> None:
        """Begin anew with what is held, as its instants tell nothing any more."""
        confirmed = self._knowledge.confirmed
        begins, ends = self._backwards.begins, self._backwards.ends
        assert begins is not None
        assert ends is not None
        how = f"its lists end at {format_datetime(ends)}, and told of {format_datetime(confirmed)}"
        if ends >= confirmed:
            how = "its lists lack what they told"
        self._note(
            f"the time of the Source has gone back: {how} before, so everything is compared",
            warning=True,
        )
        self.settled = False
        self._backwards.begin_anew(now)
        self._intake.forget()
        self._worklist.forget()
        self._need_baseline = bool(resource_ways(self._offer))
        self._baselines = 0
        self._anew = (begins, ends) if self._need_baseline else None
        self._knowledge.forget(None if self._need_baseline else begins)
        self._actions.append(ForgetDatetimes(begins, entirely=True))
        self.begin(now)

    def _settle(self) -> None:
        self.failures = 0
        self.error = None
        self.settled = not self._has_moved

    def _poll_later(self, now: float) -> None:
        news, self._intake.news = self._intake.news, False
        self._schedule.poll(now, news=news, anxious=self._knowledge.hole is not None)

    def _lag(self, now: float) -> None:
        """The lists do not reach what push announced: they lag behind it, or it lied."""
        self._lag_tries += 1
        if self._lag_tries <= self._pace.lag_tries:
            self._schedule.retry(now, self._lag_tries)
            return
        self._note("the hub announced changes that the Source's lists do not show", warning=True)
        self._knowledge.forget_announced()
        self._lag_tries = 0
        self._poll_later(now)

    # Baseline

    def _begin_baseline(self) -> None:
        known = self._knowledge.known
        self._dump_is_new = False
        begins, ends = self._anew or (None, None)
        # Who holds nothing needs everything, and a dump has it in one. Where the Resource List
        # did not fill a hole, a younger dump may.
        self._place_compared = self._offer.capability_list
        self._baseline = Baseline(
            self._offer,
            known or begins or EARLIEST,
            dump_first=(known is None and ends is None)
            or (self._need_baseline and self._baselines % 2 == 1),
            is_old=self._knowledge.covers,
            walked=self._walked,
            until=ends,
        )
        self._begin_way(self._baseline)
        self._actions.append(self._baseline.current)

    def _begin_way(self, baseline: Baseline) -> None:
        self._note(f"baseline from the {baseline.way.rung} {baseline.way.uri}")
        self._actions.append(BeginBaseline())
        self._is_undated = True

    def _walk_on(self, baseline: Baseline, now: float) -> None:
        following = baseline.next()
        if following is not None:
            if following is baseline.way:
                self._begin_way(baseline)
            self._waiting = following
        elif baseline.complete:
            self._waiting = Sweep(baseline.at)
        elif baseline.error is not None:
            self._fail(baseline.error, now)
        else:
            self._note(f"the {baseline.way.rung} tells nothing new")
            self._end_baseline(baseline, now)

    def differing(self, resources: Iterable[Resource], now: float) -> None:
        """Hear which resources of the last `Compare` are not held as they are listed."""
        listed, self._listed = self._listed, None
        if listed is None or self._baseline is None:
            return
        # What was changed or deleted since an older dump was made would come back from it.
        package = listed.package if listed.at >= self._knowledge.confirmed else None
        for resource in resources:
            if self._worklist.is_watched(resource.uri):
                self._still_listed.add(resource.uri)
                continue
            # No later than what is confirmed afterwards: only push brings what is later than that.
            at = min(listed.at, self._baseline.at)
            change = Change(resource.uri, ChangeType.UPDATED, at, resource, package)
            self._worklist.add(change, since=EARLIEST)
            self._intake.news = True
        self._walk_on(self._baseline, now)

    def missing(self, uris: Iterable[str], now: float) -> None:
        """Hear which resources of the last `Sweep` are held but not listed."""
        baseline = self._baseline
        if baseline is None:
            return
        for uri in uris:
            change = Change(uri, ChangeType.DELETED, baseline.at, Resource(uri))
            self._worklist.add(change, since=EARLIEST)
            self._intake.news = True
        self._intake.compared(baseline.at, now)
        if baseline.complete:
            is_settled = self._worklist.drop_unlisted(baseline.at, self._still_listed)
            self.compared = now
            self._is_in_question = not is_settled
            self._place = self._place_compared
            self._has_compared = True  # the lists of changes are next, however short the interval
        self._still_listed.clear()
        self._walked = baseline.walked or self._walked
        self._anew = None
        self._end_baseline(baseline, now)

    def _end_baseline(self, baseline: Baseline, now: float) -> None:
        self._baseline = None
        self._baselines += 1
        self._need_baseline = False
        fresher = baseline.by_dump and baseline.complete and self._offer.resource_list is not None
        if change_ways(self._offer) or fresher:
            self.begin(now)
        else:
            self._settle()
            self._poll_later(now)

    def _note(self, text: str, *, warning: bool = False) -> None:
        self._actions.append(LogNote(text, warning))
