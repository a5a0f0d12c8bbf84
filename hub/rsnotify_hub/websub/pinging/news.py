"""What of a fetched topic is news to its log. Nothing here does I/O."""

from __future__ import annotations

from collections.abc import Sequence

from rsnotify.errors import InvalidDocument
from rsnotify.format.datetimes import Instant
from rsnotify.format.reader import DocumentLimits, read_document
from rsnotify.format.writer import write_document
from rsnotify_hub.log.contents import is_sitemap, is_xml, whole_content
from rsnotify_hub.log.fragments import (
    MERGED_CONTENT_TYPE,
    Fragment,
    check_fragment,
    read_fragment,
    read_stored,
)
from rsnotify_hub.log.store import LogEntry
from rsnotify_hub.websub.pinging.channel_lists import ChangeKey, announce, keys_at, part_after
from rsnotify_hub.websub.pinging.fetching import Fetched


class Reader:
    """Reads what topics answer.

    Args:
        limits: What is refused of a Change List for its size.
        max_bytes: The largest that is passed on.
    """

    def __init__(self, limits: DocumentLimits, max_bytes: int) -> None:
        self._limits = limits
        self._max_bytes = max_bytes

    def news(
        self,
        fetched: Fetched,
        *,
        through: Instant | None,
        last: Sequence[LogEntry],
        received: Instant,
    ) -> Fragment | None:
        """Tell what is to be appended.

        Args:
            fetched: What the topic answered.
            through: Where its log of changes ends; None where there is none.
            last: The entries of the log that reach this instant.
            received: When it answered.

        Returns:
            A fragment, or a whole content; None when a Change List has nothing new.

        Raises:
            DocumentError: It cannot be passed on.
        """
        content_type = fetched.content_type or _guessed(fetched.body)
        if is_xml(content_type) and is_sitemap(fetched.body):
            return self._changes(fetched.body, content_type, through, last)
        if len(fetched.body) > self._max_bytes:
            raise InvalidDocument(f"it is larger than {self._max_bytes} bytes")
        return whole_content(fetched.body, content_type, received)

    def _changes(
        self, body: bytes, content_type: str, through: Instant | None, last: Sequence[LogEntry]
    ) -> Fragment | None:
        document = read_document(body, limits=self._limits)
        known = set() if through is None else _known(last, through)
        news = part_after(document, through=through, known=known)
        if news is None:
            return None
        if news is not document:
            body, content_type = write_document(news), MERGED_CONTENT_TYPE
        if len(body) > self._max_bytes:
            check_fragment(news, body, content_type)
            body, content_type = write_document(announce(news)), MERGED_CONTENT_TYPE
        return read_fragment(body, content_type=content_type, limits=self._limits)


def _known(last: Sequence[LogEntry], through: Instant) -> set[ChangeKey]:
    known: set[ChangeKey] = set()
    for entry in last:
        known |= keys_at(read_stored(entry.fragment.body).resources, through)
    return known


def _guessed(body: bytes) -> str:
    """Say what a content is whose server does not (RFC 9110 §8.3 lets one look)."""
    return MERGED_CONTENT_TYPE if body.startswith(b"<?xml") else "application/octet-stream"
