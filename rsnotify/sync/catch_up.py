"""Catches up from the Source's documents, with one pull or baseline at a time.

    idle        due ──> PullRun; BaselineRun if a comparison is due, or only that helps
    PullRun     complete ──> idle
                no document covers the changes ──> BaselineRun; if that does not help, the gap stays
                  uncovered until a later baseline ──> idle
                failed ──> idle, then a retry with backoff; after some failures, BaselineRun
    BaselineRun complete ──> PullRun
                failed ──> idle, then a retry with backoff

If a document is unavailable or unreadable, the run reads other documents or fails, depending on the
document (`FailurePolicy`). Documents of past changes are abandoned at once, documents of the
present only after some attempts. The changes read before a failure are kept. While the Change List
itself is broken, the other documents are read instead, and everything is compared from time to
time. When a document has vanished, the Capability List is reread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rsnotify.errors import NotFound, RsnotifyError, TooLarge, Unavailable
from rsnotify.format.coverage import EARLIEST
from rsnotify.format.datetimes import Instant, format_datetime, postponed
from rsnotify.format.model import Document, Resource
from rsnotify.format.offer import Offer
from rsnotify.sync.actions import Compare, Discover, Fetch, ForgetDatetimes
from rsnotify.sync.baseline import BaselinePolicy, BaselineRun, ComparisonSchedule
from rsnotify.sync.change_intake import ChangeIntake
from rsnotify.sync.frontiers import LONGEST_LEAP
from rsnotify.sync.pace import Pace
from rsnotify.sync.pull import Pull, PullRun, PullStep, change_documents, resource_documents
from rsnotify.sync.sync_state import SyncState

#: Maximum number of times that a wait doubles.
_MAX_DOUBLINGS = 16


class FailurePolicy:
    """Counts consecutive failures to catch up, and decides how to react."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        #: Number of consecutive failures to read the Source's lists, and the last error.
        self.count = 0
        self.error: RsnotifyError | None = None
        #: When the first of these failures occurred.
        self.since = 0.0

    def is_lasting(self, fetch: Fetch, error: RsnotifyError, pull: Pull | None) -> bool:
        """Return whether to try other documents instead of the same one again.

        A retry does not help with past changes, packages, and documents that are too large, but may
        help with the latest changes. If the Source is unreachable, so are its other documents.
        `pull` is None for a baseline.
        """
        if pull is not None and pull.is_optional:
            return True
        is_tried = self.count + 1 >= self._pace.baseline_after or isinstance(error, TooLarge)
        at_first = pull is not None and pull.at_first
        if isinstance(error, Unavailable):
            return is_tried and error.retry_after is None and not at_first
        return is_tried or fetch.package is not None or (pull is not None and not at_first)

    def record(self, error: RsnotifyError, now: float) -> None:
        if not self.count:
            self.since = now
        self.count += 1
        self.error = error

    def needs_baseline(self) -> bool:
        """Return whether to compare everything, because changes have been unreadable for too long.

        This happens each time the number of failures has doubled, so that a list that stays broken
        does not cause a baseline with each attempt.
        """
        if isinstance(self.error, Unavailable):
            return False
        is_too_large = isinstance(self.error, TooLarge) and self.count == 1
        doublings = {self._pace.baseline_after << n for n in range(_MAX_DOUBLINGS)}
        return is_too_large or self.count in doublings

    def least_delay(self, *, is_dump: bool) -> float:
        """Return the minimum backoff, so that large documents are not downloaded repeatedly."""
        if not (is_dump or isinstance(self.error, TooLarge)):
            return 0.0
        return self._pace.poll * 2.0 ** min(self.count, _MAX_DOUBLINGS)

    def reset(self) -> None:
        self.count = 0
        self.error = None


