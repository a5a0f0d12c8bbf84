"""Which documents a Destination reads to catch up, in the order of least cost.

A *root document* is the document of one capability, and stands for all that is reached from it: an
index and its lists, a dump and its packages, an archive and all of these. `Pull` reads those that
list changes, `Baseline` those that list the whole set of resources.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from msgspec.structs import replace

from rsnotify.errors import WrongDocument
from rsnotify.format.links import resolve
from rsnotify.format.model import Resource
from rsnotify.format.offer import Offer
from rsnotify.format.vocabulary import MAX_ENTRIES
from rsnotify.sync.actions import DocumentKind, Fetch

#: The kinds that list the whole set of resources.
RESOURCE_KINDS = frozenset(
    {
        DocumentKind.RESOURCE_LIST,
        DocumentKind.RESOURCE_DUMP,
        DocumentKind.RESOURCE_LIST_ARCHIVE,
        DocumentKind.RESOURCE_DUMP_ARCHIVE,
    }
)


def change_documents(offer: Offer) -> list[Fetch]:
    """Return the root documents that list changes: first the latest changes, then the cheapest.

    Archives list past changes only. They are of no use if no other document lists the changes
    since, and the resources themselves are listed.
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
        return _offered(live[0], past[0], live[1], past[1])
    if offer.change_dump is None and (offer.resource_list or offer.resource_dump) is not None:
        return []
    return _offered(*live, *past)


def resource_documents(offer: Offer) -> list[Fetch]:
    """Return the root documents that list the whole set of resources, the present set first."""
    return _offered(
        (DocumentKind.RESOURCE_LIST, offer.resource_list),
        (DocumentKind.RESOURCE_DUMP, offer.resource_dump),
        (DocumentKind.RESOURCE_LIST_ARCHIVE, offer.resource_list_archive),
        (DocumentKind.RESOURCE_DUMP_ARCHIVE, offer.resource_dump_archive),
    )


def _offered(*documents: tuple[DocumentKind, str | None]) -> list[Fetch]:
    return [Fetch(uri, kind) for kind, uri in documents if uri is not None]


def fetch_member(parent: Fetch, member: Resource, *, packaged: bool) -> Fetch:
    """Return the request for a member of an index, an archive or a dump."""
    uri = resolve(parent.uri, member.uri)
    return Fetch(uri, parent.kind, replace(member, uri=uri) if packaged else None)


class DocumentQueue:
    """The documents still to be read below one root document, each of them once.

    The number is bounded: an index that names itself, or another one in each answer, would never
    end.
    """

    def __init__(self, fetches: Iterable[Fetch] = ()) -> None:
        self._fetches = deque(fetches)
        self._known = {fetch.uri for fetch in self._fetches}

    def put_first(self, fetches: Iterable[Fetch]) -> None:
        """Put documents before all others, in their order."""
        new = list({fetch.uri: fetch for fetch in fetches if fetch.uri not in self._known}.values())
        self._known.update(fetch.uri for fetch in new)
        if len(self._known) > MAX_ENTRIES:
            raise WrongDocument(f"it leads to more than {MAX_ENTRIES} documents")
        self._fetches.extendleft(reversed(new))

    def put_page(self, page: Fetch) -> None:
        """Put the next page of a document before all others."""
        if page.uri in self._known:
            raise WrongDocument(
                f"its link with rel=next leads to {page.uri}, which was read before; the list is "
                "not complete"
            )
        self.put_first([page])

    def pop(self) -> Fetch | None:
        return self._fetches.popleft() if self._fetches else None

    def clear(self) -> None:
        self._fetches.clear()
