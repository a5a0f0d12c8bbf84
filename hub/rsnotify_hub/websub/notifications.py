"""What a subscription is sent next, from its place in the log."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec import Struct

from rsnotify_hub.log.fragments import MERGED_CONTENT_TYPE, chained, merge
from rsnotify_hub.log.store import Entry
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


async def next_notification(topics: Topics, subscription: Subscription) -> Notification:
    """Read on in the log. What chains is merged; of whole contents only the newest matters.

    Args:
        topics: The logs.
        subscription: What lags.

    Raises:
        StorageError: The log cannot be read.
    """
    end = topics.position(subscription.topic)
    entries = await topics.read(subscription.topic, after=subscription.position)
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
