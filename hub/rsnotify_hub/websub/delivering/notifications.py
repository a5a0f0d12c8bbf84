"""What a subscription is sent next, from its place in the log."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec import Struct

from rsnotify_hub.log.fragments import MERGED_CONTENT_TYPE, count_chained, merge_fragments
from rsnotify_hub.log.store import LogEntry, LogState
from rsnotify_hub.log.topic_logs import TopicLogs
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

    def __init__(self, topics: TopicLogs) -> None:
        self._topics = topics
        self._last: tuple[LogState, int, Notification] | None = None

    def at_hand(self, subscription: Subscription) -> Notification | None:
        """Return what is next where that takes neither reading nor merging; else None."""
        topic, after = subscription.topic, subscription.position
        state = self._topics.state(topic)  # another value whenever anything in the log changes
        if self._last is not None and self._last[0] is state and self._last[1] == after:
            return self._last[2]
        entries = _latest(self._topics.recent(topic, after=after) or [])
        if state is None or not entries or (len(entries) > 1 and _chained(entries) > 1):
            return None
        return self._keep(state, after, _alone(entries[0]))

    async def next(self, subscription: Subscription) -> Notification:
        """Read on in the log. What chains is merged; of whole contents only the newest matters.

        Args:
            subscription: What lags.

        Raises:
            StorageError: The log cannot be read.
        """
        if (found := self.at_hand(subscription)) is not None:
            return found
        topic, after = subscription.topic, subscription.position
        state = self._topics.state(topic)
        if state is None:
            return Notification(None, "", 0)
        entries = _latest(await self._topics.read(topic, after=after))
        if not entries:  # what it had not got was trimmed
            return Notification(None, "", state.position)
        return self._keep(state, after, await _merged(entries[: _chained(entries)]))

    def _keep(self, state: LogState, after: int, found: Notification) -> Notification:
        self._last = state, after, found
        return found


def _chained(entries: Sequence[LogEntry]) -> int:
    return count_chained([entry.fragment for entry in entries], max_bytes=MERGED_BYTES)


def _alone(entry: LogEntry) -> Notification:
    return Notification(entry.fragment.body, entry.fragment.content_type, entry.position)


async def _merged(entries: Sequence[LogEntry]) -> Notification:
    if len(entries) == 1:
        return _alone(entries[0])
    # Others need not wait for it.
    body = await asyncio.to_thread(merge_fragments, [entry.fragment for entry in entries])
    return Notification(body, MERGED_CONTENT_TYPE, entries[-1].position)


def _latest(entries: Sequence[LogEntry]) -> Sequence[LogEntry]:
    """Return what is left when a whole content takes the place of all before it."""
    wholes = (number for number, entry in enumerate(entries) if entry.fragment.whole)
    return entries[max(wholes, default=0) :]
