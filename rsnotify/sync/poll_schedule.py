"""Schedules the next read of the Source's documents.

Polls are frequent after news, then less and less frequent, rare while push works, and never before
the Source's `Retry-After` has passed.

    next poll     after `Pace.poll`; an eighth of it after news; `Pace.poll_with_push` with push
    sooner        a gap, a failed change, a doubt (`catch_up_by`); a Framework Notification
                  (`documents_changed`); the loss of push (`push_lost`)
    later         a failure (`back_off`); no news, and the `ReadAllowance` is used up
"""

from __future__ import annotations

from math import inf
from random import Random

from msgspec import Struct

from rsnotify.errors import WrongDocument
from rsnotify.format.datetimes import Instant
from rsnotify.format.model import Capability, ChangeType, Document, Resource
from rsnotify.format.offer import FIELDS, Offer
from rsnotify.sync.frontiers import SyncFrontiers
from rsnotify.sync.pace import Pace

#: The documents that describe the Source's offer.
_OFFERS = frozenset({Capability.DESCRIPTION, Capability.CAPABILITY_LIST})
_CHANGES = frozenset({Capability.CHANGE_LIST, Capability.CHANGE_DUMP})
_RESOURCES = frozenset({Capability.RESOURCE_LIST, Capability.RESOURCE_DUMP})


class DocumentsToRead(Struct):
    """Whether to read the Source's offer, and whether to read the lists for catching up."""

    offer: bool = False
    lists: bool = False


class DocumentNotices:
    """The Framework Notifications of one Source, which announce new documents.

    A notification is only a hint: the Destination always relies on the document itself. A lost,
    late, duplicate or forged notification costs at most one request, and the next poll finds
    documents that were not announced.
    """

    def __init__(self, frontiers: SyncFrontiers) -> None:
        self._frontiers = frontiers
        #: The instant up to which every notification was received; None before the first.
        self.through: Instant | None = None

    def read(self, document: Document, offer: Offer, *, failing: bool) -> DocumentsToRead:
        """Return which documents to read after a Framework Notification.

        `failing` means that the last attempt to read the lists failed.
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
        """Return whether an instant is later than all received notifications, or unknown."""
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


#: Factor by which the interval between polls is shorter after news.
SPEEDUP_AFTER_NEWS = 8
#: Number of consecutive polls with news after which the interval doubles.
_POLLS_PER_BURST = 8
#: Maximum number of consecutive reads without news, for reasons other than a due poll.
_MAX_EXTRA_READS = 8
#: Number of reads after news during which the `ReadAllowance` recovers faster.
_FAST_READS_AFTER_NEWS = 4
#: Maximum wait to ignore, in seconds.
_NEGLIGIBLE_WAIT = 0.001


class PollInterval:
    """The interval between polls: short after news, because changes occur in bursts, then longer.

    `most` is the longest interval, in seconds.
    """

    def __init__(self, most: float) -> None:
        self._most = most
        self._wait = most
        self._polls_with_news = 0

    def next(self, *, news: bool) -> float:
        # Some Sources give all entries the current date at each request. That is not a burst.
        self._polls_with_news = self._polls_with_news + 1 if news else 0
        doublings = min(self._polls_with_news // _POLLS_PER_BURST, SPEEDUP_AFTER_NEWS)
        soon = min(self._most, self._most / SPEEDUP_AFTER_NEWS * 2.0**doublings)
        wait = soon if news else self._wait
        self._wait = min(self._most, 2 * wait)
        return wait


class ReadAllowance:
    """Limits the rate of reads that find nothing new, whatever the reason for them.

    A few reads are allowed at once, then one per polling interval. A failing Source therefore
    receives no more requests than polling would cause, even if each read gives a reason for another
    one. For a few reads after news, the interval is shorter, as it is for polls.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._left = float(_MAX_EXTRA_READS)
        self._counted = 0.0
        self._fast_reads_left = 0

    def restore(self, reads: int) -> None:
        """Allow at least this many reads."""
        self._left = max(self._left, float(reads))

    def wait(self, now: float) -> float:
        """Return how long to wait before the next read."""
        interval, at_once = self._interval, float(_MAX_EXTRA_READS)
        if self._fast_reads_left > 0:
            interval, at_once = interval / SPEEDUP_AFTER_NEWS, 1.0
        earned = max(0.0, now - self._counted) / interval
        self._left = max(self._left, min(self._left + earned, at_once))
        self._counted = now
        return max(0.0, (1.0 - self._left) * interval)

    def set_news(self, *, news: bool) -> None:
        """Record whether the last read found anything new."""
        self._fast_reads_left = _FAST_READS_AFTER_NEWS if news else 0

    def use(self) -> None:
        self._left = max(0.0, self._left - 1.0)
        self._fast_reads_left -= 1


