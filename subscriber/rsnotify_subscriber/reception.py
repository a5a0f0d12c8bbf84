"""What is pushed, on its way to the follower."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from rsnotify.actions import Action
from rsnotify.datetimes import Instant
from rsnotify.errors import DocumentError
from rsnotify.follower import Follower
from rsnotify.reading import read_document
from rsnotify_subscriber.events import Announcer, GapSeen


class Reception:
    """Hands over to a follower what arrives; the `Events` of a `Push`.

    After a loss the lists are polled as without push until something new has come: a broker may
    be there without the hub behind it, and a hub before the Source has reached it again.

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

    def up(self) -> None:
        """Hear that fragments arrive."""
        if not self._is_lost:
            self._perform(self._follower.push_up(self._loop.time()))

    def down(self) -> None:
        """Hear that no fragments arrive any more."""
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
        self._perform(self._follower.fragment(read, now))
        until = read.until or read.changed_at
        self._prove(until)
        return until

    def _prove(self, until: Instant | None) -> None:
        """Rely on push again, if this is newer than what was known when it was lost."""
        is_new = until is not None and (self._known is None or until > self._known)
        if self._is_lost and is_new:
            self._is_lost = False
            self.up()
