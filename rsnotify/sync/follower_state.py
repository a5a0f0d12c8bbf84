"""The state shared by the parts of a follower, including the schedule for reading documents.

`Schedule` decides when to read: soon after news, then less and less often, rarely while push works,
and never before the Source's `Retry-After` has passed.

    routine:  Pace.poll, an eighth of it after news; Pace.poll_with_push while push works
    sooner:   a gap, a failed change, a doubt (`catch_up_by`); a Framework Notification
              (`documents_changed`); the loss of push (`push_lost`)
    later:    a failure (`back_off`); without news, when the `Allowance` permits it

A Framework Notification (`DocumentNotices`) announces that a document is new. It is only a hint:
the Destination always relies on the document itself. A notification that is lost, late, repeated or
forged costs one request at most, and the next poll finds documents that were not announced.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from random import Random

from msgspec import Struct

from rsnotify.errors import WrongDocument
from rsnotify.format.coverage import Change
from rsnotify.format.datetimes import Instant
from rsnotify.format.model import Capability, ChangeType, Document, Resource
from rsnotify.format.offer import FIELDS, Offer
from rsnotify.sync.actions import ActionList, ComparedList, Progress
from rsnotify.sync.frontiers import SyncFrontiers
from rsnotify.sync.pace import Pace
from rsnotify.sync.pending_changes import PendingChanges, UnconfirmedChanges

#: The documents that list the other documents.
_OFFERS = frozenset({Capability.DESCRIPTION, Capability.CAPABILITY_LIST})
_CHANGES = frozenset({Capability.CHANGE_LIST, Capability.CHANGE_DUMP})
_RESOURCES = frozenset({Capability.RESOURCE_LIST, Capability.RESOURCE_DUMP})


class DocumentsToRead(Struct):
    """Whether to read the Source's offer, and whether to read the lists for catching up."""

    offer: bool = False
    lists: bool = False


class DocumentNotices:
    """The Framework Notifications of one Source."""

    def __init__(self, frontiers: SyncFrontiers) -> None:
        self._frontiers = frontiers
        #: The instant up to which every notification was received; None before the first.
        self.through: Instant | None = None

    def read(self, document: Document, offer: Offer, *, failing: bool) -> DocumentsToRead:
        """Return which documents to read after a Framework Notification.

        `failing` means that the lists could not be read the last time.
        """
        if document.capability != Capability.FRAMEWORK_NOTIFICATION:
            kind = document.capability
            raise WrongDocument(f"a Framework Notification was expected, not {kind!r}")
        missed = self._is_new(document.from_) and None not in (self.through, document.from_)
        to_read = DocumentsToRead(offer=missed, lists=missed)
        for entry in document.resources:
            if self._is_new(entry.changed_at):
                self._consider(entry, offer, to_read, failing=failing)
        instants = (self.through, document.until, *(e.changed_at for e in document.resources))
        self.through = max((at for at in instants if at is not None), default=None)
        return to_read

    def _is_new(self, at: Instant | None) -> bool:
        """Return whether an instant is later than all received ones. An unknown one may be."""
        return at is None or self.through is None or at > self.through

    def _consider(
        self, document: Resource, offer: Offer, to_read: DocumentsToRead, *, failing: bool
    ) -> None:
        kind = document.capability
        if kind in _OFFERS:
            to_read.offer = True
        if kind not in FIELDS:
            return
        offered = offer.documents.get(kind)
        is_live = document.uri == offered
        if offered is None or (is_live and document.change is ChangeType.DELETED):
            to_read.offer = True
        if failing or self._may_help(document, is_live=is_live):
            to_read.lists = True

    def _may_help(self, document: Resource, *, is_live: bool) -> bool:
        """Return whether a document may contain missing changes."""
        if document.capability in _CHANGES:
            known, last = self._frontiers.known, document.until or document.from_
            return known is not None and (is_live if last is None else last > known)
        gap, at = self._frontiers.uncovered_gap, document.at
        lists_set = is_live and document.capability in _RESOURCES
        return lists_set and gap is not None and (at is None or at >= gap.ends)


#: Factor by which a poll comes sooner after news.
SPEEDUP_AFTER_NEWS = 8
#: Number of consecutive polls with news after which the next ones come half as soon.
_BURST = 8
#: Maximum number of consecutive reads without news, for reasons other than a due poll.
_MOST_IN_A_ROW = 8
#: Number of such reads after news for which the interval between them is short.
_SHORT = 4
#: Maximum wait, in seconds, that is too short for a timer.
_NEGLIGIBLE = 0.001


