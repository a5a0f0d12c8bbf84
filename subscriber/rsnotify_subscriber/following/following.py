"""The I/O around a `Follower`: performs its actions, and reports the results to it.

    event ──> `Follower` ──actions──> `_perform` ──> worker, `Applier`, `Fetcher` ──result──> event

The follower is called only on the event loop, and never recursively, so it needs no lock. Calls
that block on the disk run in a worker, one at a time, in the order of the actions.

A run also rereads the Source's offer (`Rediscovery`), and saves progress that advanced without a
change being applied (`ProgressSaver`). A run that only catches up ends when the copy is level or
cannot become level with the Source's present documents (`can_end`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import inf
from random import Random
from typing import Any

from msgspec.structs import replace

from rsnotify.errors import (
    FetchError,
    NotCopied,
    RsnotifyError,
    StorageError,
    TooLarge,
    Unavailable,
    counted,
    without_credentials,
)
from rsnotify.format.coverage import Change
from rsnotify.format.datetimes import Instant
from rsnotify.format.model import ChangeType, Document
from rsnotify.format.offer import Offer
from rsnotify.runtime.reasons import reason_of
from rsnotify.runtime.tasks import Tasks, call_in, settle, wait_for_event
from rsnotify.sync.actions import (
    Action,
    Apply,
    BacklogAction,
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
from rsnotify.sync.doubts import DoubtKind, describe_undated
from rsnotify.sync.follower import Follower
from rsnotify.sync.progress import Progress
from rsnotify.sync.pull import change_documents, resource_documents
from rsnotify_subscriber.content.packages import DumpPackages
from rsnotify_subscriber.content.resolver import ContentResolver
from rsnotify_subscriber.discovery.set_membership import SetMembership
from rsnotify_subscriber.events import BEHIND_AFTER, EventWatch, OfferChanged
from rsnotify_subscriber.following.applier import Applier
from rsnotify_subscriber.following.copy_check import CopyCheck
from rsnotify_subscriber.following.push_monitor import PushChannels, RunContext
from rsnotify_subscriber.handlers import ReadableHandler, deferred_handler
from rsnotify_subscriber.status import ActivityKind, Status, StatusCounters, SyncActivity
from rsnotify_subscriber.storage.baseline_tables import UNSETTLED_INTERVAL
from rsnotify_subscriber.storage.identity import Identity, incomparable

logger = logging.getLogger("rsnotify.subscriber")

#: Seconds between two reads of the offer.
_OFFER_INTERVAL = 600.0
#: Number of attempts to read the lists before catching up fails.
_MAX_LIST_ATTEMPTS = 5
#: The same if a list is too large, which a retry rarely changes.
_MAX_ATTEMPTS_IF_TOO_LARGE = 2


def can_end(follower: Follower, now: float) -> bool:
    """Return whether a run that only catches up is level or cannot become level."""
    failures = follower.failures
    is_too_large = isinstance(failures.error, TooLarge)
    attempts = _MAX_ATTEMPTS_IF_TOO_LARGE if is_too_large else _MAX_LIST_ATTEMPTS
    return follower.level or failures.count >= attempts or follower.is_stuck(now)


def final_error(
    follower: Follower,
    identity: Identity,
    doubts: Mapping[str, str],
    errors: Mapping[str, RsnotifyError],
) -> RsnotifyError | None:
    """Return the error of a run that has ended without success, or None.

    Both mappings are keyed by URI. `doubts` says why the copy may be wrong although the follower is
    level, and `errors` why changes could not be applied.
    """
    if follower.level:
        return next((Unavailable(*doubt) for doubt in doubts.items()), None)
    if follower.failures.count:
        return follower.failures.error
    failing = follower.state.pending.failing()
    if not failing:
        if (gap := follower.state.frontiers.uncovered_gap) is None:
            return Unavailable(identity.url, follower.doubts[0])
        remedy = gap.cure or _remedy(identity)
        return Unavailable(identity.url, f"its lists have a gap; {remedy}")
    uris = [change.resource.uri for change in failing]
    error = errors.get(failing[0].uri)
    reason = error.reason if isinstance(error, FetchError) else str(error)
    return NotCopied(uris, reason.removeprefix(f"{uris[0]}: "))


def _remedy(identity: Identity) -> str:
    if resource_documents(identity.offer):
        return "the gap closes once the Resource List is newer than the oldest Change List"
    return (
        "the Source offers no list of all its resources, so the gap cannot be closed, and the copy "
        "may stay different; remove its state to start again from the current documents"
    )


@dataclass
class Rediscovery:
    """Reads the offer at intervals and on request, and stores it if it has changed.

    Args:
        on_changed: Called with the offers before and after a change.
        on_finished: Called after each read.

    Attributes:
        identity: The Source and its last known offer.
        doubt: Why the offer may be outdated; empty after a successful read.
    """

    context: RunContext
    tasks: Tasks
    on_changed: Callable[[Offer, Offer], None]
    on_finished: Callable[[], None]
    _reading: asyncio.Task[None] | None = field(default=None, init=False)
    #: Whether a read has failed since `run` last waited.
    _failed: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def __post_init__(self) -> None:
        is_checked = self.context.offer_checked
        self.identity = self.context.identity
        self.doubt = "" if is_checked else "the Source's offer has not been read yet"

    @property
    def is_reading(self) -> bool:
        return self._reading is not None

    def start(self) -> asyncio.Task[None]:
        """Read the offer in a task, unless a read is in progress. Return the task."""
        if self._reading is None:
            self._reading = self.tasks.spawn(self._read())
        return self._reading

    async def run(self) -> None:
        """Read the offer at intervals, and sooner after a failure."""
        failures, retry, random = 0, self.context.options.pace.retry, Random()
        while True:
            if not self.doubt:
                failures = 0
                # A read on request may fail during the wait.
                await wait_for_event(self._failed, _OFFER_INTERVAL)
            if self._failed.is_set():
                failures += 1
                self._failed.clear()
                await asyncio.sleep(retry.delay(failures, random))
            await asyncio.wait({self.start()})

    async def _read(self) -> None:
        before, offers = self.identity, self.context.offers
        try:
            offer = await offers.revalidate(before.offer)
        except RsnotifyError as error:
            self.doubt = f"the Source's offer could not be checked: {error}"
            self._failed.set()
            logger.info("%s", self.doubt)
        else:
            if offer != before.offer:
                self.identity = replace(before, offer=offer, memory=offers.memory)
                store = self.context.state.store_identity
                await call_in(self.context.worker, store, self.identity)
                self.on_changed(before.offer, offer)
            # Not earlier: until it has the new offer, the follower may be level by old documents.
            self.doubt = ""
            self._failed.clear()
        self._reading = None
        self.on_finished()


#: Minimum time between two saves of the comparison time: digests may arrive every few seconds.
_COMPARED_SAVE_INTERVAL = timedelta(minutes=1)
#: Seconds between two flushes of changes that a handler has applied but not flushed.
_FLUSH_INTERVAL = 5.0


class ProgressSaver:
    """Stores T, and the time when the copy was last compared with the whole set.

    Attributes:
        compared: When the copy was last compared, by the local clock.
        has_compared: Set after each comparison, so that its time is saved at once. The next run
            then knows how recent the copy is even if this process is killed.
    """

    def __init__(self, context: RunContext, follower: Follower) -> None:
        self._state = context.state
        self._flushes = context.announce.counters.flushes
        self._worker = context.worker
        self._follower = follower
        self._saved = self._committing = self._state.progress()
        self.compared = self._stored_compared = self._state.compared()
        self._last_seen_compared = follower.catch_up.comparisons.compared
        self._deferred = deferred_handler(context.handler)
        self._flushed_at = -inf
        self.has_compared = asyncio.Event()

    def progress_after(self, changes: Sequence[Change]) -> Progress | None:
        """Return the progress to commit together with changes; None if it has not advanced."""
        self._committing = self._follower.progress_after(changes)
        return None if self._committing == self._saved else self._committing

    def committed(self) -> None:
        """Record that the last result of `progress_after` was committed."""
        self._saved = self._committing

    def forget(self) -> None:
        """Record that the stored progress was deleted."""
        self._saved = self._committing = None

    def check_compared(self) -> None:
        """Record the current time if the follower has compared the copy since the last call."""
        compared = self._follower.catch_up.comparisons.compared
        if compared != self._last_seen_compared:
            self._last_seen_compared = compared
            self.compared = datetime.now(UTC)
            self.has_compared.set()

    async def save(self, applier: Applier, *, is_ending: bool) -> None:
        """Store what has changed, but the time of a comparison only if that is due.

        While the applier is applying changes, progress is not stored here, because the applier
        commits later progress together with the changes.
        """
        progress, before = self._follower.progress, self._saved
        if not applier.is_applying and progress is not None and progress != before:
            await call_in(self._worker, self._state.save_progress, progress)
            if self._saved is before:  # otherwise, later progress was committed, or it was deleted
                self._saved = progress
        if self.compared is not None and self._is_due(self.compared, is_ending=is_ending):
            self._stored_compared = self.compared
            await call_in(self._worker, self._state.store_compared, self.compared)
        await self._flush(is_ending=is_ending)
        if not applier.is_applying and self._state.contents.has_flushed:
            await call_in(self._worker, self._state.delete_flushed)

    async def _flush(self, *, is_ending: bool) -> None:
        """Flush applied changes. Others may be applied at the same time."""
        contents, loop = self._state.contents, asyncio.get_running_loop()
        is_due = is_ending or loop.time() - self._flushed_at >= _FLUSH_INTERVAL
        if self._deferred is None or contents.is_flushed or not is_due:
            return
        last, began = contents.last, loop.time()
        try:
            await asyncio.to_thread(self._deferred.flush)
        except OSError as error:
            raise StorageError(f"{error.filename or 'the copy'}: {reason_of(error)}") from error
        contents.set_flushed(last)
        self._flushed_at = loop.time()
        self._flushes.add(self._flushed_at - began)

    def _is_due(self, compared: Instant, *, is_ending: bool) -> bool:
        stored = self._stored_compared
        # If the clock was set back, the difference is negative.
        return (
            stored is None
            or is_ending
            or not timedelta() <= compared - stored <= _COMPARED_SAVE_INTERVAL
        )


#: Seconds between two saves of progress that advanced without a change being applied.
_SAVE_INTERVAL = 1.0
#: Seconds that a handler has to finish its call when the subscriber stops.
_STOP_TIMEOUT = 10.0


class Following:
    """One run of a subscriber. Not reusable."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._state = state = context.state
        self._counters = StatusCounters(context.announce.counters)
        self._events = EventWatch(context.announce, self._counters)
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._tasks = Tasks(self._end)
        identity, options = context.identity, context.options
        progress = state.progress()
        self._follower = Follower(
            identity.offer,
            progress,
            pace=options.pace,
            random=Random(),
            compared=self._to_loop_time(state.compared()),
            pushed=state.changed_after(progress.confirmed) if progress is not None else (),
            last_list=state.last_list(),
            incomparable=incomparable(identity),
        )
        self._saver = ProgressSaver(context, self._follower)
        self._packages = DumpPackages(context.fetcher)
        content = ContentResolver(
            context.fetcher,
            prefer=options.prefer,
            exact=options.exact,
            patches=options.patches,
            packages=self._packages,
            holding=context.handler if isinstance(context.handler, ReadableHandler) else None,
            adopt=options.adopt,
        )
        self._applier = Applier(
            content,
            state,
            context.handler,
            self,
            context.worker,
            self._tasks,
            identity.selection,
            options.pace.retry,
        )
        state.commit_times = context.announce.counters.commits
        #: The document being fetched, the start time, and the bytes received before.
        self._reading: tuple[Fetch, float, int] | None = None
        #: Whether there was no copy at the start.
        self._is_first = progress is None
        #: Number of selected resources that the current or last baseline has listed so far.
        self._listed = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due: float | None = None
        self._push = PushChannels(context, self._follower, self._perform)
        self._rediscovery = Rediscovery(context, self._tasks, self._offer_changed, self._tick)
        self._errors: dict[str, RsnotifyError] = {}
        self._has_checked_selection = False
        #: Whether resources with doubts about their content, if any, were requested once.
        self._has_read_doubts = bool(identity.prefer)
        self._membership = SetMembership(
            context.fetcher, context.offers.descriptions, identity.url, state.links()
        )
        self._copy = CopyCheck(context, self._follower, self._perform, self._errors)

    @property
    def status(self) -> Status:
        follower, progress = self._follower, self._follower.progress
        # Report failures of the Source's lists first, and failures of push last.
        unreadable = follower.failures.error if follower.failures.count else None
        unavailable, _ = self._applier.unavailable or (None, 0.0)
        failed = unavailable or next(iter(self._errors.values()), None)
        error = unreadable or failed or self._push.changes.error
        doubts = {} if follower.level else follower.doubts_by_kind
        doubts |= self._local_doubts()
        return Status(
            resources=self._state.resources,
            applied=self._counters.applied,
            copied=self._counters.copied,
            pending=follower.pending,
            through=progress.through if progress else None,
            lag_ms=self._counters.lag_ms(),
            lag_p99_ms=self._counters.lag_p99_ms(),
            push=self._push.state,
            way=self._push.changes.hubs,
            unconfirmed=len(follower.state.unconfirmed),
            level=self._is_level,
            doubts=tuple(doubts.values()),
            doubt_kinds=tuple(doubts),
            behind_since=self._context.announce.behind_since,
            limits=tuple(self._limits()),
            damaged=self._copy.damaged,
            verified=self._copy.verified,
            foreign=self._copy.foreign,
            foreign_files=self._copy.foreign_files,
            compared=self._saver.compared,
            baseline=follower.baselining,
            in_step=follower.in_step,
            difference=follower.difference or None,
            error=None if error is None else str(error),
            received=self._context.fetcher.received,
            activity=self._activity,
            source=self._rediscovery.identity.offer.uri,
        )

    @property
    def _activity(self) -> SyncActivity | None:
        """The current activity, or None if it is too short to report."""
        follower, untried = self._follower, self._follower.state.untried
        received = self._context.fetcher.received
        is_waiting = follower.state.pending.is_holding or not untried  # for the current document
        if self._reading is not None and is_waiting and not self._is_level:
            fetch, since, before = self._reading
            is_first, done = follower.baselining and not self._listed, received - before
            if is_first or self._loop.time() - since >= BEHIND_AFTER:
                if fetch.package is None:
                    return SyncActivity(ActivityKind.READING, str(fetch.kind), bytes=done)
                total = fetch.package.length
                return SyncActivity(ActivityKind.DOWNLOADING, "", done, total, bytes=received)
        is_first = self._is_first and not self._events.was_level
        if follower.baselining:
            kind = ActivityKind.COPYING if is_first else ActivityKind.COMPARING
            share = follower.share_listed
            total = None if share is None else round(self._listed / share)
            done = max(0, self._listed - follower.pending)
            return SyncActivity(kind, "", done, total, share != 1, received)
        is_estimate = follower.state.pending.is_holding
        if is_first and untried:
            done = self._state.resources
            total = done + follower.pending
            return SyncActivity(ActivityKind.COPYING, "", done, total, is_estimate, received)
        if self._copy.verified is not None:
            verified, held = self._copy.verified, self._state.resources
            return SyncActivity(ActivityKind.VERIFYING, "", verified, held, bytes=received)
        if untried and (before_behind := self._events.behind_from) is not None:
            done = self._counters.applied - before_behind
            return SyncActivity(
                ActivityKind.CATCHING_UP, "", done, done + untried, is_estimate, received
            )
        return None

    @property
    def _is_level(self) -> bool:
        return self._follower.level and not self._local_doubt

    @property
    def _local_doubt(self) -> str:
        """A doubt about this copy that the follower does not know; empty if there is none."""
        return next((reason for _, reason in self._local_doubts()), "")

    def _local_doubts(self) -> Iterator[tuple[DoubtKind, str]]:
        if (self._state.lost or not self._copy.has_compared) and (reason := self._copy.doubt):
            yield DoubtKind.FILES, reason
        if self._rediscovery.doubt:
            yield DoubtKind.OFFER, self._rediscovery.doubt
            return
        for uri, reason in self._state.doubts.items():
            count = len(self._state.doubts) - 1
            more = f" and {count} more" if count else ""
            yield DoubtKind.CONTENT, f"{without_credentials(uri)}{more}: {reason}"
            return

    def _limits(self) -> Iterator[str]:
        """Yield sentences about changes that the Source's lists cannot reveal."""
        counts, kept = self._state.counts, self._state.baseline.trusts_dates
        if count := counts.undated if kept else counts.unhashed:
            offer = self._rediscovery.identity.offer
            unlisted = " that no Change List lists" if change_documents(offer) else ""
            entries = describe_undated(count, counts.entries, are_dates_kept=kept)
            yield (
                f"{entries}; changed content{unlisted} is not detected until each of them is "
                "requested again"
            )
        if count := len(self._state.baseline.long_unsettled):
            yield (
                f"{counted(count, 'resource was', 'resources were')} requested on the day of the "
                "last change; content that changes again on that day is not detected until it is "
                f"requested again, after {UNSETTLED_INTERVAL / 60:.0f} minutes"
            )

    @property
    def is_in_handler(self) -> bool:
        return self._applier.is_in_handler

    async def run(self) -> None:
        """Follow until stopped or, with `once`, until level.

        Raises:
            RsnotifyError: The run cannot continue, or the copy cannot become level.
        """
        committer = self._tasks.spawn(self._applier.run())
        try:
            self._tasks.spawn(self._keep_saving())
            self._tasks.spawn(self._copy.run())
            self._tasks.spawn(self._copy.fetch_lost())
            self._tasks.spawn(self._fetch_doubted())
            self._queue_in_worker(self._state.backlog.clear)  # a previous run may have left changes
            self._push.start(self._tasks)
            if not self._context.once:
                self._tasks.spawn(self._rediscovery.run())
            self._perform(self._follower.start(self._loop.time()))
            try:
                await self._ended
            finally:
                if not self._ended.cancelled():
                    self._applier.stop()
                    await asyncio.wait([committer], timeout=_STOP_TIMEOUT)
                    await self._save()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            await self._tasks.cancel()
            await self._packages.close()

    async def _fetch_doubted(self) -> None:
        """Refetch resources with doubts about their content now, and at increasing intervals."""
        if self._context.identity.prefer:
            return  # the dates are those of other representations
        pace = self._context.options.pace
        tried, wait = set[str](), pace.repair
        while True:
            changes = await call_in(self._context.worker, self._state.doubted_changes)
            pending = self._follower.state.pending
            if changes and pending.backlog:
                await asyncio.sleep(_SAVE_INTERVAL)
                continue
            self._has_read_doubts = True
            new = [change for change in changes if change.uri not in pending]
            self._perform(self._follower.verify(new, self._loop.time()))
            uris = {change.uri for change in changes}
            wait = min(2 * wait, pace.compare) if uris and uris <= tried else pace.repair
            tried = uris
            await asyncio.sleep(wait)

    def stop(self) -> None:
        self._end(None)

    def find_lost(self) -> None:
        """Schedule another fetch of the resources that the state records as lost."""
        self._copy.find_lost()
        self._after_change()

    def resumed(self) -> None:
        """Read the lists again, because they may have been read before the outage."""
        self._perform(self._follower.resumed(self._loop.time()))

    def _end(self, error: BaseException | None) -> None:
        settle(self._ended, error)

    # Actions

    def _perform(self, actions: Iterable[Action]) -> None:
        for action in actions:
            self._perform_action(action)
        self._set_timer()
        if self._packages.opened and self._follower.level:
            self._tasks.spawn(self._packages.close())
        self._check_events()
        self._saver.check_compared()
        self._warn_if_nothing_selected()
        self._after_change()

    def _set_timer(self) -> None:
        due = None if self._ended.done() else self._follower.wakeup
        if self._timer is not None:
            if self._timer_due == due:  # uvloop's timers do not know when they are due
                return
            self._timer.cancel()
        self._timer_due = due
        self._timer = None if due is None else self._loop.call_at(due, self._tick)

    def _check_events(self) -> None:
        self._events.check(self._follower, self._loop.time(), self._local_doubt)

    def _after_change(self) -> None:
        if self._errors and self._is_level:
            self._errors.clear()  # the documents no longer list these resources
        self._end_if_caught_up()
        self._context.on_status_changed()
        self._compare_digest()

    def _warn_if_nothing_selected(self) -> None:
        """Warn once if the copy is empty and nothing is selected, perhaps because of a typo."""
        if self._has_checked_selection or self._state.resources or not self._is_level:
            return
        self._has_checked_selection = True
        selection = self._context.identity.selection
        selected = selection.describe()
        if selected and selection.changes != (ChangeType.DELETED,):
            logger.warning("no resource that the Source lists is selected by %s", selected)

    def _to_loop_time(self, instant: Instant | None) -> float:
        """Convert an instant to the event loop's clock; None or the future becomes `-inf`."""
        if instant is None:
            return -inf
        age = (datetime.now(UTC) - instant).total_seconds()
        return self._loop.time() - age if age >= 0 else -inf  # the clock was set back

    def _compare_digest(self) -> None:
        """Compare the copy with the Source's count and digest, if that is due."""
        if self._follower.audit_due and self._applier.idle and not self._copy.doubt:
            now = self._loop.time()
            self._perform(self._follower.audited(self._state.sum, self._state.latest, now))

    def _tick(self) -> None:
        self._timer = None
        if not self._ended.done():
            self._perform(self._follower.tick(self._loop.time()))

    def _perform_action(self, action: Action) -> None:
        match action:
            case Apply():
                self._applier.submit(action.changes)
            case Fetch():
                self._push.pulls.requested(action)
                self._reading = action, self._loop.time(), self._context.fetcher.received
                self._tasks.spawn(self._fetch(action))
            case StoreBacklog() | TakeBacklog() | ClearBacklog():
                self._perform_backlog_action(action)
            case BeginBaseline():
                self._queue_in_worker(self._state.begin_baseline)
                self._listed = 0
                self._copy.request()
            case Compare():
                self._tasks.spawn(self._compare_resources(action))
            case FindUnlisted():
                self._tasks.spawn(self._find_unlisted(action))
            case ForgetDatetimes():
                if action.entirely:
                    self._saver.forget()
                self._queue_in_worker(self._state.forget_datetimes, action.after, action.entirely)
            case Discover():
                self._rediscovery.start()
            case LogNote():
                logger.log(logging.WARNING if action.warning else logging.INFO, "%s", action.text)

    def _queue_in_worker(self, work: Callable[..., object], *arguments: Any) -> None:
        """Queue work now, not in a task, so that the worker keeps the order of the actions."""
        queued = self._loop.run_in_executor(self._context.worker, work, *arguments)

        async def report_errors() -> None:
            await queued

        self._tasks.spawn(report_errors())

    def _perform_backlog_action(self, action: BacklogAction) -> None:
        """Queue an action now, not in a task, so that actions keep their order."""
        queued = self._loop.run_in_executor(self._context.worker, self._state.backlog.use, action)

        async def report() -> None:
            extent, changes = await queued
            if not self._ended.done():
                now = self._loop.time()
                self._perform(self._follower.backlog_done(action, extent, changes, now))

        self._tasks.spawn(report())

    async def _fetch(self, fetch: Fetch) -> None:
        found: tuple[Document, Instant | None] | RsnotifyError
        try:
            found = await self._read_document(fetch)
        except RsnotifyError as error:
            found = error
        self._reading = None
        if self._ended.done():
            return
        if isinstance(found, RsnotifyError):
            self._perform(self._follower.fetch_failed(fetch, found, self._loop.time()))
        else:
            document, sent = found
            self._push.pulls.fetched(fetch, document)
            self._perform(self._follower.fetched(fetch, document, self._loop.time(), sent))
        self._push.pulls.finished()

    async def _read_document(self, fetch: Fetch) -> tuple[Document, Instant | None]:
        """Fetch a document of the set, or the manifest of a package.

        A newly accepted link with `rel="up"` is stored.
        """
        if fetch.package is not None:
            return await self._packages.open(fetch.package), None
        known, membership = self._membership.known, self._membership
        offer, holds_resources = self._rediscovery.identity.offer, self._state.resources > 0
        found = await membership.document(fetch, offer, holds_resources=holds_resources)
        if membership.known is not known:
            await call_in(self._context.worker, self._state.store_links, membership.known)
        return found

    async def _compare_resources(self, action: Compare) -> None:
        # Unselected resources are not recorded as listed, so `_find_unlisted` finds them.
        selected = tuple(filter(self._context.identity.selection.wants, action.resources))
        differing, *others = await call_in(
            self._context.worker,
            self._state.baseline.compare,
            selected,
            action.at,
            lost=action.lost,
            packaged=action.packaged,
        )
        if self._ended.done():
            return
        self._listed += len(selected)
        now = self._loop.time()
        self._perform(self._follower.differing(differing, now, *others))

    async def _find_unlisted(self, action: FindUnlisted) -> None:
        find = self._state.baseline.unlisted
        missing, undecided = await call_in(self._context.worker, find, action.at)
        await call_in(self._context.worker, self._state.end_baseline)
        if self._ended.done():
            return
        self._perform(self._follower.unlisted(missing, self._loop.time(), undecided))

    # Implementation of `ApplyOutcome`, called by the applier

    def progress_after(self, changes: Sequence[Change]) -> Progress | None:
        return self._saver.progress_after(changes)

    def applied(self, changes: Sequence[Change]) -> None:
        self._saver.committed()
        for change in changes:
            self._errors.pop(change.uri, None)
        self._perform(self._follower.applied(changes, self._loop.time()))

    def committed(self, changes: Sequence[Change]) -> None:
        self._counters.count(changes, is_current=self._events.is_level)
        if self._context.on_committed is not None:
            self._context.on_committed(changes)
        self._after_change()

    def failed(self, change: Change, error: RsnotifyError) -> None:
        self._errors[change.uri] = error
        self._perform(self._follower.failed(change, error, self._loop.time()))

    def _end_if_caught_up(self) -> None:
        if not self._context.once:
            return
        if (unavailable := self._applier.unavailable) is not None:
            error, since = unavailable
            if self._loop.time() - since >= self._context.options.pace.patience:
                self._end(error)
            return
        if not self._applier.idle or self._rediscovery.is_reading:
            return
        has_begun = self._copy.has_ended and self._has_read_doubts
        if not (has_begun or self._follower.failures.count):
            return
        is_over = can_end(self._follower, self._loop.time())
        if is_over and self._copy.has_confirmed_foreign():
            identity, doubt = self._rediscovery.identity, self._rediscovery.doubt
            doubts = {identity.url: doubt} if doubt else self._state.doubts
            self._end(final_error(self._follower, identity, doubts, self._errors))

    def _offer_changed(self, before: Offer, offer: Offer) -> None:
        self._context.announce(OfferChanged(before, offer))
        self._perform(self._follower.offered(offer, self._loop.time()))
        self._push.offered(offer)

    async def _keep_saving(self) -> None:
        while True:
            await wait_for_event(self._saver.has_compared, _SAVE_INTERVAL)
            self._saver.has_compared.clear()
            self._check_events()
            await self._save()
            self._end_if_caught_up()

    async def _save(self) -> None:
        await self._saver.save(self._applier, is_ending=self._ended.done())
