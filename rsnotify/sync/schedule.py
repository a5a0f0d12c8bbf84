"""When the Source's documents are read next."""

from __future__ import annotations

from random import Random

from rsnotify.sync.document_notices import DocumentsToRead
from rsnotify.sync.pace import Pace

#: How much sooner than otherwise a poll comes after news.
QUICKER = 8


class PollInterval:
    """How long to wait between polls: little after news, then more and more.

    Changes come in bursts, so the best guess at when the next one comes is that the last one
    was just now.

    Args:
        most: The longest wait, in seconds.
    """

    def __init__(self, most: float) -> None:
        self._most = most
        self._wait = most

    def next(self, *, news: bool) -> float:
        """Return how long to wait now.

        Args:
            news: Whether there is reason to think that more comes soon.
        """
        wait = self._most / QUICKER if news else self._wait
        self._wait = min(self._most, 2 * wait)
        return wait


class Schedule:
    """When the next climb begins. Times called `now` are seconds of a clock that never jumps.

    Args:
        pace: How fast.
        random: The source of jitter.
    """

    def __init__(self, pace: Pace, random: Random) -> None:
        self._pace = pace
        self._random = random
        self._rhythm = PollInterval(pace.poll)
        self._not_before = 0.0
        self._routine = True
        #: When it is.
        self.due: float | None = None
        #: When it is to be read anew what the Source offers.
        self.offer_due: float | None = None
        #: Whether push works, so that polls only confirm it.
        self.relaxed = False

    def begun(self) -> bool:
        """Hear that a climb begins; return whether that is mere routine, as time has passed."""
        routine, self._routine = self._routine, True
        self.due = None
        return routine

    def soon(self, when: float) -> None:
        """Climb at this time, if not before, as something may be missing."""
        self._routine = False
        self._by(when)

    def _by(self, when: float) -> None:
        """Climb at this time, if not before; but not before the Source said to come back."""
        when = max(when, self._not_before)
        self.due = when if self.due is None else min(self.due, when)

    def told(self, look: DocumentsToRead, now: float, listeners: int) -> None:
        """Hear what there is reason to look at. All who were told do not come at once.

        Args:
            look: At what.
            now: The time.
            listeners: How many were told the same, as far as is known.
        """
        within = max(self._pace.spread_among(listeners), self._pace.poll / QUICKER)
        when = now + self._random.uniform(0.0, within)
        if look.lists:
            self._by(when)
        if look.offer:
            self._offer_by(when)

    def _offer_by(self, when: float) -> None:
        when = max(when, self._not_before)
        self.offer_due = when if self.offer_due is None else min(self.offer_due, when)

    def is_offer_due(self, now: float) -> bool:
        """Tell once whether it is time to read anew what the Source offers."""
        if self.offer_due is None or now < self.offer_due:
            return False
        self.offer_due = None
        return True

    def poll(self, now: float, *, news: bool, anxious: bool) -> None:
        """Look again after the usual wait.

        Args:
            now: The time.
            news: Whether there was something new this time.
            anxious: Whether even push cannot bring what is missing.
        """
        wait = self._rhythm.next(news=news)
        self._by(now + (self._pace.poll_with_push if self.relaxed and not anxious else wait))

    def retry(self, now: float, attempts: int) -> None:
        """Look again in a moment, as what is there now is not yet enough."""
        self.soon(now + self._pace.retry.delay(attempts, self._random))

    def back_off(self, now: float, failures: int, wish: float | None, costly: float) -> None:
        """Try again later, as something failed.

        Args:
            now: The time.
            failures: How often in a row.
            wish: How long the Source asked to be left alone, if it did.
            costly: How long to wait at least, for what it costs to try again.
        """
        least = max(wish or 0.0, costly)
        self.due = now + self._pace.retry.delay(failures, self._random, at_least=least)
        if wish is not None:
            self._not_before = self.due

    def push_lost(self, now: float) -> None:
        """Hear that only polls tell of changes now. All who lost it do not come at once.

        It may be that the Source has gone to other hubs, and could tell of it only there.
        """
        if self.relaxed:
            self.relaxed = False
            self._by(now + self._rhythm.next(news=True) * self._random.random())
            self._offer_by(now + self._pace.poll * self._random.uniform(0.5, 1.0))
