"""The shell around a `Follower`: it performs the follower's actions, and reports their results.

All calls of the follower are made on the event loop, none from within another, so that it
needs no lock. Everything that blocks on the disk runs in a worker, one call after another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from math import inf
from random import Random
from typing import Any, TypeVar

from rsnotify.errors import RsnotifyError, without_credentials
from rsnotify.format.coverage import Change
from rsnotify.format.datetimes import Instant
from rsnotify.format.model import Document
from rsnotify.format.offer import Offer
from rsnotify.format.vocabulary import ChangeType
from rsnotify.sync.actions import (
    Action,
    Apply,
    BeginBaseline,
    Compare,
    Discover,
    Fetch,
    FindUnlisted,
    ForgetDatetimes,
    LogNote,
    Progress,
)
from rsnotify.sync.doubts import undated
from rsnotify.sync.fallback_order import change_documents
from rsnotify.sync.follower import Follower
from rsnotify_subscriber.content.dump_packages import DumpPackages
from rsnotify_subscriber.content.resolver import ContentResolver
from rsnotify_subscriber.discovery.membership import SetMembership
from rsnotify_subscriber.events import EventWatch, OfferChanged
from rsnotify_subscriber.handlers import ReadableHandler
from rsnotify_subscriber.status import Status, StatusCounters
from rsnotify_subscriber.storage.identity import incomparable
from rsnotify_subscriber.sync.applier import Applier
from rsnotify_subscriber.sync.completion import failure, has_ended
from rsnotify_subscriber.sync.context import RunContext, RunObservers
from rsnotify_subscriber.sync.copy_check import CopyCheck
from rsnotify_subscriber.sync.progress_saver import ProgressSaver
from rsnotify_subscriber.sync.push_channels import PushChannels
from rsnotify_subscriber.sync.rediscovery import Rediscovery
from rsnotify_subscriber.tasks import Tasks

logger = logging.getLogger("rsnotify.subscriber")

#: Seconds between two savings of a progress that moved without a change being applied.
_SAVE = 1.0
#: Seconds that a handler has to finish its call when the subscriber stops.
_PATIENCE = 10.0

T = TypeVar("T")


class Following:
    """One run of a subscriber; used once. With `once`, it ends when level."""

    def __init__(self, context: RunContext, observers: RunObservers, *, once: bool) -> None:
        self._context = context
        self._state = state = context.state
        self._observers = observers
        self._events = EventWatch(observers.announce)
        self._once = once
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
            compared=self._loop_time(state.compared()),
            pushed=state.changed_after(progress.confirmed) if progress is not None else (),
            incomparable=incomparable(identity),
        )
        self._saver = ProgressSaver(state, context.worker, self._follower, context.handler)
        self._packages = DumpPackages(context.fetcher)
        content = ContentResolver(
            context.fetcher,
            prefer=options.prefer,
            exact=options.exact,
            patches=options.patches,
            packages=self._packages,
            holding=context.handler if isinstance(context.handler, ReadableHandler) else None,
        )
        self._applier = Applier(
            content, state, context.handler, self, context.worker, self._tasks, identity.selection
        )
        self._counters = StatusCounters()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due: float | None = None
        self._push = PushChannels(context, observers, self._follower, self._perform, once=once)
        self._rediscovery = Rediscovery(context, self._tasks, self._offer_changed, self._tick)
        self._errors: dict[str, RsnotifyError] = {}
        self._checked_for_nothing = False
        self._membership = SetMembership(
            context.fetcher, context.offers.descriptions, identity.url, state.links()
        )
        self._copy = CopyCheck(context, self._follower, self._perform, self._errors, once=once)

    @property
    def status(self) -> Status:
        follower, progress = self._follower, self._follower.progress
        # Failures of the Source's lists come first, and those of push last.
        listed = follower.error if follower.failures else None
        error = listed or next(iter(self._errors.values()), None) or self._push.changes.error
        doubts = () if follower.level else follower.doubts
        return Status(
            resources=self._state.resources,
            applied=self._counters.applied,
            copied=self._counters.copied,
            pending=follower.pending,
            through=progress.through if progress else None,
            lag_ms=self._counters.lag_ms(),
            push=self._push.state,
            way=self._push.changes.hubs,
            unconfirmed=follower.unconfirmed,
            level=self._is_level,
            doubts=doubts + tuple(self._other_doubts()),
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
        )

    @property
    def _is_level(self) -> bool:
        return self._follower.level and not self._doubt

    @property
    def _doubt(self) -> str:
        """Why the copy may be wrong for a reason that the follower does not know, or empty."""
        return next(self._other_doubts(), "")

    def _other_doubts(self) -> Iterator[str]:
        if self._copy.doubt:
            yield self._copy.doubt
        if self._rediscovery.doubt:
            yield self._rediscovery.doubt
            return
        for uri, reason in self._state.doubts.items():
            count = len(self._state.doubts) - 1
            more = f" and {count} more" if count else ""
            yield f"{without_credentials(uri)}{more}: {reason}"
            return

    def _limits(self) -> Iterator[str]:
        """Yield what the Source's lists do not show, though the copy agrees with them."""
        counts, kept = self._state.counts, self._state.baseline.trusts_dates
        if count := counts.undated if kept else counts.unhashed:
            offer = self._rediscovery.identity.offer
            unlisted = " that no Change List lists" if change_documents(offer) else ""
            entries = undated(count, counts.entries, are_dates_kept=kept)
            yield (
                f"{entries}; changed content{unlisted} is not seen until each of them is "
                "requested again"
            )

    @property
    def is_in_handler(self) -> bool:
        return self._applier.is_in_handler

    async def run(self) -> None:
        """Follow until stopped, or, with `once`, until level.

        Raises:
            RsnotifyError: It cannot continue, or could not become level.
        """
        committer = self._tasks.spawn(self._applier.run())
        try:
            self._tasks.spawn(self._keep_saving())
            self._tasks.spawn(self._copy.run())
            self._tasks.spawn(self._copy.fetch_lost())
            self._push.start(self._tasks, self._context.identity.offer)
            if not self._once:
                self._tasks.spawn(self._rediscovery.run())
            self._perform(self._follower.start(self._loop.time()))
            try:
                await self._ended
            finally:
                if not self._ended.cancelled():
                    self._applier.stop()
                    await asyncio.wait([committer], timeout=_PATIENCE)
                    await self._save()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            await self._tasks.cancel()
            await self._packages.close()

    def stop(self) -> None:
        self._end(None)

    def find_lost(self) -> None:
        """Have the resources fetched again that the state says are lost."""
        self._copy.find_lost()
        self._after_change()

    def _end(self, error: BaseException | None) -> None:
        if self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)

    # Actions

    def _perform(self, actions: Iterable[Action]) -> None:
        for action in actions:
            self._do(action)
        self._set_timer()
        if self._packages.open_count and self._follower.level:
            self._tasks.spawn(self._packages.close())
        self._check_events()
        self._saver.check_compared()
        self._check_for_nothing()
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
        self._events.check(self._follower, self._loop.time(), self._doubt)

    def _after_change(self) -> None:
        if self._errors and self._is_level:
            self._errors.clear()  # of resources that the documents do not list any more
        self._end_if_caught_up()
        self._observers.moved()
        self._audit()

    def _check_for_nothing(self) -> None:
        """Log once that nothing is selected and the copy therefore empty, perhaps by a typo."""
        if self._checked_for_nothing or self._state.resources or not self._is_level:
            return
        self._checked_for_nothing = True
        selection = self._context.identity.selection
        selected = selection.describe()
        if selected and selection.changes != (ChangeType.DELETED,):
            logger.warning("no resource that the Source lists is selected by %s", selected)

    def _loop_time(self, moment: Instant | None) -> float:
        """Return a moment by the clock of the event loop; long ago if it is None."""
        if moment is None:
            return -inf
        age = max(0.0, (datetime.now(UTC) - moment).total_seconds())
        return self._loop.time() - age

    def _audit(self) -> None:
        """Compare the copy with the count and digest of the Source's set, if it is time."""
        if self._follower.audit_due and self._applier.idle and not self._copy.doubt:
            now = self._loop.time()
            self._perform(self._follower.audited(self._state.sum, self._state.latest, now))

    def _tick(self) -> None:
        self._timer = None
        if not self._ended.done():
            self._perform(self._follower.tick(self._loop.time()))

    def _do(self, action: Action) -> None:
        match action:
            case Apply():
                self._applier.submit(action.changes)
            case Fetch():
                self._push.pulls.requested(action)
                self._tasks.spawn(self._fetch(action))
            case BeginBaseline():
                self._tasks.spawn(self._in_worker(self._state.begin_baseline))
                self._copy.request()
            case Compare():
                self._tasks.spawn(self._compare(action))
            case FindUnlisted():
                self._tasks.spawn(self._sweep(action))
            case ForgetDatetimes():
                if action.entirely:
                    self._saver.forget()
                forget = self._state.forget_datetimes
                self._tasks.spawn(self._in_worker(forget, action.after, action.entirely))
            case Discover():
                self._rediscovery.start()
            case LogNote():
                logger.log(logging.WARNING if action.warning else logging.INFO, "%s", action.text)

    async def _in_worker(self, work: Callable[..., T], *arguments: Any) -> T:
        return await self._loop.run_in_executor(self._context.worker, work, *arguments)

    async def _fetch(self, fetch: Fetch) -> None:
        failed: RsnotifyError | None = None
        document: Document | None = None
        sent: Instant | None = None
        try:
            if fetch.package is None:
                document, sent = await self._document(fetch)
            else:
                document = await self._packages.open(fetch.package)
        except RsnotifyError as error:
            failed = error
        if self._ended.done():
            return  # the result was reported already
        if failed is not None:
            self._perform(self._follower.fetch_failed(fetch, failed, self._loop.time()))
        elif document is not None:
            self._push.pulls.fetched(fetch, document)
            self._perform(self._follower.fetched(fetch, document, self._loop.time(), sent))
        self._push.pulls.finished()

    async def _document(self, fetch: Fetch) -> tuple[Document, Instant | None]:
        """GET a document of the set, and store what its links show."""
        known, membership = self._membership.known, self._membership
        offer, holds_resources = self._rediscovery.identity.offer, self._state.resources > 0
        found = await membership.document(fetch, offer, holds_resources=holds_resources)
        if membership.known is not known:
            await self._in_worker(self._state.store_links, membership.known)
        return found

    async def _compare(self, action: Compare) -> None:
        # Resources that are not selected are not stored as seen, so that the sweep removes them.
        selected = tuple(filter(self._context.identity.selection.wants, action.resources))
        compare = self._state.baseline.compare
        found = await self._in_worker(
            partial(compare, selected, action.at, lost=action.lost, packaged=action.packaged)
        )
        differing, absent, unproven, checkable = found
        now = self._loop.time()
        self._perform(self._follower.differing(differing, now, absent, unproven, checkable))

    async def _sweep(self, action: FindUnlisted) -> None:
        missing = await self._in_worker(self._state.baseline.unlisted, action.at)
        await self._in_worker(self._state.end_baseline)
        self._perform(self._follower.unlisted(missing, self._loop.time()))

    # The results of an Apply: the `ApplyOutcome` of the applier

    def progress_after(self, changes: Sequence[Change]) -> Progress | None:
        return self._saver.progress_after(changes)

    def applied(self, changes: Sequence[Change]) -> None:
        self._saver.committed()
        for change in changes:
            self._errors.pop(change.uri, None)
        self._perform(self._follower.applied(changes, self._loop.time()))

    def committed(self, changes: Sequence[Change]) -> None:
        self._counters.count(changes)
        if self._observers.on_committed is not None:
            self._observers.on_committed(changes)
        self._after_change()

    def failed(self, change: Change, error: RsnotifyError) -> None:
        self._errors[change.uri] = error
        self._perform(self._follower.failed(change, error, self._loop.time()))

    def _end_if_caught_up(self) -> None:
        if not self._once or not self._applier.idle or self._rediscovery.is_reading:
            return
        if not (self._copy.has_ended or self._follower.failures):
            return
        if has_ended(self._follower, self._loop.time()):
            identity, doubt = self._rediscovery.identity, self._rediscovery.doubt
            doubts = {identity.url: doubt} if doubt else self._state.doubts
            self._end(failure(self._follower, identity, doubts, self._errors))

    def _offer_changed(self, before: Offer, offer: Offer) -> None:
        self._observers.announce(OfferChanged(before, offer))
        self._perform(self._follower.offered(offer, self._loop.time()))
        self._push.offered(offer)

    async def _keep_saving(self) -> None:
        while True:
            await asyncio.sleep(_SAVE)
            self._check_events()
            await self._save()
            self._end_if_caught_up()

    async def _save(self) -> None:
        await self._saver.save(self._applier, is_ending=self._ended.done())
