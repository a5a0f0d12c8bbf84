"""The ladder: by which documents a Destination gets level, in the order of least cost.

A *way* is one capability, with all that is reached from it: an index, its lists; a dump, its
packages; an archive, all of these. `Pull` goes the ways that tell changes, `Baseline` those
that tell the whole set of resources.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from rsnotify.errors import WrongDocument
from rsnotify.format.offer import Offer
from rsnotify.format.vocabulary import MAX_ENTRIES
from rsnotify.sync.actions import DocumentKind, Fetch

#: What tells the whole set of resources.
RESOURCES = frozenset(
    {
        DocumentKind.RESOURCE_LIST,
        DocumentKind.RESOURCE_DUMP,
        DocumentKind.RESOURCE_LIST_ARCHIVE,
        DocumentKind.RESOURCE_DUMP_ARCHIVE,
    }
)


def change_ways(offer: Offer) -> list[Fetch]:
    """Return where changes are told: first what tells the latest, then the way of least cost.

    Archives tell of the past alone. Where nothing tells of the changes since, and something
    of all resources, they lead nowhere.
    """
    live = [
        (DocumentKind.CHANGE_LIST, offer.change_list),
        (DocumentKind.CHANGE_DUMP, offer.change_dump),
    ]
    past = [
        (DocumentKind.CHANGE_LIST_ARCHIVE, offer.change_list_archive),
        (DocumentKind.CHANGE_DUMP_ARCHIVE, offer.change_dump_archive),
    ]
    if offer.change_list is not None:
        return _ways(live[0], past[0], live[1], past[1])
    if offer.change_dump is None and (offer.resource_list or offer.resource_dump) is not None:
        return []
    return _ways(*live, *past)


def resource_ways(offer: Offer) -> list[Fetch]:
    """Return where the whole set of resources is told, what speaks of the present first."""
    return _ways(
        (DocumentKind.RESOURCE_LIST, offer.resource_list),
        (DocumentKind.RESOURCE_DUMP, offer.resource_dump),
        (DocumentKind.RESOURCE_LIST_ARCHIVE, offer.resource_list_archive),
        (DocumentKind.RESOURCE_DUMP_ARCHIVE, offer.resource_dump_archive),
    )


def _ways(*offered: tuple[DocumentKind, str | None]) -> list[Fetch]:
    return [Fetch(uri, rung) for rung, uri in offered if uri is not None]


class DocumentQueue:
    """What is still to be read on one way: nothing twice, and not without end.

    An index that names itself, or another with each answer, would be walked for ever.
    """

    def __init__(self, fetches: Iterable[Fetch] = ()) -> None:
        self._fetches = deque(fetches)
        self._known = {fetch.uri for fetch in self._fetches}

    def put_first(self, fetches: Iterable[Fetch]) -> None:
        """Read these before all else, in order.

        Raises:
            WrongDocument: They are more than any set of resources can need.
        """
        new = list({fetch.uri: fetch for fetch in fetches if fetch.uri not in self._known}.values())
        self._known.update(fetch.uri for fetch in new)
        if len(self._known) > MAX_ENTRIES:
            raise WrongDocument(f"it leads to more than {MAX_ENTRIES} documents")
        self._fetches.extendleft(reversed(new))

    def put_page(self, page: Fetch) -> None:
        """Read the next page of a document before all else.

        Raises:
            WrongDocument: The pages lead back to one that was read, or there are too many.
        """
        if page.uri in self._known:
            raise WrongDocument(
                f"its link with rel=next leads to {page.uri}, which was read before; the list is "
                "not complete"
            )
        self.put_first([page])

    def take(self) -> Fetch | None:
        """Take out the next, if there is one."""
        return self._fetches.popleft() if self._fetches else None

    def clear(self) -> None:
        """Read nothing more of this way."""
        self._fetches.clear()
