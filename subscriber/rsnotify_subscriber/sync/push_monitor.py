"""The intake of what is pushed, fragments and notifications, on its way to the follower."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from rsnotify.errors import DocumentError
from rsnotify.format.datetimes import Instant
from rsnotify.format.digest import COUNT
from rsnotify.format.model import Document
from rsnotify.format.reader import read_document
from rsnotify.sync.actions import Action
from rsnotify.sync.follower import Follower
from rsnotify_subscriber.events import Announcer, GapSeen
from rsnotify_subscriber.push.endpoint_connection import PushEvents

logger = logging.getLogger("rsnotify.subscriber")

#: Seconds for which a Source that sends heartbeats may be silent: ours sends one every ten.
QUIET = 15.0
#: Seconds for which it may be silent at most, however rarely the heartbeats come.
LONGEST_QUIET = 60.0
#: Seconds within which another connection makes good the loss of the last one.
RETURN = 1.0


@dataclass
class PushMonitor(PushEvents):
    """Hands pushed fragments to a follower.

    After a loss of push the lists are polled as without it until something new has come: a broker
    may be connected without the hub behind it, and a hub before the Source has reached it again.
    Heartbeats that stop are a loss, too: the Source may not reach the hub any more, or use another.
    So where there are heartbeats, a connection that is replaced within `RETURN` is no loss: the hub
    sends what came since, and if the Source does not reach it, the heartbeats stop.
    """

    follower: Follower
    #: Performs the follower's actions.
    perform: Callable[[Iterable[Action]], None]
    announce: Announcer
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop, init=False)
    _is_lost: bool = False
    _known: Instant | None = None  # when push was lost
    _received_at: float = 0.0
    _longest: float = 0.0  # of the silences so far
    _silence: asyncio.TimerHandle | None = None  # while there are heartbeats
    _return: asyncio.TimerHandle | None = None  # while there is no connection, and may be soon

    def up(self) -> None:
        if self._return is not None:
            self._return.cancel()
            self._return = None
        elif not self._is_lost:
            self.perform(self.follower.push_up(self._loop.time()))

    def down(self) -> None:
        if self._silence is not None and self._return is None:
            self._return = self._loop.call_later(RETURN, self._lose)
        elif self._return is None:
            self._lose()

    def ended(self) -> None:
        for timer in filter(None, (self._silence, self._return)):
            timer.cancel()
        self._silence = self._return = None

    def _lose(self) -> None:
        self.ended()
        self._is_lost, self._known = True, self.follower.since
        self.perform(self.follower.push_down(self._loop.time()))

    def audience(self, listeners: int) -> None:
        self.follower.audience(listeners)

    def gap(self) -> None:
        self.announce(GapSeen())
        self.perform(self.follower.push_gap(self._loop.time()))

    def fragment(self, document: bytes) -> Instant | None:
        now = self._loop.time()
        try:
            read = read_document(document, source="a fragment")
        except DocumentError as error:
            self.perform(self.follower.fragment_unreadable(error, now))
            return None
        self.perform(self.follower.fragment(read, now, datetime.now(UTC)))
        until = read.until or read.changed_at
        self._end_loss(until)
        self._watch_silence(now, beats=not read.resources or COUNT in dict(read.attributes))
        return until

    def _watch_silence(self, now: float, *, beats: bool) -> None:
        """Measure the silence before a fragment, and start the timer at the first heartbeat.

        `beats` is whether the fragment shows that there are heartbeats (docs/audit.md).
        """
        if self._silence is not None:
            self._longest = max(self._longest, now - self._received_at)
        self._received_at = now
        if beats and self._silence is None and not self._is_lost:
            self._silence = self._loop.call_at(self._due, self._check_silence)

    @property
    def _due(self) -> float:
        """When the silence has lasted for too long."""
        return self._received_at + min(LONGEST_QUIET, max(QUIET, 2 * self._longest))

    def _check_silence(self) -> None:
        """Give push up after a long silence. One timer serves any number of fragments."""
        if self._loop.time() < self._due:
            self._silence = self._loop.call_at(self._due, self._check_silence)
        else:
            self._lose()

    def _end_loss(self, until: Instant | None) -> None:
        """Rely on push again if a fragment is newer than the changes known at the loss."""
        since = self.follower.since
        if self._known is not None and since is not None and since < self._known:
            self._known = None  # the clock of the Source was set back
        is_new = until is not None and (self._known is None or until > self._known)
        if self._is_lost and is_new:
            self._is_lost = False
            self.up()


class NoticeReceiver(PushEvents):
    """Receives notifications about the documents of a Source, and ignores all other events.

    Nothing depends on a notification: a document without one is found by polling.
    """

    def __init__(self, received: Callable[[Document], None]) -> None:
        self._received = received

    def fragment(self, document: bytes) -> Instant | None:
        try:
            read = read_document(document, source="a notification about documents")
        except DocumentError as error:
            logger.info("%s", error)
            return None
        self._received(read)
        return read.until
