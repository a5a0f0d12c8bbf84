"""The next notification of a subscription, from its position in the log."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec import Struct

from rsnotify_hub.fragments.fragment import MERGED_CONTENT_TYPE, count_chained, merge_fragments
from rsnotify_hub.log.topic_logs import TopicLogs
from rsnotify_hub.store.interface import LogEntry, LogState
from rsnotify_hub.subscriptions import Subscription
from rsnotify_hub.websub.delivery.delivery import DeliveryAttempt

#: How large a merged fragment may be.
MERGED_BYTES = 256 * 1024


class Notification(Struct, frozen=True):
    """The next content of a subscription, or None, and the position in the log that it reaches."""

    body: bytes | None
    content_type: str
    position: int


class Notifications:
    """Builds notifications. Subscriptions at one position of one log share the same one."""

    def __init__(self, topics: TopicLogs) -> None:
        self._topics = topics
        self._last: tuple[LogState, int, Notification] | None = None

    def cached(self, subscription: Subscription) -> Notification | None:
        """Return the next notification if that takes neither reading nor merging; else None."""
        topic, after = subscription.topic, subscription.position
        state = self._topics.state(topic)  # another value whenever anything in the log changes
        if (found := self._known(state, after)) is not None:
            return found
        entries = _latest(self._topics.recent(topic, after=after) or [])
        if state is None or not entries or (len(entries) > 1 and _chained(entries) > 1):
            return None
        return self._remember(state, after, _alone(entries[0]))

    async def next(self, subscription: Subscription) -> Notification:
        """Read on. Fragments that chain are merged; of whole contents only the newest matters."""
        topic, after = subscription.topic, subscription.position
        state = self._topics.state(topic)
        if (found := self._known(state, after)) is not None:
            return found
        if state is None:
            return Notification(None, "", 0)
        entries = _latest(await self._topics.read(topic, after=after))
        if not entries:  # the undelivered entries were trimmed
            return Notification(None, "", state.position)
        return self._remember(state, after, await _merged(entries[: _chained(entries)]))

    async def again(self, topic: str, attempt: DeliveryAttempt) -> bytes | None:
        """Return what an attempt has sent; None if the log has not all of it any more."""
        read = await self._topics.read(topic, after=attempt.after)
        entries = _latest([each for each in read if each.position <= attempt.through])
        if not entries or entries[-1].position != attempt.through:
            return None
        body = (await _merged(entries)).body
        return body if body is not None and len(body) == attempt.size else None

    def _known(self, state: LogState | None, after: int) -> Notification | None:
        if self._last is not None and self._last[0] is state and self._last[1] == after:
            return self._last[2]
        return None

    def _remember(self, state: LogState, after: int, found: Notification) -> Notification:
        self._last = state, after, found
        return found


def _chained(entries: Sequence[LogEntry]) -> int:
    return count_chained([entry.fragment for entry in entries], max_bytes=MERGED_BYTES)


def _alone(entry: LogEntry) -> Notification:
    return Notification(entry.fragment.body, entry.fragment.content_type, entry.position)


async def _merged(entries: Sequence[LogEntry]) -> Notification:
    if len(entries) == 1:
        return _alone(entries[0])
    # In a thread, since other deliveries need not wait for it.
    body = await asyncio.to_thread(merge_fragments, [entry.fragment for entry in entries])
    return Notification(body, MERGED_CONTENT_TYPE, entries[-1].position)


def _latest(entries: Sequence[LogEntry]) -> Sequence[LogEntry]:
    """Drop the entries before the newest whole content, which it replaces."""
    wholes = (number for number, entry in enumerate(entries) if entry.fragment.whole)
    return entries[max(wholes, default=0) :]
