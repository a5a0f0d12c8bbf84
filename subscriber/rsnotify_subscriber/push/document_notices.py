"""Hearing what a Source tells of its own documents, on a channel beside that of its changes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import Random

from rsnotify.errors import DocumentError
from rsnotify.format.datetimes import Instant
from rsnotify.format.model import Document
from rsnotify.format.offer import Offer
from rsnotify.format.reader import read_document
from rsnotify_subscriber.push.endpoints import Transports
from rsnotify_subscriber.push.push import Push

logger = logging.getLogger("rsnotify.subscriber")


class NoticeSubscription:
    """A lasting subscription to what is told of documents; the `Events` of its own `Push`.

    Nothing depends on it: whoever does not hear of a document finds it by polling.

    Args:
        ways: By which ways a topic can be heard of.
        told: Is called with each notification.
        since: Gives the instant through which they were heard.
        random: The source of jitter.
    """

    def __init__(
        self,
        ways: Transports,
        *,
        told: Callable[[Document], None],
        since: Callable[[], Instant | None],
        random: Random,
    ) -> None:
        self._ways = ways
        self._told = told
        self._push = Push((), self, since, random, needed=False)

    async def run(self) -> None:
        """Hear until cancelled."""
        await self._push.run()

    def take(self, offer: Offer) -> None:
        """Hear by the ways that are offered now, if there are any."""
        self._push.take(self._ways.to_notices(offer))

    def up(self) -> None:
        """Hear that notifications arrive."""

    def down(self) -> None:
        """Hear that no way is left."""

    def audience(self, listeners: int) -> None:
        """Hear how many hear the same."""

    def gap(self) -> None:
        """Hear that a hub may not reach back; the next notification shows what is missing."""

    def fragment(self, document: bytes) -> Instant | None:
        """Take a notification; return up to which instant it tells, if it tells something."""
        try:
            read = read_document(document, source="what was told of documents")
        except DocumentError as error:
            logger.info("%s", error)
            return None
        self._told(read)
        return read.until
