"""Monitoring pulls: their events, and whether they found changes that push should have sent."""

from __future__ import annotations

import asyncio

from rsnotify.format.model import Document
from rsnotify.sync.actions import DocumentKind, Fetch
from rsnotify.sync.follower import Follower
from rsnotify_subscriber.events import Announcer, Pulling
from rsnotify_subscriber.push.subscription import PushSubscription


class PullMonitor:
    """Announces pulls, and reports to a `PushSubscription` whether they found newer changes.

    Args:
        follower: Knows the changes that were received.
        push: Is called at the end of each pull.
        announce: Is called with the kind of document that a pull reads.
    """

    def __init__(self, follower: Follower, push: PushSubscription, announce: Announcer) -> None:
        self._follower = follower
        self._push = push
        self._announce = announce
        self._pending = 0
        self._kind: DocumentKind | None = None
        self._began = 0.0
        self._has_news = False

    def requested(self, fetch: Fetch) -> None:
        """Note that a document is requested."""
        if not self._pending or fetch.rung is not self._kind:
            self._announce(Pulling(fetch.rung, fetch.uri))
        if not self._pending:
            self._began, self._has_news = asyncio.get_running_loop().time(), False
        self._pending += 1
        self._kind = fetch.rung

    def fetched(self, fetch: Fetch, document: Document) -> None:
        """Examine a document, before the follower receives it."""
        last, known = document.changed_at, self._follower.since
        if fetch.rung is DocumentKind.CHANGE_LIST and not document.index and last and known:
            self._has_news = self._has_news or last > known

    def finished(self) -> None:
        """Note that the follower has received a result, and has requested what it needs next."""
        self._pending -= 1
        if not self._pending:
            self._push.pulled(self._began, news=self._has_news)
