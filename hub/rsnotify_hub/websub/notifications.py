"""Builds the requests' bodies from log entries, and merges contiguous fragments."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec import Struct

from rsnotify_hub.fragments import (
    MERGED_CONTENT_TYPE,
    FragmentKind,
    count_chained,
    merge_fragments,
)
from rsnotify_hub.log.topic_log import TopicLogs
from rsnotify_hub.store.interface import LogEntry, LogState
from rsnotify_hub.websub.callback_subscriber import DeliveryAttempt
from rsnotify_hub.websub_subscription import Subscription

#: Maximum size of a merged fragment, in bytes.
MERGED_BYTES = 256 * 1024


class Notification(Struct, frozen=True):
    """The next request body for a subscription, and the log position that it reaches.

    The body is None if there is nothing to send.
    """

    body: bytes | None
    content_type: str
    position: int


class Notifications:
    """Builds notifications. Subscriptions at the same position of a log share one notification."""

    def __init__(self, topics: TopicLogs) -> None:
        self._topics = topics
        self._last: tuple[LogState, int, Notification] | None = None

    def next_in_memory(self, subscription: Subscription) -> Notification | None:
        """Return the next notification, or None if building it requires reading or merging."""
        topic, after = subscription.topic, subscription.position
        state = self._topics.state(topic)  # replaced by a new object whenever the log changes
        if (found := self._known(state, after)) is not None:
            return found
        entries = _drop_replaced(self._topics.recent(topic, after=after) or [])
        if state is None or not entries or (len(entries) > 1 and _count_chained(entries) > 1):
            return None
        return self._remember(state, after, _unmerged(entries[0]))

    async def next(self, subscription: Subscription) -> Notification:
        """Return the next notification.

        Contiguous fragments are merged. If several entries have whole content, only the newest is
        used.
        """
        topic, after = subscription.topic, subscription.position
        state = self._topics.state(topic)
        if (found := self._known(state, after)) is not None:
            return found
        if state is None:
            return Notification(None, "", 0)
        entries = _drop_replaced(await self._topics.read(topic, after=after))
        if not entries:  # the undelivered entries were trimmed
            return Notification(None, "", state.position)
        return self._remember(state, after, await _merged(entries[: _count_chained(entries)]))

    async def rebuild(self, topic: str, attempt: DeliveryAttempt) -> bytes | None:
        """Rebuild the body that an attempt sent. Return None if the log no longer has all of it."""
        read = await self._topics.read(topic, after=attempt.after)
        entries = _drop_replaced([each for each in read if each.position <= attempt.through])
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


def _count_chained(entries: Sequence[LogEntry]) -> int:
    return count_chained([entry.fragment for entry in entries], max_bytes=MERGED_BYTES)


def _unmerged(entry: LogEntry) -> Notification:
    return Notification(entry.fragment.body, entry.fragment.content_type, entry.position)


async def _merged(entries: Sequence[LogEntry]) -> Notification:
    if len(entries) == 1:
        return _unmerged(entries[0])
    # Merge in a thread, so that other deliveries do not have to wait.
    body = await asyncio.to_thread(merge_fragments, [entry.fragment for entry in entries])
    return Notification(body, MERGED_CONTENT_TYPE, entries[-1].position)


def _drop_replaced(entries: Sequence[LogEntry]) -> Sequence[LogEntry]:
    """Return the entries from the newest whole content on."""
    wholes = (
        number for number, entry in enumerate(entries) if entry.fragment.kind is FragmentKind.WHOLE
    )
    return entries[max(wholes, default=0) :]
