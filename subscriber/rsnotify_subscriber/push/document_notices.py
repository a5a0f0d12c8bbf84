"""Notifications about the documents of a Source, on a channel beside that of its changes."""

from __future__ import annotations

import logging
from collections.abc import Callable

from rsnotify.errors import DocumentError
from rsnotify.format.datetimes import Instant
from rsnotify.format.model import Document
from rsnotify.format.reader import read_document
from rsnotify_subscriber.push.endpoint_connection import PushEvents

logger = logging.getLogger("rsnotify.subscriber")


class NoticeReceiver(PushEvents):
    """Receives these notifications, and ignores all other events.

    Nothing depends on a notification: a document without one is found by polling.
    """

    def __init__(self, received: Callable[[Document], None]) -> None:
        self._received = received

    def fragment(self, document: bytes) -> Instant | None:
        try:
            read = read_document(document, source="a notification about documents")
        except DocumentError as error:
            logger.info("%s", error)
            return None
        self._received(read)
        return read.until
