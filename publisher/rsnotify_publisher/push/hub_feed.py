"""The feed of one hub: the next fragment to send, and the hub's cursor.

A transport takes one fragment after the other from `fragments`, and calls `accepted` for what the
hub has made durable. The feed keeps the cursor between connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from rsnotify.format.datetimes import Instant, format_datetime, from_microseconds, to_microseconds
from rsnotify.format.digest import SetDigest
from rsnotify.format.model import Resource
from rsnotify.runtime.tasks import wait_for_event
from rsnotify_publisher.framework import FrameworkNotices
from rsnotify_publisher.journal import Journal, JournalState
from rsnotify_publisher.push.fragments import FragmentWriter, OutgoingFragment, may_be_inline

_log = logging.getLogger("rsnotify.publisher")
#: Seconds between two fragments with changes that also carry the digest of the set.
_DIGEST_EVERY = 1.0

InlineContents = Callable[[Sequence[str]], Mapping[str, bytes]]


class ChannelNews:
    """What is new on one channel, for the feeds of all its hubs; used in one event loop."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._documented = 0
        self._more_documented = asyncio.Event()

    def notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def next(self) -> asyncio.Event:
        """Return an event that the next `notify` sets.

        A feed that gets it before it reads the journal misses no change.
        """
        return self._changed

    def set_documented(self, through: int) -> None:
        """Note that the documents show every change through an instant (µs)."""
        self._documented = through
        self._more_documented.set()
        self._more_documented = asyncio.Event()

    async def documented(self, until: Instant) -> Instant:
        """Wait until the documents show every change through `until`; return how far they go."""
        while self._documented < to_microseconds(until):
            await self._more_documented.wait()
        return from_microseconds(self._documented)


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
        stream: Changes, or notices of documents; read in the event loop's thread.
        cursor: Through which instant (µs) the hub is known to have everything.
        writer: Writes the fragments.
        promise: Makes a promise durable, and returns where the journal then ends.
        contents: Reads contents, in a thread; None sends nothing inline.
        news: Of the channel.
        heartbeat: Seconds of quiet before a heartbeat.
        batch: How many changes are read at once.
    """

    stream: Journal | FrameworkNotices
    cursor: int
    writer: FragmentWriter
    promise: Callable[[], Awaitable[JournalState]]
    contents: InlineContents | None
    news: ChannelNews
    heartbeat: float
    batch: int

    def __post_init__(self) -> None:
        self._sent = self.cursor
        self._is_pinged = False
        self._digest_due = 0.0

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
        self._sent = resume_at(reported, self.cursor, state)
        clock = asyncio.get_running_loop().time
        due = clock() + self.heartbeat
        if reported is not None and reported > state.reached:
            _log.warning(
                "the hub has changes until %s, and this journal ends at %s: it was restored from a "
                "backup, or is not the one that was published before. Destinations that have the "
                "later changes must compare what they hold with the Resource List",
                *(format_datetime(from_microseconds(at)) for at in (reported, state.reached)),
            )
            due = 0.0  # send a fragment without these changes at once
        while True:
            changed = self.news.next()
            last = self.stream.last_change_at(self._sent)
            changes = self.stream.changes(self._sent, self.batch)
            if changes:
                digest = self._digest_after(changes)
                contents = await self._read(changes)
                begin = from_microseconds(last)
                for fragment in self.writer.fragments(begin, changes, contents, digest):
                    yield self._sending(fragment)
                due = clock() + self.heartbeat
            elif not await wait_for_event(changed, due - clock()):
                state = await self.promise()
                # Nothing is promised again, such as by a clock that stands.
                if state.last_change == last and state.reached > self._sent:
                    begin, until = from_microseconds(last), from_microseconds(state.reached)
                    yield self._sending(self.writer.heartbeat(begin, until, state.digest))
                    due = clock() + self.heartbeat

    def _digest_after(self, changes: Sequence[Resource]) -> SetDigest | None:
        """Return the digest of the set after these changes, at most every `_DIGEST_EVERY`.

        A Source that is never quiet sends no heartbeats, so changes carry the digest as well.
        """
        now = asyncio.get_running_loop().time()
        until = changes[-1].datetime
        if now < self._digest_due or until is None:
            return None
        # The state is read later than the changes, so it may already include more of them.
        state = self.stream.state()
        if state.last_change != to_microseconds(until):
            return None
        self._digest_due = now + _DIGEST_EVERY
        return state.digest

    def _sending(self, fragment: OutgoingFragment) -> OutgoingFragment:
        self._sent = to_microseconds(fragment.until)
        return fragment

    async def _read(self, changes: Sequence[Resource]) -> Mapping[str, bytes]:
        newest = {change.uri: change for change in changes}
        wanted = [uri for uri, change in newest.items() if may_be_inline(change)]
        if self.contents is None or not wanted:
            return {}
        return await asyncio.to_thread(self.contents, wanted)
