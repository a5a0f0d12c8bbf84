"""What is pushed, on its way to the follower."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from rsnotify.errors import DocumentError
from rsnotify.format.datetimes import Instant
from rsnotify.format.digest import COUNT
from rsnotify.format.reader import read_document
from rsnotify.sync.actions import Action
from rsnotify.sync.follower import Follower
from rsnotify_subscriber.events import Announcer, GapSeen

#: How many seconds a Source that sends heartbeats may be silent: ours sends one every ten.
QUIET = 15.0
#: How many it may be silent at most, however rarely they come.
LONGEST_QUIET = 60.0


class PushIntake:
    """Hands over to a follower what arrives; the `Events` of a `Push`.

    After a loss the lists are polled as without push until something new has come: a broker may
    be there without the hub behind it, and a hub before the Source has reached it again. That
    heartbeats stop is a loss, too: the Source may not reach the hub any more, or use another.

    Args:
        follower: Is told.
        perform: Performs what it asks for.
        announce: Is told of gaps.
    """

    def __init__(
        self,
        follower: Follower,
        perform: Callable[[Iterable[Action]], None],
        announce: Announcer,
    ) -> None:
        self._follower = follower
        self._perform = perform
        self._announce = announce
        self._loop = asyncio.get_running_loop()
        self._is_lost = False
        self._known: Instant | None = None  # when push was lost
        self._heard = 0.0
        self._longest = 0.0  # of the silences so far
        self._silence: asyncio.TimerHandle | None = None  # while there are heartbeats

    def up(self) -> None:
        """Hear that fragments arrive."""
        if not self._is_lost:
            self._perform(self._follower.push_up(self._loop.time()))

    def down(self) -> None:
        """Hear that no fragments arrive any more."""
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None
        self._is_lost, self._known = True, self._follower.since
        self._perform(self._follower.push_down(self._loop.time()))

    def audience(self, listeners: int) -> None:
        """Hear how many hear the same."""
        self._follower.audience(listeners)

    def gap(self) -> None:
        """Hear that the hub does not reach back."""
        self._announce(GapSeen())
        self._perform(self._follower.push_gap(self._loop.time()))

    def fragment(self, document: bytes) -> Instant | None:
        """Read a fragment that was pushed; return up to when it tells."""
        now = self._loop.time()
        try:
            read = read_document(document, source="a fragment")
        except DocumentError as error:
            self._perform(self._follower.fragment_unreadable(error, now))
            return None
        self._perform(self._follower.fragment(read, now, datetime.now(UTC)))
        until = read.until or read.changed_at
        self._prove(until)
        self._hear(now, beats=not read.resources or COUNT in dict(read.attributes))
        return until

    def _hear(self, now: float, *, beats: bool) -> None:
        """Hear a fragment, and whether it shows that there are heartbeats (docs/audit.md)."""
        if self._silence is not None:
            self._longest = max(self._longest, now - self._heard)
        self._heard = now
        if beats and self._silence is None and not self._is_lost:
            self._silence = self._loop.call_at(self._due, self._listen)

    @property
    def _due(self) -> float:
        """When it has been silent for too long."""
        return self._heard + min(LONGEST_QUIET, max(QUIET, 2 * self._longest))

    def _listen(self) -> None:
        """Count on push no more if it is silent. One timer does for any number of fragments."""
        if self._loop.time() < self._due:
            self._silence = self._loop.call_at(self._due, self._listen)
        else:
            self.down()

    def _prove(self, until: Instant | None) -> None:
        """Rely on push again, if this is newer than what was known when it was lost."""
        since = self._follower.since
        if self._known is not None and since is not None and since < self._known:
            self._known = None  # the time of the Source has gone back
        is_new = until is not None and (self._known is None or until > self._known)
        if self._is_lost and is_new:
            self._is_lost = False
            self.up()
