"""Checks that a document belongs to the followed set of resources.

A server or cache that confuses virtual hosts may return the list of another set. If that is an
empty list with a later date, it even seems to prove that nothing has changed. The `rel="up"` link
of such a list names another Capability List (core §8). Healthy Sources may have such links as well,
because they have several names or have moved. After an unknown link, the document is therefore
requested again, bypassing caches. If the link is still unknown, the Capability List must list the
document, and one of these conditions must hold:

- It is the first document of its kind, so that the names of the Source are not known yet, unless
  an empty document would create the copy.
- The Capability List names the link's host in its links or entries.
- The document has entries, and all of them are on a host of the set.
- The link's target lists the document or the Capability List, or redirects to the latter.

Accepted links are stored, so that they are checked only once.
"""

from __future__ import annotations

from collections.abc import Iterable

from yarl import URL

from rsnotify.errors import DocumentError, FetchError, WrongDocument
from rsnotify.format.datetimes import Instant
from rsnotify.format.links import resolve
from rsnotify.format.model import Capability, Document, Rel
from rsnotify.format.offer import Offer
from rsnotify.sync.actions import Fetch
from rsnotify.sync.pull import (
    RESOURCE_KINDS,
    change_documents,
    resource_documents,
)
from rsnotify_subscriber.discovery.descriptions import DescriptionReader
from rsnotify_subscriber.fetching.fetcher import Fetcher
from rsnotify_subscriber.fetching.responses import ResponseOrigin
from rsnotify_subscriber.storage.identity import KnownLinks

#: Maximum number of links to store.
_MAX_LINKS = 16


class SetMembership:
    """Checks the documents of one set. The next run starts with the `known` links."""

    def __init__(
        self,
        fetcher: Fetcher,
        descriptions: DescriptionReader,
        url: str,
        known: KnownLinks | None = None,
    ) -> None:
        self._fetcher = fetcher
        self._descriptions = descriptions
        self._url = url
        self.known = known or KnownLinks()

    async def document(
        self, fetch: Fetch, offer: Offer, *, holds_resources: bool
    ) -> tuple[Document, Instant | None]:
        """GET a document. Return it with the `Date` of the response.

        Raises:
            WrongDocument: The document seems to belong to another set.
        """
        document, sent = await self._fetcher.dated_document(fetch.uri)
        has_unknown_link = self._has_unknown_link(fetch, document, offer)
        if has_unknown_link or (holds_resources and _is_empty_list(fetch, document)):
            document, sent = await self._fetcher.dated_document(fetch.uri, fresh=True)
            has_unknown_link = self._has_unknown_link(fetch, document, offer)
        if has_unknown_link:
            await self._accept_link(fetch, document, offer)
        self._record(fetch)
        return document, sent

    def _record(self, fetch: Fetch, *places: str) -> None:
        known = self.known
        now = KnownLinks(
            (known.places + places)[-_MAX_LINKS:],
            known.has_resources or fetch.kind in RESOURCE_KINDS,
            known.has_changes or fetch.kind not in RESOURCE_KINDS,
        )
        if now != known:
            self.known = now

    def _has_unknown_link(self, fetch: Fetch, document: Document, offer: Offer) -> bool:
        up = document.link(Rel.UP)
        if up is None or offer.capability_list is None:
            return False
        place = _place(resolve(fetch.uri, up))
        return place not in self.known.places and place not in self._own_places(offer)

    def _own_places(self, offer: Offer) -> set[str]:
        named = [self._url, *offer.documents.values(), *self._descriptions.memory.moved]
        named += filter(None, (offer.capability_list, offer.source_description))
        return set(map(_place, named))

    async def _accept_link(self, fetch: Fetch, document: Document, offer: Offer) -> None:
        """Record the document's link, or raise `WrongDocument`."""
        up = resolve(fetch.uri, document.link(Rel.UP) or "")
        listed = _place(_root(fetch, offer))
        assert offer.capability_list is not None, "otherwise, no link is unknown"
        ours, origin = await self._descriptions.document(offer.capability_list)
        is_listed = listed in _listed(ours, origin)
        if not is_listed or not (
            self._is_first(fetch, document)
            or self._names_own_host(fetch, document, offer, ours, origin)
            or await self._leads_back(up, listed, offer)
        ):
            raise WrongDocument(
                f"its link with rel=up names {up}, and not {offer.capability_list}; a server or "
                "cache may have confused two hosts",
                source=fetch.uri,
            )
        self._record(fetch, _place(up))

    def _is_first(self, fetch: Fetch, document: Document) -> bool:
        known = self.known
        if not known.has_resources and not document.resources:
            return False  # otherwise, the empty set of another host could become the copy
        return not (known.has_resources if fetch.kind in RESOURCE_KINDS else known.has_changes)

    def _names_own_host(
        self,
        fetch: Fetch,
        document: Document,
        offer: Offer,
        ours: Document,
        origin: ResponseOrigin,
    ) -> bool:
        """Return whether the link names a host that other evidence shows to belong to this set."""
        host = _host(_place(resolve(fetch.uri, document.link(Rel.UP) or "")))
        own = set(map(_host, self._own_places(offer)))
        if host in {_host(_place(fetch.uri)), _host(_place(origin.base))}:
            return False
        links = (_place(resolve(origin.base, link.href)) for link in ours.links)
        if host in own or host in set(map(_host, links)):
            return True
        hosts = set(map(_host, _places(fetch.uri, document)))
        return bool(hosts) and hosts <= own

    async def _leads_back(self, up: str, listed: str, offer: Offer) -> bool:
        """Return whether the target lists the document or the Capability List, or is the latter."""
        origin = ResponseOrigin(up)
        try:
            other = await self._fetcher.current_document(up, origin)
        except (FetchError, DocumentError):
            return False
        if _place(origin.base) in self._own_places(offer):
            return True
        if other.capability == Capability.DESCRIPTION:
            return _place(offer.capability_list or "") in set(_places(origin.base, other))
        return listed in _listed(other, origin)


def _is_empty_list(fetch: Fetch, document: Document) -> bool:
    is_end = document.link(Rel.NEXT) is None and not document.resources
    return fetch.kind in RESOURCE_KINDS and is_end


def _root(fetch: Fetch, offer: Offer) -> str:
    """Return the document that the Capability List must list: this one or its index."""
    roots = {root.kind: root.uri for root in change_documents(offer) + resource_documents(offer)}
    return roots.get(fetch.kind, fetch.uri)


def _listed(document: Document, origin: ResponseOrigin) -> set[str]:
    is_list = document.capability == Capability.CAPABILITY_LIST
    return set(_places(origin.base, document)) if is_list else set()


def _places(base: str, document: Document) -> Iterable[str]:
    return (_place(resolve(base, entry.uri)) for entry in document.resources)


def _place(uri: str) -> str:
    """Return a URI without its scheme and default port, which may vary."""
    try:
        url = URL(uri)
        port = "" if url.port in (None, 80, 443) else f":{url.port}"
        return f"{(url.raw_host or '').lower()}{port}{url.raw_path_qs}"
    except ValueError:
        return uri


def _host(place: str) -> str:
    return place.partition("/")[0]
