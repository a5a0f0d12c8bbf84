"""What a Destination makes of what a Source tells of its own documents.

A Framework Notification says that a document is there anew. It is a hint when to look, and never
more: what is looked at is always the document. So a notice that is lost, late, doubled or made up
costs a request at most, and what is not told is found by the next poll.
"""

from __future__ import annotations

from msgspec import Struct

from rsnotify.errors import WrongDocument
from rsnotify.format.datetimes import Instant
from rsnotify.format.model import Document, Resource
from rsnotify.format.offer import FIELDS, Offer
from rsnotify.format.vocabulary import Capability, ChangeType
from rsnotify.sync.frontiers import SyncFrontiers

#: What tells which documents there are.
_OFFERS = frozenset({Capability.DESCRIPTION, Capability.CAPABILITY_LIST})
_CHANGES = frozenset({Capability.CHANGE_LIST, Capability.CHANGE_DUMP})
_RESOURCES = frozenset({Capability.RESOURCE_LIST, Capability.RESOURCE_DUMP})


class DocumentsToRead(Struct):
    """What there is reason to look at.

    Args:
        offer: What the Source offers.
        lists: The lists by which one gets level.
    """

    offer: bool = False
    lists: bool = False


class DocumentNotices:
    """What was told, of one Source.

    Args:
        knowledge: How far one is.
    """

    def __init__(self, knowledge: SyncFrontiers) -> None:
        self._knowledge = knowledge
        #: Through here every notice was heard; None before the first.
        self.through: Instant | None = None

    def hear(self, document: Document, offer: Offer, *, failing: bool) -> DocumentsToRead:
        """Take a Framework Notification.

        Args:
            document: The notification.
            offer: What the Source was found to offer.
            failing: Whether the lists could not be read the last time.

        Raises:
            WrongDocument: It is none.
        """
        if document.capability != Capability.FRAMEWORK_NOTIFICATION:
            kind = document.capability
            raise WrongDocument(f"a Framework Notification was expected, not {kind!r}")
        missed = self._is_new(document.from_) and None not in (self.through, document.from_)
        look = DocumentsToRead(offer=missed, lists=missed)
        for each in document.resources:
            if self._is_new(each.changed_at):
                self._consider(each, offer, look, failing=failing)
        told = [document.until, *(each.changed_at for each in document.resources)]
        self.through = max((at for at in (*told, self.through) if at is not None), default=None)
        return look

    def _is_new(self, at: Instant | None) -> bool:
        """Whether an instant is later than what was heard; one that is not told may be."""
        return at is None or self.through is None or at > self.through

    def _consider(
        self, document: Resource, offer: Offer, look: DocumentsToRead, *, failing: bool
    ) -> None:
        kind = document.capability
        if kind in _OFFERS:
            look.offer = True
        if kind not in FIELDS:
            return
        offered = offer.documents.get(kind)
        is_live = document.uri == offered
        if offered is None or (is_live and document.change is ChangeType.DELETED):
            look.offer = True
        if failing or self._brings(document, is_live=is_live):
            look.lists = True

    def _brings(self, document: Resource, *, is_live: bool) -> bool:
        """Whether a document may bring what is missing."""
        if document.capability in _CHANGES:
            return self._tells_of_later(document, is_live=is_live)
        return is_live and document.capability in _RESOURCES and self._fills_hole(document)

    def _tells_of_later(self, document: Resource, *, is_live: bool) -> bool:
        """Whether a list may have a change that is not known; where it does not say, it may."""
        known = self._knowledge.known
        if known is None:
            return False
        last = document.until or document.from_
        return is_live if last is None else last > known

    def _fills_hole(self, document: Resource) -> bool:
        hole, at = self._knowledge.hole, document.at
        return hole is not None and (at is None or at >= hole.ends)
