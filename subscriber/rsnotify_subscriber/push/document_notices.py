"""Notifications about the documents of a Source, on a channel beside that of its changes."""

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
from rsnotify_subscriber.push.subscription import PushSubscription

logger = logging.getLogger("rsnotify.subscriber")


class NoticeSubscription:
    """A lasting subscription to these notifications; the `PushEvents` of its `PushSubscription`.

    Nothing depends on it: a document without a notification is found by polling.

    Args:
        transports: Makes the endpoints of a topic.
        received: Is called with each notification.
        since: Returns the instant through which notifications were received.
        random: The source of jitter.
    """

    def __init__(
        self,
        transports: Transports,
        *,
        received: Callable[[Document], None],
        since: Callable[[], Instant | None],
        random: Random,
    ) -> None:
        self._transports = transports
        self._received = received
        self._push = PushSubscription((), self, since, random, needed=False)

    async def run(self) -> None:
        """Receive until cancelled."""
        await self._push.run()

    def set_offer(self, offer: Offer) -> None:
        """Use the endpoints that are offered now, if there are any."""
        self._push.set_endpoints(self._transports.notice_endpoints(offer))

    def up(self) -> None:
        """Do nothing: polling does not depend on it."""

    def down(self) -> None:
        """Do nothing, for the same reason."""

    def audience(self, listeners: int) -> None:
        """Do nothing: notifications lead to few requests."""

    def gap(self) -> None:
        """Do nothing: the next notification shows what is missing."""

    def fragment(self, document: bytes) -> Instant | None:
        """Receive a notification; return the instant through which it covers changes, if any."""
        try:
            read = read_document(document, source="a notification about documents")
        except DocumentError as error:
            logger.info("%s", error)
            return None
        self._received(read)
        return read.until
