"""What a Destination makes of what a Source tells of its own documents.

A Framework Notification says that a document is there anew. It is a hint when to look, and never
more: what is looked at is always the document. So a notice that is lost, late, doubled or made up
costs a request at most, and what is not told is found by the next poll.
"""

from __future__ import annotations

from msgspec import Struct

from rsnotify.coverage import Change, Coverage, notice_coverage
from rsnotify.datetimes import Instant
from rsnotify.knowledge import Knowledge
from rsnotify.model import Document, Resource
from rsnotify.offer import FIELDS, Offer
from rsnotify.vocabulary import Capability, ChangeType

#: What tells which documents there are.
_OFFERS = frozenset({Capability.DESCRIPTION, Capability.CAPABILITY_LIST})
_CHANGES = frozenset({Capability.CHANGE_LIST, Capability.CHANGE_DUMP})
_RESOURCES = frozenset({Capability.RESOURCE_LIST, Capability.RESOURCE_DUMP})


class Look(Struct):
    """What there is reason to look at.

    Args:
        offer: What the Source offers.
        lists: The lists by which one gets level.
    """

    offer: bool = False
    lists: bool = False


class Notices:
    """What was told, of one Source.

    Args:
        knowledge: How far one is.
    """

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge
        #: Through here every notice was heard; None before the first.
        self.through: Instant | None = None

    def hear(self, document: Document, offer: Offer, *, failing: bool) -> Look:
        """Take a Framework Notification.

        Args:
            document: The notification.
            offer: What the Source was found to offer.
            failing: Whether the lists could not be read the last time.

        Raises:
            DocumentError: It is none.
        """
        coverage = notice_coverage(document)
        missed = self._missed(coverage)
        look = Look(offer=missed, lists=missed)
        for notice in coverage.changes:
            if self.through is None or notice.at > self.through:
                self._consider(notice, offer, look, failing=failing)
        until = coverage.until
        if until is not None and (self.through is None or until > self.through):
            self.through = until
        return look

    def _missed(self, coverage: Coverage) -> bool:
        """Whether something was told that was not heard; whoever begins looks at all anyway."""
        return self.through is not None and not coverage.reaches(self.through)

    def _consider(self, notice: Change, offer: Offer, look: Look, *, failing: bool) -> None:
        kind = notice.resource.capability
        if kind in _OFFERS:
            look.offer = True
        if kind not in FIELDS:
            return
        offered = offer.documents.get(kind)
        is_live = notice.uri == offered
        if offered is None or (is_live and notice.change is ChangeType.DELETED):
            look.offer = True
        if failing or self._brings(notice.resource, is_live=is_live):
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
