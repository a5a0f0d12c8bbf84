"""The feed of one hub: what it is sent next, and how far it has come.

A transport asks `fragments` for one fragment after the other and calls `accepted` for what
the hub has made durable. Between connections the feed keeps the place.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from rsnotify.format.datetimes import Instant, format_datetime, from_microseconds, to_microseconds
from rsnotify.format.digest import SetDigest
from rsnotify.format.model import Resource
from rsnotify_publisher.journal import JournalState
from rsnotify_publisher.push.fragments import FragmentWriter, OutgoingFragment, may_be_inline

_log = logging.getLogger("rsnotify.publisher")
#: Seconds between two fragments with changes that also tell the digest of the set.
_DIGEST_EVERY = 1.0

InlineContents = Callable[[Sequence[str]], Mapping[str, bytes]]


class ChangeStream(Protocol):
    """What a feed follows: the journal's changes, or its notices of documents. Instants in µs."""

    def state(self) -> JournalState:
        """Tell where it stands."""

    def last_change_at(self, instant: int) -> int:
        """Return the datetime of the last change at or before an instant, or where it begins."""

    def changes(self, after: int, limit: int) -> list[Resource]:
        """Read the changes later than `after`, oldest first, at most `limit`."""


def resume_at(through: int | None, cursor: int, state: JournalState) -> int:
    """Decide from which instant on a hub is fed.

    Args:
        through: What the hub says it has; None if it says nothing or has nothing.
        cursor: What it is known to have accepted.
        state: Where the journal stands.

    Returns:
        The hub's word, which tells of a loss and of what was not noted here, as far as the
        journal reaches.
    """
    start = cursor if through is None else through
    return min(max(start, state.pruned), state.reached)


class HubFeed:
    """Feeds one hub.

    Args:
        journal: What there is to tell; read in the event loop's thread.
        cursor: Through which instant the hub is known to have everything.
        writer: Writes the fragments.
        promise: Makes a promise durable, and tells where the journal then stands.
        contents: Reads what resources hold, in a thread; None sends nothing inline.
        heartbeat: Seconds of quiet before a heartbeat.
        batch: How many changes are read at once.
    """

    def __init__(
        self,
        journal: ChangeStream,
        cursor: int,
        writer: FragmentWriter,
        promise: Callable[[], Awaitable[JournalState]],
        contents: InlineContents | None,
        *,
        heartbeat: float,
        batch: int,
    ) -> None:
        self._journal = journal
        self._writer = writer
        self._promise = promise
        self._contents = contents
        self._heartbeat = heartbeat
        self._batch = batch
        self._news = asyncio.Event()
        self._sent = cursor
        self._is_pinged = False
        self._digest_due = 0.0
        self._documented = 0
        self._more_documented = asyncio.Event()
        self.cursor = cursor

    def wake(self) -> None:
        """Say that the journal has something new."""
        self._news.set()

    def accepted(self, until: Instant) -> None:
        """Note that the hub has everything through `until`."""
        self.cursor = max(self.cursor, to_microseconds(until))

    def show(self, through: int) -> None:
        """Note that the documents show every change through an instant (µs)."""
        self._documented = through
        self._more_documented.set()

    async def documented(self, until: Instant) -> Instant:
        """Wait until the documents show every change through `until`; return how far they go."""
        while self._documented < to_microseconds(until):
            self._more_documented.clear()
            await self._more_documented.wait()
        return from_microseconds(self._documented)

    def pinged(self, hub: str, reason: str) -> None:
        """Log once that a hub is pinged, since it does not accept fragments."""
        level = logging.DEBUG if self._is_pinged else logging.INFO
        _log.log(level, "%s does not accept posted changes (%s); it is pinged instead", hub, reason)
        self._is_pinged = True

    async def fragments(
        self, through: Instant | None = None
    ) -> AsyncGenerator[OutgoingFragment, None]:
        """Yield what the hub lacks, then what is new as it comes, without end.

        Args:
            through: What the hub says it has, at the start of this connection.
        """
        said = None if through is None else to_microseconds(through)
        state = self._journal.state()
        self._sent = resume_at(said, self.cursor, state)
        due = self._next_heartbeat()
        if said is not None and said > state.reached:
            _log.warning(
                "the hub has changes until %s, and this journal ends at %s: it was restored from a "
                "backup, or is not the one that was published before. Destinations that have the "
                "later changes must compare what they hold with the Resource List",
                *(format_datetime(from_microseconds(at)) for at in (said, state.reached)),
            )
            due = 0.0  # say so at once, by a fragment without these changes
        while True:
            self._news.clear()
            last = self._journal.last_change_at(self._sent)
            changes = self._journal.changes(self._sent, self._batch)
            if changes:
                digest = self._digest_after(changes)
                contents = await self._read(changes)
                begin = from_microseconds(last)
                for fragment in self._writer.fragments(begin, changes, contents, digest):
                    yield self._sending(fragment)
                due = self._next_heartbeat()
            elif not await self._news_before(due):
                state = await self._promise()
                if state.last_change == last:
                    begin, until = from_microseconds(last), from_microseconds(state.reached)
                    yield self._sending(self._writer.heartbeat(begin, until, state.digest))
                    due = self._next_heartbeat()

    def _digest_after(self, changes: Sequence[Resource]) -> SetDigest | None:
        """Return what can be said of the set after these changes, now and then.

        A Source that is never quiet has no heartbeats, so changes carry it as well.
        """
        now = asyncio.get_running_loop().time()
        until = changes[-1].datetime
        if now < self._digest_due or until is None:
            return None
        # Read later than the changes were: it speaks of them, or of more.
        state = self._journal.state()
        if state.last_change != to_microseconds(until):
            return None
        self._digest_due = now + _DIGEST_EVERY
        return state.digest

    def _next_heartbeat(self) -> float:
        return asyncio.get_running_loop().time() + self._heartbeat

    def _sending(self, fragment: OutgoingFragment) -> OutgoingFragment:
        self._sent = to_microseconds(fragment.until)
        return fragment

    async def _read(self, changes: Sequence[Resource]) -> Mapping[str, bytes]:
        newest = {change.uri: change for change in changes}
        wanted = [uri for uri, change in newest.items() if may_be_inline(change)]
        if self._contents is None or not wanted:
            return {}
        return await asyncio.to_thread(self._contents, wanted)

    async def _news_before(self, due: float) -> bool:
        try:
            async with asyncio.timeout_at(due):
                await self._news.wait()
        except TimeoutError:
            return False
        return True