class PollSchedule:
    """Decides when the follower catches up next. `now` is the time of a monotonic clock."""

    def __init__(self, pace: Pace, random: Random) -> None:
        self._pace = pace
        self._random = random
        self._interval = PollInterval(pace.poll)
        self._allowance = ReadAllowance(pace.poll)
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
        """Return whether documents may be read now. If not, set `due` to the earliest time."""
        wait = self._allowance.wait(now)
        if wait <= _NEGLIGIBLE_WAIT:
            self._lists_read = now
            return True
        self.due = None
        self._poll_by(now + wait)
        return False

    def begin(self) -> bool:
        """Clear `due`, and return whether this is a routine poll."""
        self._allowance.use()
        is_routine, self._is_routine = self._is_routine, True
        self.due = None
        return is_routine

    def is_overdue(self, now: float) -> bool:
        """Return whether changes may be missing, and the next read is due already."""
        return not self._is_routine and self.due is not None and self.due <= now

    def catch_up_by(self, when: float) -> None:
        """Catch up no later than `when`, because changes may be missing."""
        self._is_routine = False
        self._poll_by(when)

    def _poll_by(self, when: float) -> None:
        self.due = self._earlier(self.due, when)

    def _earlier(self, due: float | None, when: float) -> float:
        """Return the earlier time, but respect the Source's `Retry-After`."""
        when = max(when, self._not_before)
        return when if due is None else min(due, when)

    def documents_changed(self, documents: DocumentsToRead, now: float, listeners: int) -> None:
        """Read announced documents soon, at a random time to spread all subscribers' requests."""
        within = max(self._pace.spread_among(listeners), self._pace.poll / SPEEDUP_AFTER_NEWS)
        when = now + self._random.uniform(0.0, within)
        # The announcement may be false, so it allows only one comparison and the pull after it.
        self._allowance.restore(2)
        if documents.lists:
            self._poll_by(max(when, self._lists_read + within))
        if documents.offer:
            when = max(when, self._offer_read + within)
            self.offer_due = self._earlier(self.offer_due, when)

    def is_offer_due(self, now: float) -> bool:
        """Return whether to read the Source's offer now; if so, reset its timer."""
        if self.offer_due is None or now < self.offer_due:
            return False
        self.offer_due = None
        self._offer_read = now
        return True

    def poll_later(self, now: float, *, news: bool, push_is_enough: bool) -> None:
        """Schedule the next poll, much later than usual if push works and is enough."""
        self._allowance.set_news(news=news)
        wait = self._interval.next(news=news)
        relaxed = self.push_works and push_is_enough
        self._poll_by(now + (self._pace.poll_with_push if relaxed else wait))

    def retry_soon(self, now: float, attempts: int) -> None:
        """Read the lists again soon, because they lag behind push."""
        self.catch_up_by(now + self._pace.retry.delay(attempts, self._random))

    def back_off(self, now: float, failures: int, retry_after: float | None, least: float) -> None:
        """Schedule a retry after consecutive failures, in at least `least` seconds."""
        least = max(retry_after or 0.0, least)
        self.due = now + self._pace.retry.delay(failures, self._random, at_least=least)
        if retry_after is not None:
            self._not_before = self.due

    def push_lost(self, now: float) -> None:
        """Return to the poll interval without push, and spread the first polls of all subscribers.

        The offer is also read again, because the Source may have moved to other hubs.
        """
        if self.push_works:
            self.push_works = False
            self._poll_by(now + self._interval.next(news=True) * self._random.random())
            when = now + self._pace.poll * self._random.uniform(0.5, 1.0)
            self.offer_due = self._earlier(self.offer_due, when)
