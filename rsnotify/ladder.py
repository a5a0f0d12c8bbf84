"""The two ways up to level: a `Pull` of Change Lists, and a `Baseline` from Resource Lists.

Both are told each document they asked for and say what comes next; neither knows what is
done with what they read.
"""

from __future__ import annotations

from collections import deque
from urllib.parse import urljoin

from msgspec import Struct

from rsnotify.actions import Fetch, Rung
from rsnotify.coverage import Coverage, change_list_coverage
from rsnotify.datetimes import Instant
from rsnotify.errors import WrongDocument
from rsnotify.model import Document, Resource
from rsnotify.offer import Offer
from rsnotify.vocabulary import MAX_ENTRIES, Capability, Rel

#: How often one pull reads the archive: it may be rotated under our hands.
_ARCHIVE_READS = 3


class Step(Struct, frozen=True):
    """What follows from a document that a pull has read.

    Args:
        coverage: What it covers, if it is a Change List that joins what is confirmed.
        fetch: What to read next; None when the pull is at its end.
        hole: The instant at which the documents begin that there are, if none of them joins.
    """

    coverage: Coverage | None = None
    fetch: Fetch | None = None
    hole: Instant | None = None


class _Queue:
    """What is still to be read in one walk: nothing twice, and not without end.

    An index that names itself, or another with each answer, would be walked for ever.
    """

    def __init__(self) -> None:
        self._fetches: deque[Fetch] = deque()
        self._known: set[str] = set()

    def put_first(self, fetches: list[Fetch]) -> None:
        """Read these before all else, in order.

        Raises:
            WrongDocument: They are more than any set of resources can need.
        """
        new = [fetch for fetch in fetches if fetch.uri not in self._known]
        self._known.update(fetch.uri for fetch in new)
        if len(self._known) > MAX_ENTRIES:
            raise WrongDocument(f"it leads to more than {MAX_ENTRIES} documents")
        self._fetches.extendleft(reversed(new))

    def take(self) -> Fetch | None:
        """Take out the next, if there is one."""
        return self._fetches.popleft() if self._fetches else None


class Pull:
    """One walk from the Change List to the archive and back, as far as that is needed.

    Args:
        offer: Where the Source keeps its lists; `change_list` must be there.
    """

    def __init__(self, offer: Offer) -> None:
        assert offer.change_list is not None
        self._top = Fetch(offer.change_list, Rung.CHANGE_LIST)
        self._archive = offer.change_list_archive
        self._archive_reads = 0
        self._queue = _Queue()
        self.current = self._top

    def read(self, document: Document, confirmed: Instant) -> Step:
        """Take the document that `current` asked for.

        Args:
            document: The document, read to its end.
            confirmed: Where the pull has to join: every change up to here is known.

        Raises:
            DocumentError: It is none of the documents that can stand here, or is unusable.
        """
        if document.capability == Capability.CHANGE_LIST_ARCHIVE:
            return self._read_archive(document, confirmed)
        if document.capability == Capability.CHANGE_LIST and document.index:
            return self._read_index(document, confirmed)
        coverage = change_list_coverage(document)
        if coverage.from_ is None:
            return self._next()  # an empty list that proves nothing: no news
        if coverage.reaches(confirmed):
            return self._next(coverage)
        return self._climb(document, coverage.from_)

    def _read_index(self, document: Document, confirmed: Instant) -> Step:
        members = self._members(document, confirmed)
        first = members[0].from_ if members else None
        begins = first or document.from_
        if begins is not None and begins > confirmed:
            return self._climb(document, begins)
        self._enqueue(members, self.current)
        return self._next()

    def _read_archive(self, document: Document, confirmed: Instant) -> Step:
        members = self._members(document, confirmed)
        if members and members[0].from_ is not None and members[0].from_ > confirmed:
            return Step(hole=members[0].from_)
        self._enqueue(members, self.current)
        return self._next()

    @staticmethod
    def _members(document: Document, confirmed: Instant) -> list[Resource]:
        """Return the lists that may hold something new; one that does not say may."""
        return [
            member
            for member in document.resources
            if member.until is None or member.until > confirmed
        ]

    def _enqueue(self, members: list[Resource], under: Fetch) -> None:
        self._queue.put_first(
            [Fetch(urljoin(under.uri, member.uri), under.rung) for member in members]
        )

    def _climb(self, document: Document, begins: Instant) -> Step:
        """Go to the archive, as what was read begins too late; then come back to the top."""
        link = document.link(Rel.ARCHIVES)
        archive = urljoin(self.current.uri, link) if link else self._archive
        if archive is None or self._archive_reads == _ARCHIVE_READS:
            return Step(hole=begins)
        if self._archive_reads and self.current.rung is Rung.CHANGE_LIST_ARCHIVE:
            return Step(hole=begins)  # the archive's own lists do not join
        self._archive_reads += 1
        self._queue = _Queue()
        self._queue.put_first([Fetch(archive, Rung.CHANGE_LIST_ARCHIVE), self._top])
        return self._next()

    def _next(self, coverage: Coverage | None = None) -> Step:
        following = self._queue.take()
        if following is None:
            return Step(coverage)
        self.current = following
        return Step(coverage, following)


class Listed(Struct, frozen=True):
    """Entries of one Resource List and the instant they speak of."""

    resources: tuple[Resource, ...]
    at: Instant


class Baseline:
    """One walk over the Resource List, or over all lists of its Index.

    Args:
        offer: Where the Source keeps its lists; `resource_list` must be there.
        at_least: What `at` is taken for in a list that carries no datetime at all.
    """

    def __init__(self, offer: Offer, at_least: Instant) -> None:
        assert offer.resource_list is not None
        self.current = Fetch(offer.resource_list, Rung.RESOURCE_LIST)
        self._queue = _Queue()
        self._at_least = at_least
        self._at: Instant | None = None

    @property
    def at(self) -> Instant:
        """The instant from which Change Lists have to be followed: the earliest `at` read."""
        return self._at or self._at_least

    def read(self, document: Document) -> Listed | None:
        """Take the document that `current` asked for; return its resources, if it has any.

        Raises:
            WrongDocument: It is no Resource List.
        """
        # A plain Sitemap has no capability, and is a Resource List all the same (core §6.1).
        if document.capability not in (Capability.RESOURCE_LIST, None):
            raise WrongDocument(f"a Resource List was expected, not {document.capability!r}")
        if document.index:
            self._queue.put_first(
                [
                    Fetch(urljoin(self.current.uri, member.uri), Rung.RESOURCE_LIST)
                    for member in document.resources
                ]
            )
            if document.at is not None:
                self._note(document.at)
            return None
        at = document.at or self._latest(document)
        self._note(at)
        return Listed(document.resources, at)

    def _latest(self, document: Document) -> Instant:
        return max(
            (resource.lastmod for resource in document.resources if resource.lastmod),
            default=self._at_least,
        )

    def _note(self, at: Instant) -> None:
        self._at = at if self._at is None else min(self._at, at)

    def next(self) -> Fetch | None:
        """Return what to read next; None when all lists were read."""
        following = self._queue.take()
        if following is not None:
            self.current = following
        return following
