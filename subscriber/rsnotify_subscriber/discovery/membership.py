"""Checks that a document belongs to the set of resources that is followed.

A server or cache that confuses virtual hosts may answer with the list of another set. An empty list
with a later date would even prove that nothing has changed. The `rel="up"` link of such a list
names another Capability List (core §8). But many healthy Sources also have such links, because they
are reached under several names or have moved. An unknown link is therefore a reason to request the
document again, bypassing caches, and then to read the Capability List, which must list the
document. In addition, one of these conditions must hold:

- It is the first document of its kind, and not an empty one from which a first copy is made. Until
  then, nothing is known about how a Source names itself.
- The Capability List names the same host in its links or entries.
- The document has entries, and all of them are on a host of the set.
- The link's target lists the document or the Capability List, or leads to the latter.

Accepted links are stored, so that all this happens only once.
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

#: Maximum number of stored links.
_MOST = 16


class SetMembership:
    """Checks the documents of one set. A later run starts from the `known` links."""

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
        """GET a document, and return it with the time at which it was sent.

        Raises:
            WrongDocument: It seems to belong to another set.
        """
        document, sent = await self._fetcher.sent_document(fetch.uri)
        is_strange = self._is_strange(fetch, document, offer)
        if is_strange or (holds_resources and _is_empty_list(fetch, document)):
            document, sent = await self._fetcher.sent_document(fetch.uri, fresh=True)
            is_strange = self._is_strange(fetch, document, offer)
        if is_strange:
            await self._confirm(fetch, document, offer)
        self._note(fetch)
        return document, sent

    def _note(self, fetch: Fetch, *places: str) -> None:
        known = self.known
        now = KnownLinks(
            (known.places + places)[-_MOST:],
            known.has_resources or fetch.kind in RESOURCE_KINDS,
            known.has_changes or fetch.kind not in RESOURCE_KINDS,
        )
        if now != known:
            self.known = now

    def _is_strange(self, fetch: Fetch, document: Document, offer: Offer) -> bool:
        up = document.link(Rel.UP)
        if up is None or offer.capability_list is None:
            return False
        place = _place(resolve(fetch.uri, up))
        return place not in self.known.places and place not in self._own_places(offer)

    def _own_places(self, offer: Offer) -> set[str]:
        named = [self._url, *offer.documents.values(), *self._descriptions.memory.moved]
        named += filter(None, (offer.capability_list, offer.source_description))
        return set(map(_place, named))

    async def _confirm(self, fetch: Fetch, document: Document, offer: Offer) -> None:
        up = resolve(fetch.uri, document.link(Rel.UP) or "")
        listed = _place(_root(fetch, offer))
        assert offer.capability_list is not None, "else no link is strange"
        ours, origin = await self._descriptions.document(offer.capability_list)
        is_listed = listed in _listed(ours, origin)
        if not is_listed or not (
            self._is_first(fetch, document)
            or self._is_of_another_name(fetch, document, offer, ours, origin)
            or await self._leads_back(up, listed, offer)
        ):
            raise WrongDocument(
                f"its link with rel=up names {up}, and not {offer.capability_list}; a server or "
                "cache may have confused two hosts",
                source=fetch.uri,
            )
        self._note(fetch, _place(up))

    def _is_first(self, fetch: Fetch, document: Document) -> bool:
        known = self.known
        if not known.has_resources and not document.resources:
            return False  # the empty set of another host would become the whole copy
        return not (known.has_resources if fetch.kind in RESOURCE_KINDS else known.has_changes)

    def _is_of_another_name(
        self,
        fetch: Fetch,
        document: Document,
        offer: Offer,
        ours: Document,
        origin: ResponseOrigin,
    ) -> bool:
        """Return whether a link names another host that other evidence shows to be of this set."""
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
        """Return whether the target of a link lists the document or the Capability List."""
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
    """Return the document that the Capability List must list: this one, or one above it."""
    roots = {root.kind: root.uri for root in change_documents(offer) + resource_documents(offer)}
    return roots.get(fetch.kind, fetch.uri)


def _listed(document: Document, origin: ResponseOrigin) -> set[str]:
    is_list = document.capability == Capability.CAPABILITY_LIST
    return set(_places(origin.base, document)) if is_list else set()


def _places(base: str, document: Document) -> Iterable[str]:
    return (_place(resolve(base, entry.uri)) for entry in document.resources)


def _place(uri: str) -> str:
    """Return a URI without the parts that vary among a server's names: its scheme and port."""
    try:
        url = URL(uri)
        port = "" if url.port in (None, 80, 443) else f":{url.port}"
        return f"{(url.raw_host or '').lower()}{port}{url.raw_path_qs}"
    except ValueError:
        return uri


def _host(place: str) -> str:
    return place.partition("/")[0]
