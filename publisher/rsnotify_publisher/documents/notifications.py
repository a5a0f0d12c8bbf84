"""Notifications of documents that were written (Framework Notification §3)."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.format.datetimes import from_microseconds
from rsnotify.format.model import Resource
from rsnotify.format.vocabulary import Capability, ChangeType
from rsnotify_publisher.journal import FinishedDocument, Recorder
from rsnotify_publisher.source_documents import ARCHIVES, CHANGE_LIST, SourceDocuments

Notifications = tuple[Resource, ...]


class NotificationBuilder(Struct, frozen=True):
    """Builds notifications; none if no hub can have the channel."""

    documents: SourceDocuments

    def live(self, document: FinishedDocument, *, first: bool) -> Notifications:
        """Notify of a new Resource List or Resource Dump."""
        change = ChangeType.CREATED if first else ChangeType.UPDATED
        begin, end = from_microseconds(document.begin), from_microseconds(document.end)
        uri = self.documents.uri(f"{document.kind}.xml")
        return self._if_wanted(
            Resource(uri, capability=document.kind, change=change, at=begin, completed=end)
        )

    def closed(self, document: FinishedDocument) -> Notifications:
        """Notify that the older part of the Change List was closed, and where the rest begins."""
        part = replace(
            self.documents.archived(document),
            capability=Capability.CHANGE_LIST,
            change=ChangeType.CREATED,
        )
        return self._if_wanted(part) + self.reopened(document.end)

    def reopened(self, begin: int) -> Notifications:
        """Notify that the Change List begins at another instant (µs)."""
        return self._if_wanted(
            Resource(
                self.documents.uri(CHANGE_LIST),
                capability=Capability.CHANGE_LIST,
                change=ChangeType.UPDATED,
                from_=from_microseconds(begin),
            )
        )

    def archive(self, kind: str) -> Notifications:
        """Notify that an archive holds other documents."""
        uri = self.documents.uri(ARCHIVES[kind])
        return self._if_wanted(
            Resource(uri, capability=f"{kind}-archive", change=ChangeType.UPDATED)
        )

    def _if_wanted(self, document: Resource) -> Notifications:
        return () if self.documents.framework is None else (document,)


def notify_version(
    documents: SourceDocuments, recorder: Recorder, document: Resource, version: str
) -> None:
    """Notify of a document, without `change`, that is often rewritten without a difference.

    The version differs whenever the document does.
    """
    if documents.framework is not None:
        recorder.run(lambda journal: journal.add_version_notice(document, version))
