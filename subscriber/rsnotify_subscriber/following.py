"""The shell around a `Follower`: it performs the actions, and tells what came of them.

All calls of the follower are made on the event loop, none from within another, so that it
needs no lock. What blocks on the disk runs in a worker, one thing after another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from datetime import UTC, datetime, timedelta
from math import inf
from random import Random
from typing import Any, TypeVar

import msgspec

from rsnotify.errors import FetchError, RsnotifyError, TooLarge, Unavailable, shown
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
from rsnotify.sync.fallback_order import resource_documents
from rsnotify.sync.follower import Follower
from rsnotify.sync.pace import Pace
from rsnotify_subscriber.applier import Applier
from rsnotify_subscriber.bringing.bringer import NO_WISHES, Bringer, Wishes
from rsnotify_subscriber.bringing.packages import Packages
from rsnotify_subscriber.discovery import Offers
from rsnotify_subscriber.events import (
    NOBODY,
    Announcer,
    Event,
    OfferChanged,
    Watch,
)
from rsnotify_subscriber.fetching.fetcher import Fetcher
from rsnotify_subscriber.pulls import Pulls
from rsnotify_subscriber.push.notices import NoticePush
from rsnotify_subscriber.push.push import Push
from rsnotify_subscriber.push.ways import Ways
from rsnotify_subscriber.received import Handler, Holding, Within
from rsnotify_subscriber.reception import Reception
from rsnotify_subscriber.state import Identity, State, incomparable
from rsnotify_subscriber.status import PushState, Status, Tally
from rsnotify_subscriber.tasks import Tasks

logger = logging.getLogger("rsnotify.subscriber")

#: How often the lists are tried before catching up is given up; what is too large once more.
TRIES = 5
_TRIES_OF_TOO_LARGE = 2
#: Seconds between two savings of a progress that moved without a change being applied.
_SAVE = 1.0
#: How much later a comparison has to be to be stored: a digest may be compared every few seconds.
_OFTEN = timedelta(minutes=1)
#: Seconds between two looks at whether the Source offers something else.
_REDISCOVER = 600.0

#: Seconds that a handler may take to finish what it is at when the subscriber stops.
_PATIENCE = 10.0

T = TypeVar("T")


class Following:
    """One run of a subscriber; used once.

    Args:
        identity: Which Source, and what it offers.
        state: What is kept.
        fetcher: Fetches.
        offers: Reads what the Source offers.
        handler: Applies.
        pace: How fast, and how much at once.
        ways: By which ways changes can be heard of.
        worker: Runs what blocks on the disk, one thing after another.
        moved: Is called whenever the status may have changed.
        most: How many ways are to be up at a time.
        announce: Is told of events.
        checked: Whether what the Source offers was read in this run.
        once: Whether to end when level.
        on_committed: Called with changes once they are durable.
        wishes: What is wanted of content, where there is a choice.
    """

    def __init__(
        self,
        identity: Identity,
        state: State,
        fetcher: Fetcher,
        offers: Offers,
        handler: Handler | Within,
        pace: Pace,
        ways: Ways,
        worker: Executor,
        moved: Callable[[], None],
        *,
        most: int = 1,
        announce: Announcer = NOBODY,
        checked: bool,
        once: bool,
        on_committed: Callable[[Sequence[Change]], None] | None = None,
        wishes: Wishes = NO_WISHES,
    ) -> None:
        self._identity = identity
        self._state = state
        self._fetcher = fetcher
        self._offers = offers
        self._pace = pace
        self._ways = ways
        self._moved = moved
        self._announce = announce
        self._watch = Watch(announce)
        self._once = once
        self._on_committed = on_committed
        self._random = Random()
        self._loop = asyncio.get_running_loop()
        self._worker = worker
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._tasks = Tasks(self._end)
        self._saved = self._committing = progress = state.progress()
        self._compared = self._kept_compared = state.compared()
        self._follower = Follower(
            identity.offer,
            progress,
            pace=pace,
            random=self._random,
            compared=self._time_of(self._compared),
            pushed=state.changed_after(progress.confirmed) if progress is not None else (),
            incomparable=incomparable(identity),
        )
        self._compared_at = self._follower.compared
        self._noted_nothing = False
        holding = handler if isinstance(handler, Holding) else None
        self._packages = Packages(fetcher)
        bringer = Bringer(fetcher, wishes, packages=self._packages, holding=holding)
        self._applier = Applier(
            bringer, state, handler, self, self._worker, self._tasks, identity.selection
        )
        self._tally = Tally()
        self._timer: asyncio.TimerHandle | None = None
        self._push = Push(
            () if once else ways.to_changes(identity.offer),
            Reception(self._follower, self._perform, announce),
            lambda: self._follower.since,
            self._random,
            most=most,
            announce=self._way_changed,
        )
        self._pulls = Pulls(self._follower, self._push, announce)
        self._notices = NoticePush(
            ways,
            told=self._told,
            since=self._told_through,
            random=self._random,
        )
        self._rediscovery: asyncio.Task[None] | None = None
        self._offer_doubt = "" if checked else "what the Source offers has not been read yet"
        self._errors: dict[str, RsnotifyError] = {}

    @property
    def status(self) -> Status:
        """How it is going."""
        up = self._push.up
        push = PushState.OFF
        if self._push.ways:
            push = PushState.UP if up else PushState.DOWN
        progress = self._follower.progress
        return Status(
            resources=self._state.resources,
            applied=self._tally.applied,
            copied=self._tally.copied,
            pending=self._follower.pending,
            through=progress.through if progress else None,
            lag_ms=self._tally.lag_ms(),
            push=push,
            way=self._push.hubs,
            unconfirmed=self._follower.unconfirmed,
            level=self._level,
            doubts=self._doubts,
            compared=self._compared,
            baseline=self._follower.baselining,
            in_step=self._follower.in_step,
            difference=self._follower.difference or None,
            error=self._error(),
        )

    @property
    def _level(self) -> bool:
        return self._follower.level and self._shell_doubt is None

    @property
    def _doubts(self) -> tuple[str, ...]:
        """Why the copy may not be what the Source's documents say."""
        known = () if self._follower.level else self._follower.doubts
        return known + ((self._shell_doubt,) if self._shell_doubt else ())

    @property
    def _shell_doubt(self) -> str | None:
        """What the follower does not know of: the offer, or content that may be out of date."""
        if self._offer_doubt:
            return self._offer_doubt
        for uri, reason in self._state.doubts.items():
            count = len(self._state.doubts) - 1
            more = f" and {count} more" if count else ""
            return f"{shown(uri)}{more}: {reason}"
        return None

    def _error(self) -> str | None:
        """Return why it does not go on: the Source's lists come first, and push comes last."""
        listed = self._follower.error if self._follower.failures else None
        error = listed or next(iter(self._errors.values()), None) or self._push.error
        return None if error is None else str(error)

    async def run(self) -> None:
        """Follow until stopped, or until level if that is all that is asked.

        Raises:
            RsnotifyError: It cannot go on, or could not become level.
        """
        committer = self._tasks.spawn(self._applier.run())
        try:
            self._tasks.spawn(self._keep_saving())
            if not self._once:
                self._tasks.spawn(self._push.run())
                self._notices.take(self._identity.offer)
                self._tasks.spawn(self._notices.run())
                self._tasks.spawn(self._keep_rediscovering())
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
        """Let `run` end in order."""
        self._end(None)

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
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._follower.wakeup
        if due is not None and not self._ended.done():
            self._timer = self._loop.call_at(due, self._tick)
        if self._packages.at_hand and self._follower.level:
            self._tasks.spawn(self._packages.close())
        self._watch.look(self._follower, self._loop.time(), self._shell_doubt or "")
        if self._follower.compared != self._compared_at:
            self._compared_at = self._follower.compared
            self._compared = datetime.now(UTC)
        self._note_nothing_selected()
        self._end_if_caught_up()
        self._moved()
        self._audit()

    def _note_nothing_selected(self) -> None:
        """Log once that a copy is empty because of what is selected, perhaps by a typing error."""
        if self._noted_nothing or not self._level or self._state.resources:
            return
        self._noted_nothing = True
        selection = self._identity.selection
        selected = selection.describe()
        if selected and selection.changes != (ChangeType.DELETED,):
            logger.warning("no resource that the Source lists is selected by %s", selected)

    def _time_of(self, moment: Instant | None) -> float:
        """Return when a moment was by the clock of the event loop; long ago if it is not known."""
        if moment is None:
            return -inf
        age = max(0.0, (datetime.now(UTC) - moment).total_seconds())
        return self._loop.time() - age

    def _audit(self) -> None:
        """Compare what is held with what the Source says of its set, at a moment for it."""
        if self._follower.audit_due and self._applier.idle:
            now = self._loop.time()
            self._perform(self._follower.audited(self._state.sum, self._state.latest, now))

    def _tick(self) -> None:
        if not self._ended.done():
            self._perform(self._follower.tick(self._loop.time()))

    def _do(self, action: Action) -> None:
        match action:
            case Apply():
                self._applier.submit(action.changes)
            case Fetch():
                self._pulls.asked(action)
                self._tasks.spawn(self._fetch(action))
            case BeginBaseline():
                self._tasks.spawn(self._in_worker(self._state.begin_baseline))
            case Compare():
                self._tasks.spawn(self._compare(action))
            case FindUnlisted():
                self._tasks.spawn(self._sweep(action))
            case ForgetDatetimes():
                self._undate(action)
            case Discover():
                self._rediscover()
            case LogNote():
                logger.log(logging.WARNING if action.warning else logging.INFO, "%s", action.text)

    @property
    def is_in_handler(self) -> bool:
        """Whether the handler has been called and has not returned."""
        return self._applier.is_in_handler

    def _undate(self, action: ForgetDatetimes) -> None:
        if action.entirely:
            self._saved = self._committing = None
        self._tasks.spawn(self._in_worker(self._state.undate, action.after, action.entirely))

    async def _in_worker(self, work: Callable[..., T], *arguments: Any) -> T:
        return await self._loop.run_in_executor(self._worker, work, *arguments)

    async def _fetch(self, fetch: Fetch) -> None:
        failure: RsnotifyError | None = None
        document: Document | None = None
        sent: Instant | None = None
        try:
            if fetch.package is None:
                document, sent = await self._fetcher.sent_document(fetch.uri)
            else:
                document = await self._packages.open(fetch.package)
        except RsnotifyError as error:
            failure = error
        if self._ended.done():
            return  # how it is was told already
        if failure is not None:
            self._perform(self._follower.fetch_failed(fetch, failure, self._loop.time()))
        elif document is not None:
            self._pulls.fetched(fetch, document)
            self._perform(self._follower.fetched(fetch, document, self._loop.time(), sent))
        self._pulls.answered()

    async def _compare(self, action: Compare) -> None:
        # What is not selected is not seen either, so that the sweep removes it.
        selected = tuple(filter(self._identity.selection.wants, action.resources))
        differing = await self._in_worker(self._state.compare, selected, action.at)
        self._perform(self._follower.differing(differing, self._loop.time()))

    async def _sweep(self, action: FindUnlisted) -> None:
        missing = await self._in_worker(self._state.sweep, action.at)
        self._perform(self._follower.unlisted(missing, self._loop.time()))

    # What came of an Apply: the `Outcome` of the applier

    def progress_after(self, changes: Sequence[Change]) -> Progress | None:
        """Return what is to be committed together with changes; None if it did not move."""
        progress = self._follower.progress_after(changes)
        self._committing = progress
        return None if progress == self._saved else progress

    def applied(self, changes: Sequence[Change]) -> None:
        """Tell the follower what was committed."""
        self._saved = self._committing
        for change in changes:
            self._errors.pop(change.uri, None)
        self._perform(self._follower.applied(changes, self._loop.time()))

    def committed(self, changes: Sequence[Change]) -> None:
        """Count what was done."""
        self._tally.note(changes)
        if self._on_committed is not None:
            self._on_committed(changes)
        self._end_if_caught_up()
        self._moved()
        self._audit()

    def failed(self, change: Change, error: RsnotifyError) -> None:
        """Tell the follower what has to be tried again."""
        self._errors[change.uri] = error
        self._perform(self._follower.failed(change, error, self._loop.time()))

    def _end_if_caught_up(self) -> None:
        if not self._once or not self._applier.idle or self._rediscovery is not None:
            return
        follower = self._follower
        if follower.level:
            self._end(self._doubted())
        elif follower.failures >= self._tries:
            self._end(follower.error)
        elif follower.stuck:
            self._end(self._stuck())

    @property
    def _tries(self) -> int:
        return _TRIES_OF_TOO_LARGE if isinstance(self._follower.error, TooLarge) else TRIES

    def _doubted(self) -> RsnotifyError | None:
        """Return why a copy that is level for the follower may be wrong all the same."""
        if self._offer_doubt:
            return Unavailable(self._identity.url, self._offer_doubt)
        return next((Unavailable(*doubt) for doubt in self._state.doubts.items()), None)

    def _stuck(self) -> RsnotifyError:
        failing = self._follower.failing()
        if not failing:
            cure = (
                "it can be made up for once its Resource List is newer than its oldest Change List"
                if resource_documents(self._identity.offer)
                else "it offers no list of all its resources that could make up for it, so the "
                "copy may differ for good; without its state it begins anew with what is told now"
            )
            return Unavailable(
                self._identity.url, f"its lists leave out a part of the past; {cure}"
            )
        error = self._errors.get(failing[0].uri)
        reason = error.reason if isinstance(error, FetchError) else str(error)
        more = f" (and {len(failing) - 1} more resources)" if len(failing) > 1 else ""
        return Unavailable(failing[0].uri, f"{reason}; it was tried several times{more}")

    # What is heard, beside what goes through `Reception`

    def _way_changed(self, event: Event) -> None:
        self._announce(event)
        self._moved()

    def _told(self, document: Document) -> None:
        self._perform(self._follower.notified(document, self._loop.time()))

    def _told_through(self) -> Instant | None:
        return self._follower.notified_through

    # Rediscovery

    def _rediscover(self) -> asyncio.Task[None]:
        if self._rediscovery is None:
            self._rediscovery = self._tasks.spawn(self._read_offer())
        return self._rediscovery

    async def _keep_rediscovering(self) -> None:
        failures = 0
        if not self._offer_doubt:
            await asyncio.sleep(_REDISCOVER)
        while True:
            await asyncio.wait({self._rediscover()})
            failures = failures + 1 if self._offer_doubt else 0
            delay = self._pace.retry.delay(failures, self._random) if failures else _REDISCOVER
            await asyncio.sleep(delay)

    async def _read_offer(self) -> None:
        before = self._identity
        try:
            offer = await self._offers.revalidate(before.offer)
        except RsnotifyError as error:
            self._offer_doubt = f"what the Source offers could not be checked: {error}"
            logger.info("%s", self._offer_doubt)
        else:
            self._offer_doubt = ""
            if offer != before.offer:
                await self._take_offer(before, offer)
        self._rediscovery = None
        self._tick()  # a run that only catches up waits for this

    async def _take_offer(self, before: Identity, offer: Offer) -> None:
        self._identity = msgspec.structs.replace(before, offer=offer, memory=self._offers.memory)
        await self._in_worker(self._state.keep_identity, self._identity)
        self._announce(OfferChanged(before.offer, offer))
        self._perform(self._follower.offered(offer, self._loop.time()))
        if not self._once:
            self._push.take(self._ways.to_changes(offer))
            self._notices.take(offer)

    # Progress that moved without a change being applied

    async def _keep_saving(self) -> None:
        while True:
            await asyncio.sleep(_SAVE)
            self._watch.look(self._follower, self._loop.time(), self._shell_doubt or "")
            await self._save()

    async def _save(self) -> None:
        compared, kept = self._compared, self._kept_compared
        if compared is not None and (
            kept is None or self._ended.done() or compared - kept > _OFTEN
        ):
            self._kept_compared = compared
            await self._in_worker(self._state.keep_compared, compared)
        if self._applier.is_applying:
            return  # a later progress is about to be committed
        progress = self._follower.progress
        if progress is not None and progress != self._saved:
            self._saved = progress
            await self._in_worker(self._state.save, progress)