class PollInterval:
    """The wait between polls: short after news, because changes come in bursts, then longer."""

    def __init__(self, most: float) -> None:
        self._most = most
        self._wait = most
        self._in_a_row = 0

    def next(self, *, news: bool) -> float:
        # Some Sources give all entries the current date at each request. That is not a burst.
        self._in_a_row = self._in_a_row + 1 if news else 0
        doublings = min(self._in_a_row // _BURST, SPEEDUP_AFTER_NEWS)
        soon = min(self._most, self._most / SPEEDUP_AFTER_NEWS * 2.0**doublings)
        wait = soon if news else self._wait
        self._wait = min(self._most, 2 * wait)
        return wait


class Allowance:
    """Limits how often documents are read for any reason while they have nothing new.

    Some consecutive reads are allowed, and then one in each polling interval. A Source in trouble
    therefore receives no more requests than polling would cause, even if each read gives a reason
    for the next one. For a few reads after news, the interval is as much shorter as that between
    polls. An announcement that documents have changed may be false, so it allows only
    one comparison and the pull after it.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._left = float(_MOST_IN_A_ROW)
        self._counted = 0.0
        #: Number of reads before which the interval is short.
        self._short = 0

    def restore(self, reads: int) -> None:
        """Allow at least this many reads."""
        self._left = max(self._left, float(reads))

    def wait(self, now: float) -> float:
        """Return how long to wait before the next read."""
        interval, at_once = self._interval, float(_MOST_IN_A_ROW)
        if self._short > 0:
            interval, at_once = interval / SPEEDUP_AFTER_NEWS, 1.0
        earned = max(0.0, now - self._counted) / interval
        self._left = max(self._left, min(self._left + earned, at_once))
        self._counted = now
        return max(0.0, (1.0 - self._left) * interval)

    def set_news(self, *, news: bool) -> None:
        """Record whether the last read had anything new."""
        self._short = _SHORT if news else 0

    def use(self) -> None:
        self._left = max(0.0, self._left - 1.0)
        self._short -= 1


class Schedule:
    """Decides when the follower catches up next. `now` is in seconds of a clock without jumps."""

    def __init__(self, pace: Pace, random: Random) -> None:
        self._pace = pace
        self._random = random
        self._interval = PollInterval(pace.poll)
        self._allowance = Allowance(pace.poll)
        self._not_before = 0.0
        self._is_routine = True
        self._lists_read = self._offer_read = -inf
        #: When to catch up next.
        self.due: float | None = None
        #: When to read the Source's offer again.
        self.offer_due: float | None = None
        #: Whether push works, and polls only have to confirm it.
        self.push_works = False

    def may_begin(self, now: float) -> bool:
        """Return whether documents may be read now. If not, set `due` to when they may be."""
        wait = self._allowance.wait(now)
        if wait <= _NEGLIGIBLE:
            self._lists_read = now
            return True
        self.due = None
        self._poll_by(now + wait)
        return False

    def begin(self) -> bool:
        """Clear `due`. Return whether it was due only because time had passed."""
        self._allowance.use()
        is_routine, self._is_routine = self._is_routine, True
        self.due = None
        return is_routine

    def catch_up_by(self, when: float) -> None:
        """Catch up at this time at the latest, because something may be missing."""
        self._is_routine = False
        self._poll_by(when)

    def _poll_by(self, when: float) -> None:
        """Catch up at this time at the latest, but respect the Source's `Retry-After`."""
        when = max(when, self._not_before)
        self.due = when if self.due is None else min(self.due, when)

    def documents_changed(self, documents: DocumentsToRead, now: float, listeners: int) -> None:
        """Read documents soon, at a random moment so that subscribers do not all come at once."""
        within = max(self._pace.spread_among(listeners), self._pace.poll / SPEEDUP_AFTER_NEWS)
        when = now + self._random.uniform(0.0, within)
        self._allowance.restore(2)
        if documents.lists:
            self._poll_by(max(when, self._lists_read + within))
        if documents.offer:
            self._discover_by(max(when, self._offer_read + within))

    def _discover_by(self, when: float) -> None:
        when = max(when, self._not_before)
        self.offer_due = when if self.offer_due is None else min(self.offer_due, when)

    def is_offer_due(self, now: float) -> bool:
        """Return whether it is time to read the Source's offer again, and reset the timer if so."""
        if self.offer_due is None or now < self.offer_due:
            return False
        self.offer_due = None
        self._offer_read = now
        return True

    def poll_later(self, now: float, *, news: bool, push_is_enough: bool) -> None:
        """Poll again after the usual interval, or much later if push works and is enough."""
        self._allowance.set_news(news=news)
        wait = self._interval.next(news=news)
        relaxed = self.push_works and push_is_enough
        self._poll_by(now + (self._pace.poll_with_push if relaxed else wait))

    def retry_soon(self, now: float, attempts: int) -> None:
        """Read the lists again in a moment, because they do not contain everything yet."""
        self.catch_up_by(now + self._pace.retry.delay(attempts, self._random))

    def back_off(self, now: float, failures: int, retry_after: float | None, least: float) -> None:
        """Schedule a retry after this many consecutive failures, in at least `least` seconds."""
        least = max(retry_after or 0.0, least)
        self.due = now + self._pace.retry.delay(failures, self._random, at_least=least)
        if retry_after is not None:
            self._not_before = self.due

    def push_lost(self, now: float) -> None:
        """Poll again at the rate without push, with the first polls of all subscribers spread out.

        The offer is also read: the Source may have moved to other hubs, and could announce this
        only there.
        """
        if self.push_works:
            self.push_works = False
            self._poll_by(now + self._interval.next(news=True) * self._random.random())
            self._discover_by(now + self._pace.poll * self._random.uniform(0.5, 1.0))


class SyncState:
    """The parts of the state. For the arguments, see `Follower`."""

    def __init__(
        self,
        progress: Progress | None,
        pace: Pace,
        random: Random,
        pushed: Iterable[Change] = (),
        last_list: ComparedList | None = None,
    ) -> None:
        self.pace = pace
        self.random = random
        self.actions = ActionList()
        self.frontiers = SyncFrontiers(progress, pace.hold, last_list)
        self.pending = PendingChanges(pace.retry, random, self.actions, pace.parked)
        self.schedule = Schedule(pace, random)
        self.unconfirmed = UnconfirmedChanges(grace=pace.poll, patience=pace.stale)
        self.unconfirmed.add(pushed, -inf)
        #: Whether the documents were read completely, and nothing has cast doubt on them since.
        self.settled = False

    @property
    def untried(self) -> int:
        """Number of resources with pending changes that have not failed yet."""
        return self.pending.untried + len(self.pending.backlog)

    @property
    def is_much_pending(self) -> bool:
        """Whether more resources wait to be fetched than can be in flight."""
        return self.untried > self.pace.in_flight