class CatchUp:
    """The pulling half of a `Follower`."""

    def __init__(self, offer: Offer, state: SyncState, compared: float) -> None:
        self.offer = offer
        self._state = state
        self._intake = ChangeIntake(state)
        self._policy = BaselinePolicy(state)
        #: The run in progress; None while idle.
        self.run: PullRun | BaselineRun | None = None
        self._has_pulled = False
        self._lag_tries = 0
        #: Whether the copy has lost resources, and a list must show what they should contain.
        self._has_lost = False
        #: Whether a pull has failed after it had reread some closed lists. Their entries wait for
        #: the next complete pull, because later lists may supersede them, or for a baseline.
        self.is_incomplete = False
        #: Whether a comparison for lost resources has failed, and none has succeeded since.
        self.lacks_comparison = False
        #: When anything new was last found or applied, or when the follower started.
        self.news_at = 0.0
        #: The last known time of the Source's clock.
        self._source_time: Instant | None = None
        self.failures = FailurePolicy(state.pace)
        self.comparisons = ComparisonSchedule(state.pace, compared, offer.capability_list)
        if state.frontiers.has_older_list:
            self.comparisons.expedite()

    @property
    def began(self) -> float:
        """When the current or last run began."""
        return self._intake.requested

    @property
    def is_behind(self) -> bool:
        """Whether the Change List or Change Dump lacks changes that it listed before."""
        return self._intake.clock.is_behind

    @property
    def can_compare(self) -> bool:
        """Whether the Source offers a document that lists all its resources."""
        return bool(resource_documents(self.offer))

    @property
    def _has_moved(self) -> bool:
        """Whether the URI of the Capability List has changed since the last comparison.

        If so, resources may have new URIs that no Change List contains.
        """
        known = (None, self.comparisons.capability_list)
        return self.offer.capability_list not in known and self.can_compare

    def set_offer(self, offer: Offer, now: float) -> None:
        """Use the Source's current offer, beginning with the next pull or baseline.

        A first copy in progress may switch to a newly offered Resource Dump.
        """
        before, self.offer = self.offer, offer
        schedule = self._state.schedule
        has_new_lists = change_documents(offer) != change_documents(before)
        has_gap = self._state.frontiers.uncovered_gap is not None
        if has_new_lists or (has_gap and resource_documents(offer) != resource_documents(before)):
            schedule.catch_up_by(now)
        has_new_dump = before.resource_dump is None and offer.resource_dump is not None
        if has_new_dump and isinstance(self.run, BaselineRun):
            self.run.has_new_dump = True
        elif has_new_dump and self._state.frontiers.is_first and self._state.is_much_pending:
            self._state.frontiers.reset()
            self._intake.reset()
            self._begin_with_dump()
        if self._has_moved:
            self._state.settled = False
            schedule.catch_up_by(now)

    # Starting a run

    def begin(self, now: float) -> None:
        """Begin a pull, or a baseline if it is due or needed. Wait if no read is allowed yet."""
        state, frontiers = self._state, self._state.frontiers
        if not state.schedule.may_begin(now):
            return
        self._intake.requested = now
        state.settled = state.schedule.begin() and state.settled
        has_changes = bool(change_documents(self.offer))
        if frontiers.known is None and not self.can_compare:
            # The Source offers only lists of changes.
            frontiers.advance(EARLIEST)
        is_forced = frontiers.known is None or self._policy.needed or self._has_moved
        is_needed = is_forced or not has_changes
        is_due = self.comparisons.is_due(now) or self._has_lost
        if self.can_compare and (is_needed or is_due):
            self.comparisons.begin(now, is_forced=is_forced)
            skips_index = is_needed and self.comparisons.is_recent(now)
            self._begin_baseline(is_routine=not is_needed, skips_index=skips_index)
        elif has_changes:
            self.run = PullRun(state, self._intake, self.offer)
        else:
            state.actions.note("the Source offers no documents to follow", warning=True)
            state.actions.append(Discover())
            state.schedule.catch_up_by(now + state.pace.retry.most)

    def check(self, now: float, when: float, *, everything: bool) -> None:
        """Schedule a run at `when`, because changes may be missing. Call this only while idle."""
        self._state.settled = False
        self._policy.needed = everything
        self._state.schedule.catch_up_by(when)
        if when <= now:
            self.begin(now)

    @property
    def is_comparing(self) -> bool:
        """Whether a comparison with the whole set is in progress or about to begin."""
        return isinstance(self.run, BaselineRun) or self._has_lost

    def compare_lost(self, now: float) -> None:
        """Schedule a full comparison, because the server does not have the lost content.

        If the Source lists only changes, the copy is compared with the next Change List.
        """
        self._state.settled = False
        self._has_lost = self.can_compare
        if not self.can_compare:
            self._intake.compare_next_list()
        self._state.schedule.catch_up_by(now)

    def proceed(self) -> None:
        """Request the next document, if most of the last one is applied."""
        run = self.run
        if isinstance(run, BaselineRun) and run.is_dump_better:
            self._begin_with_dump()
        if self.run is not None:
            self.run.proceed()

    def _begin_with_dump(self) -> None:
        """Restart a first copy with the dump. It does not fetch any content twice."""
        self._state.actions.note("the Source now offers a Resource Dump, which is faster")
        self._state.pending.drop_waiting()
        self._begin_baseline(is_routine=False)

    # Documents

    def fetched(
        self, fetch: Fetch, document: Document, now: float, sent: Instant | None = None
    ) -> None:
        """Use a requested document, or raise `DocumentError` if it is unusable."""
        self._source_time = sent or self._source_time
        run = self.run
        if run is None or fetch is not run.current:
            return
        if isinstance(run, PullRun):
            self._end_pull(run.read(document, now, sent), now)
            return
        listed = run.read(document, sent)
        if listed is None:
            self._advance(run, now)
            return
        at = min(listed.at, run.baseline.at)  # the datetime of the differences
        if not run.are_datetimes_checked and self._source_time is not None:
            self._forget_wrong_datetimes(at)
            run.are_datetimes_checked = True
        lost, packaged = not run.is_repeated, listed.package is not None
        self._state.actions.append(Compare(listed.resources, at, lost, packaged))

    def failed(self, fetch: Fetch, error: RsnotifyError, now: float) -> None:
        """Read other documents or retry later, because one is unavailable or unreadable."""
        run = self.run
        if run is None or fetch is not run.current:
            return
        is_new = str(error) != str(self.failures.error)
        self._state.actions.note(f"the {fetch.kind} could not be used: {error}", warning=is_new)
        if isinstance(error, NotFound):
            self._state.actions.append(Discover())
        pull = run.pull if isinstance(run, PullRun) else None
        if not self.failures.is_lasting(fetch, error, pull):
            self._fail(error, now)
        elif isinstance(run, PullRun):
            self._end_pull(run.abandon(error, now), now)
        else:
            run.baseline.skip(error)
            self._advance(run, now)

    def _fail(self, error: RsnotifyError, now: float) -> None:
        run, self.run = self.run, None
        if isinstance(run, PullRun) and run.pull.is_rereading:
            self.is_incomplete = True
        if isinstance(run, BaselineRun) and run.has_lost:
            self.lacks_comparison = True
        baseline = run.baseline if isinstance(run, BaselineRun) else None
        is_tried = self.failures.count + 1 >= self._state.pace.baseline_after
        is_passing = isinstance(error, Unavailable) and not is_tried
        is_awaited = self.comparisons.awaits_list and is_passing
        if isinstance(run, BaselineRun) and run.is_routine and not is_awaited:
            # The lists of changes are enough, unless they are incomplete.
            text = f"the copy could not be compared with the whole set: {error}"
            self._state.actions.note(text, warning=True)
            self.comparisons.put_off(now)
            self.begin(now)
            return
        self._state.settled = False
        self.failures.record(error, now)
        if baseline is None and self.failures.needs_baseline():
            self._policy.needed = True
        is_dump = baseline is not None and baseline.by_dump and baseline.error is not None
        least = self.failures.least_delay(is_dump=is_dump)
        self._state.schedule.back_off(now, self.failures.count, error.retry_after, least)

    def _forget_wrong_datetimes(self, at: Instant) -> None:
        """Forget stored datetimes that are later than the Source's current time.

        An earlier run may have stored them and crashed before T passed them. T is no limit, because
        it may have waited for days while later changes were applied. Without any T, the Source's
        clock may have gone back since they were stored.
        """
        frontiers = self._state.frontiers
        if frontiers.known is not None or frontiers.last_list is not None:
            known = max(at, frontiers.known or EARLIEST, self._source_time or EARLIEST)
            at = postponed(known, LONGEST_LEAP)
        self._state.actions.append(ForgetDatetimes(at))

    # The end of a pull

    def _end_pull(self, step: PullStep | None, now: float) -> None:
        if step is None:
            return
        if step.failure is not None:
            self._fail(step.failure, now)
            return
        self.run, self.is_incomplete = None, False
        if step.gap_ends is not None:
            can_compare = self.can_compare
            self._policy.handle_gap(step.gap_ends, can_compare=can_compare, cure=step.cure)
            self.begin(now)
            return
        state, frontiers = self._state, self._state.frontiers
        self._intake.end(now, self._source_time)
        if self._intake.clock.has_gone_back(now) and not state.pending.in_flight:
            self._restart(now)
            return
        if not self._has_pulled:
            self._has_pulled = True
            self._forget_wrong_datetimes(EARLIEST)
        self._policy.pull_ended()
        if self.comparisons.awaits_list and self.can_compare:
            self.failures.reset()
            self.begin(now)
            return
        self._settle(now)
        if not (frontiers.has_push_gap and self._retry_lagging_lists(now)):
            self._lag_tries = 0
            self._poll_later(now)

    def _restart(self, now: float) -> None:
        """Compare everything with the copy, because stored datetimes prove nothing."""
        state, clock = self._state, self._intake.clock
        confirmed = state.frontiers.confirmed
        begins, ends = clock.begins, clock.ends
        assert ends is not None
        reason = "its lists lack changes that they had before"
        if ends < confirmed:
            last, before = map(format_datetime, (ends, confirmed))
            reason = f"its lists end at {last}, but reached {before} before"
        state.actions.note(
            f"the clock of the Source has gone back: {reason}; comparing everything",
            warning=True,
        )
        state.settled = False
        clock.reset(now)
        self._intake.reset()
        state.pending.drop_waiting()
        self._policy.restart(begins, ends, can_compare=self.can_compare)
        state.actions.append(ForgetDatetimes(begins, entirely=True))
        self.begin(now)

    def _settle(self, now: float) -> None:
        self.failures.reset()
        is_overdue = self._state.schedule.is_overdue(now)
        self._state.settled = not (self._has_moved or self._has_lost or is_overdue)

    def _poll_later(self, now: float) -> None:
        news, self._intake.has_news = self._intake.has_news, False
        if news:
            self.news_at = now
        has_gap = self._state.frontiers.uncovered_gap is not None
        self._state.schedule.poll_later(now, news=news, push_is_enough=not has_gap)

    def _retry_lagging_lists(self, now: float) -> bool:
        """Schedule another read of lists that lag behind push.

        Return False after the last attempt, because push has announced a false change.
        """
        self._lag_tries += 1
        if self._lag_tries <= self._state.pace.lag_tries:
            self._state.schedule.retry_soon(now, self._lag_tries)
            return True
        text = "the hub announced changes that the Source's lists do not contain"
        self._state.actions.note(text, warning=True)
        self._state.frontiers.held.clear()
        return False

    # Baseline

    def _begin_baseline(self, *, is_routine: bool, skips_index: bool = False) -> None:
        has_lost = self._has_lost or self.lacks_comparison
        reads_old = self._has_moved or has_lost
        baseline = self._policy.new_baseline(
            self.offer, reads_old=reads_old, skips_index=skips_index and not reads_old
        )
        place = self.offer.capability_list
        self.run = BaselineRun(
            self._state,
            self._intake,
            baseline,
            place,
            is_routine=is_routine,
            has_lost=has_lost,
            has_moved=self._has_moved,
            dump_at=self._policy.dump_at,
        )
        self._has_lost = self.is_incomplete = False

    def _advance(self, run: BaselineRun, now: float) -> None:
        if run.advance():
            return
        if run.baseline.error is not None:
            self._fail(run.baseline.error, now)
        else:
            self._state.actions.note(f"the {run.baseline.root.kind} contains nothing new")
            self._record_age(run)
            if not run.baseline.is_index_skipped:
                is_settled = not self._state.pending.watched
                self.comparisons.done(now, run.capability_list, is_settled=is_settled)
            self._end_baseline(run, now)

    def add_differing(
        self,
        resources: Iterable[Resource],
        absent: Iterable[Resource],
        now: float,
        unproven: Sequence[Resource],
        checkable: Sequence[Resource],
        undecided: Iterable[Resource],
    ) -> None:
        """Add the resources of the last `Compare` that the copy stores differently or lacks."""
        run = self.run
        if not isinstance(run, BaselineRun):
            return
        requested, left = self.comparisons.unproven_requests(
            unproven, checkable, has_content=run.is_in_package
        )
        if run.add_differing(resources, absent, requested, left, undecided):
            self._advance(run, now)

    def add_unlisted(self, uris: Iterable[str], undecided: Iterable[str], now: float) -> None:
        """Delete the resources that the last `FindUnlisted` has found."""
        run = self.run
        if not isinstance(run, BaselineRun):
            return
        baseline = run.baseline
        is_made_of_dump = baseline.by_dump and self._state.frontiers.known is None
        has_list = self.offer.resource_list is not None and baseline.error is None
        is_settled = run.add_unlisted(uris, undecided, now)
        self._record_age(run)
        is_settled = is_settled and not self._state.frontiers.has_older_list
        if baseline.complete:
            self.comparisons.done(
                now,
                run.capability_list,
                is_settled=is_settled,
                awaits_list=is_made_of_dump and has_list,
            )
        self._policy.compared(run.baseline)
        self._end_baseline(run, now)

    def _record_age(self, run: BaselineRun) -> None:
        if not change_documents(self.offer):
            run.record_age(has_list=self.offer.resource_list is not None)

    def _end_baseline(self, run: BaselineRun, now: float) -> None:
        self.run, baseline = None, run.baseline
        if run.has_lost:
            self.lacks_comparison = not baseline.complete
        self._policy.baseline_ended()
        has_list = baseline.by_dump and baseline.complete and self.offer.resource_list is not None
        if change_documents(self.offer) or has_list:
            if run.has_found:
                self._state.settled = False  # the documents read next may contradict it
            self.begin(now)
        else:
            self._intake.end(now, self._source_time)
            self._settle(now)
            self._poll_later(now)
