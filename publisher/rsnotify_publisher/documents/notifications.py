"""What is told of a document once it is written (Framework Notification §3)."""

from __future__ import annotations

from msgspec.structs import replace

from rsnotify.format.datetimes import from_microseconds
from rsnotify.format.model import Resource
from rsnotify.format.vocabulary import Capability, ChangeType
from rsnotify_publisher.journal import FinishedDocument, Recorder
from rsnotify_publisher.source_documents import ARCHIVES, CHANGE_LIST, SourceDocuments

Notifications = tuple[Resource, ...]
NO_NOTIFICATIONS: Notifications = ()


class NotificationBuilder:
    """Says what is told: nothing where nobody listens.

    Args:
        documents: Of the Source.
    """

    def __init__(self, documents: SourceDocuments) -> None:
        self._documents = documents

    def live(self, document: FinishedDocument, *, first: bool) -> Notifications:
        """Tell of a new Resource List or Resource Dump.

        Args:
            document: The document.
            first: Whether it is the first of its kind.
        """
        change = ChangeType.CREATED if first else ChangeType.UPDATED
        begin, end = from_microseconds(document.begin), from_microseconds(document.end)
        uri = self._documents.uri(f"{document.kind}.xml")
        return self._told(
            Resource(uri, capability=document.kind, change=change, at=begin, completed=end)
        )

    def closed(self, document: FinishedDocument) -> Notifications:
        """Tell that the older part of the Change List was closed, and where the other begins."""
        part = replace(
            self._documents.archived(document),
            capability=Capability.CHANGE_LIST,
            change=ChangeType.CREATED,
        )
        return self._told(part) + self.reopened(document.end)

    def reopened(self, begin: int) -> Notifications:
        """Tell that the Change List begins at another instant (µs)."""
        return self._told(
            Resource(
                self._documents.uri(CHANGE_LIST),
                capability=Capability.CHANGE_LIST,
                change=ChangeType.UPDATED,
                from_=from_microseconds(begin),
            )
        )

    def archive(self, kind: str) -> Notifications:
        """Tell that an archive holds other documents."""
        uri = self._documents.uri(ARCHIVES[kind])
        return self._told(Resource(uri, capability=f"{kind}-archive", change=ChangeType.UPDATED))

    def _told(self, document: Resource) -> Notifications:
        return NO_NOTIFICATIONS if self._documents.framework is None else (document,)


def notify_version(
    documents: SourceDocuments, recorder: Recorder, document: Resource, version: str
) -> None:
    """Tell of a document that is written anew more often than it says anything new.

    Args:
        documents: Of the Source.
        recorder: Makes durable what was told.
        document: What is told of it, without `change`.
        version: A text that differs whenever it does.
    """
    if documents.framework is not None:
        recorder.submit(lambda journal: journal.add_version_notice(document, version)).result()
