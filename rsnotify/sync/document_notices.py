"""Framework Notifications, which announce new documents of a Source.

A notification is only a hint: the Destination always relies on the document itself. A lost, late,
duplicate or forged notification costs at most one request, and the next poll finds documents that
were not announced.
"""

from __future__ import annotations

from msgspec import Struct

from rsnotify.errors import WrongDocument
from rsnotify.format.datetimes import Instant
from rsnotify.format.model import Capability, ChangeType, Document, Resource
from rsnotify.format.offer import FIELDS, Offer
from rsnotify.sync.frontiers import SyncFrontiers

#: The documents that describe the Source's offer.
_OFFERS = frozenset({Capability.DESCRIPTION, Capability.CAPABILITY_LIST})
_CHANGES = frozenset({Capability.CHANGE_LIST, Capability.CHANGE_DUMP})
_RESOURCES = frozenset({Capability.RESOURCE_LIST, Capability.RESOURCE_DUMP})


class DocumentsToRead(Struct):
    """Whether to read the Source's offer, and whether to read the lists for catching up."""

    offer: bool = False
    lists: bool = False


class DocumentNotices:
    """The Framework Notifications of one Source."""

    def __init__(self, frontiers: SyncFrontiers) -> None:
        self._frontiers = frontiers
        #: The instant up to which every notification was received; None before the first.
        self.through: Instant | None = None

    def read(self, document: Document, offer: Offer, *, failing: bool) -> DocumentsToRead:
        """Return which documents to read after a Framework Notification.

        `failing` means that the last attempt to read the lists failed.
        """
        if document.capability != Capability.FRAMEWORK_NOTIFICATION:
            kind = document.capability
            raise WrongDocument(f"a Framework Notification was expected, not {kind!r}")
        missed = self._is_new(document.from_) and None not in (self.through, document.from_)
        to_read = DocumentsToRead(offer=missed, lists=missed)
        for entry in document.resources:
            if self._is_new(entry.changed_at):
                self._consider(entry, offer, to_read, failing=failing)
        instants = (self.through, document.until, *(e.changed_at for e in document.resources))
        self.through = max((at for at in instants if at is not None), default=None)
        return to_read

    def _is_new(self, at: Instant | None) -> bool:
        """Return whether an instant is later than all received notifications, or unknown."""
        return at is None or self.through is None or at > self.through

    def _consider(
        self, document: Resource, offer: Offer, to_read: DocumentsToRead, *, failing: bool
    ) -> None:
        kind = document.capability
        if kind in _OFFERS:
            to_read.offer = True
        if kind not in FIELDS:
            return
        offered = offer.documents.get(kind)
        is_live = document.uri == offered
        if offered is None or (is_live and document.change is ChangeType.DELETED):
            to_read.offer = True
        if failing or self._may_help(document, is_live=is_live):
            to_read.lists = True

    def _may_help(self, document: Resource, *, is_live: bool) -> bool:
        """Return whether a document may contain missing changes."""
        if document.capability in _CHANGES:
            known, last = self._frontiers.known, document.until or document.from_
            return known is not None and (is_live if last is None else last > known)
        gap, at = self._frontiers.uncovered_gap, document.at
        lists_set = is_live and document.capability in _RESOURCES
        return lists_set and gap is not None and (at is None or at >= gap.ends)
