"""What a subscription is sent next, from its place in the log."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec import Struct

from rsnotify_hub.log.fragments import MERGED_CONTENT_TYPE, chained, merge
from rsnotify_hub.log.store import Entry, LogState
from rsnotify_hub.log.topics import Topics
from rsnotify_hub.subscriptions import Subscription

#: How large a merged fragment may be.
MERGED_BYTES = 256 * 1024


class Notification(Struct, frozen=True):
    """A content distribution request (WebSub §7).

    Args:
        body: The content; None where there is nothing to send any more.
        content_type: What it is.
        position: The place in the log that it reaches.
    """

    body: bytes | None
    content_type: str
    position: int


class Notifications:
    """What subscriptions are sent. Those at one place of one log are sent the same, which is
    worked out once.

    Args:
        topics: The logs.
    """

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._last: tuple[LogState, int, Notification] | None = None

    async def next(self, subscription: Subscription) -> Notification:
        """Read on in the log. What chains is merged; of whole contents only the newest matters.

        Args:
            subscription: What lags.

        Raises:
            StorageError: The log cannot be read.
        """
        topic, after = subscription.topic, subscription.position
        state = self._topics.state(topic)  # another value whenever anything in the log changes
        if state is None:
            return Notification(None, "", 0)
        if self._last is not None and self._last[0] is state and self._last[1] == after:
            return self._last[2]
        found = await self._next(topic, after, state.position)
        self._last = state, after, found
        return found

    async def _next(self, topic: str, after: int, end: int) -> Notification:
        entries = await self._topics.read(topic, after=after)
        if not entries:  # what it had not got was trimmed
            return Notification(None, "", end)
        entries = entries[_newest_whole(entries) :]
        fragments = [entry.fragment for entry in entries]
        count = chained(fragments, max_bytes=MERGED_BYTES)
        position = entries[count - 1].position
        if count == 1:
            return Notification(fragments[0].body, fragments[0].content_type, position)
        body = await asyncio.to_thread(merge, fragments[:count])  # others need not wait for it
        return Notification(body, MERGED_CONTENT_TYPE, position)


def _newest_whole(entries: Sequence[Entry]) -> int:
    """Return where the content stands that took the place of all before it; else 0."""
    wholes = (number for number, entry in enumerate(entries) if entry.fragment.whole)
    return max(wholes, default=0)
