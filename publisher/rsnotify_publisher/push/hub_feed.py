"""The feed of one hub: the next fragment to send, and the hub's cursor.

A transport takes one fragment after the other from `fragments`, and calls `accepted` for what the
hub has made durable. The feed keeps the cursor between connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass

from rsnotify.format.datetimes import Instant, format_datetime, from_microseconds, to_microseconds
from rsnotify.format.digest import SetDigest
from rsnotify_publisher.journal import JournalState, RecordedChanges
from rsnotify_publisher.push.change_stream import Stream
from rsnotify_publisher.push.channel_news import ChannelNews
from rsnotify_publisher.push.fragments import FragmentWriter, OutgoingFragment

_log = logging.getLogger("rsnotify.publisher")


def resume_at(through: int | None, cursor: int, state: JournalState) -> int:
    """Return the instant from which a hub is fed.

    This is what the hub reports, as far as the journal reaches: it may have lost something, or have
    accepted more than was noted here. If it reports nothing, it is the cursor noted here.
    """
    start = cursor if through is None else through
    return min(max(start, state.pruned), state.reached)


@dataclass(eq=False)
class HubFeed:
    """Feeds one hub on one channel.

    Args:
        stream: Changes, or notices of documents.
        cursor: Through which instant (µs) the hub is known to have everything.
        writer: Writes the fragments.
        promise: Makes a promise durable, and returns where the journal then ends, and the digest.
        news: Of the channel.
        heartbeat: Seconds of quiet before a heartbeat, and between two digests sent with changes.
        batch: How many changes are read at once.
    """

    stream: Stream
    cursor: int
    writer: FragmentWriter
    promise: Callable[[], Awaitable[JournalState]]
    news: ChannelNews
    heartbeat: float
    batch: int

    def __post_init__(self) -> None:
        #: After which instant (µs) the next fragment begins.
        self.sent = self.cursor
        #: Through which instant (µs) a hub may have something that is in the journal: where it
        #: ended before this process promised anything, or what was sent since.
        self._published = self.stream.state().reached
        self._is_pinged = False
        self._digest_due = 0.0
        #: The last state whose digest is known, which is sent with the last change before it.
        self._known: JournalState | None = None

    def accepted(self, until: Instant) -> None:
        self.cursor = max(self.cursor, to_microseconds(until))

    def pinged(self, hub: str, reason: str) -> None:
        """Log once that a hub is pinged, since it does not accept fragments."""
        level = logging.DEBUG if self._is_pinged else logging.INFO
        _log.log(level, "%s does not accept posted changes (%s); it is pinged instead", hub, reason)
        self._is_pinged = True

    async def fragments(
        self, through: Instant | None = None
    ) -> AsyncGenerator[OutgoingFragment, None]:
        """Yield what the hub lacks, then new changes as they come, without end.

        At the start of this connection, the hub reports to have everything `through` an instant.
        """
        reported = None if through is None else to_microseconds(through)
        state = self.stream.state()
        self.sent = resume_at(reported, self.cursor, state)
        clock = asyncio.get_running_loop().time
        due = clock() + self.heartbeat
        if reported is not None and reported > self._published:
            _log.warning(
                "the hub has changes until %s, and this journal ended at %s: it was restored from "
                "a backup, or is not the one that was published before. Destinations that have the "
                "later changes must compare what they hold with the Resource List",
                *(format_datetime(from_microseconds(at)) for at in (reported, self._published)),
            )
            due = 0.0  # send a fragment without these changes at once
        while True:
            changes = self.stream.read(self.sent, self.batch)
            if changes is not None:
                changes, digest = await self._with_digest(changes)
                contents = await self.stream.contents(changes)
                begin = from_microseconds(changes.begin)
                for fragment in self.writer.fragments(begin, changes.changes, contents, digest):
                    yield self._sending(fragment)
                due = clock() + self.heartbeat
            elif not await self.news.notified(due):
                state = await self.promise()
                # A change may be on its way to this feed; and a clock that stands promises nothing.
                if state.last_change <= self.sent < state.reached:
                    begin, until = map(from_microseconds, (state.last_change, state.reached))
                    yield self._sending(self.writer.heartbeat(begin, until, state.digest))
                due = self._digest_due = clock() + self.heartbeat

    async def _with_digest(
        self, changes: RecordedChanges
    ) -> tuple[RecordedChanges, SetDigest | None]:
        """Return changes, and the digest of the set after them if it is known.

        A Source that is never quiet sends no heartbeats, so changes carry the digest as well. More
        may have been recorded since the digest was known; they are sent next.
        """
        clock = asyncio.get_running_loop().time
        # A hub that lags is sent the changes that it lacks first.
        if clock() >= self._digest_due and self.stream.state().last_change <= changes.end:
            self._known = await self.promise()
            self._digest_due = clock() + self.heartbeat
        if self._known is None or not changes.begin < self._known.last_change <= changes.end:
            return changes, None
        return changes.through(self._known.last_change), self._known.digest

    def _sending(self, fragment: OutgoingFragment) -> OutgoingFragment:
        self.sent = to_microseconds(fragment.until)
        self._published = max(self._published, self.sent)
        return fragment
