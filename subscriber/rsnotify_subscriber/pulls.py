"""Pulls, as they show in the documents that are fetched for them."""

from __future__ import annotations

import asyncio

from rsnotify.format.model import Document
from rsnotify.sync.actions import DocumentKind, Fetch
from rsnotify.sync.follower import Follower
from rsnotify_subscriber.events import Announcer, Pulling
from rsnotify_subscriber.push.push import Push


class Pulls:
    """Tells of pulls, and tells a `Push` what they had.

    Args:
        follower: Knows what is known.
        push: Is told, when a pull ends, whether it had what should have been pushed.
        announce: Is told by which kind of document one pulls.
    """

    def __init__(self, follower: Follower, push: Push, announce: Announcer) -> None:
        self._follower = follower
        self._push = push
        self._announce = announce
        self._out = 0
        self._rung: DocumentKind | None = None
        self._began = 0.0
        self._has_news = False

    def asked(self, fetch: Fetch) -> None:
        """Hear that a document is asked for."""
        if not self._out or fetch.kind is not self._rung:
            self._announce(Pulling(fetch.kind, fetch.uri))
        if not self._out:
            self._began, self._has_news = asyncio.get_running_loop().time(), False
        self._out += 1
        self._rung = fetch.kind

    def fetched(self, fetch: Fetch, document: Document) -> None:
        """Hear what came, before the follower does."""
        last, known = document.changed_at, self._follower.since
        if fetch.kind is DocumentKind.CHANGE_LIST and not document.index and last and known:
            self._has_news = self._has_news or last > known

    def answered(self) -> None:
        """Hear that the follower was told what came of it, and asked for what it needs next."""
        self._out -= 1
        if not self._out:
            self._push.pulled(self._began, news=self._has_news)
