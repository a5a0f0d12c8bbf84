"""Finding the one set of resources that a URI leads to, and what is offered for it (core §6.3)."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from rsnotify.errors import ConfigurationError, DocumentError, FetchError, NotFound
from rsnotify.format.links import resolve
from rsnotify.format.offer import FIELDS, Offer, read_framework
from rsnotify.format.vocabulary import Capability
from rsnotify.sync.fallback_order import change_documents, resource_documents
from rsnotify_subscriber.discovery.descriptions import DescriptionReader
from rsnotify_subscriber.discovery.search import (
    SourceSearch,
    capability_lists,
    offer_at,
    single_set,
)
from rsnotify_subscriber.fetching.fetcher import Fetcher
from rsnotify_subscriber.storage.identity import DescriptionMemory


async def discover(fetcher: Fetcher, uri: str) -> Offer:
    """Return what is offered for the one set of resources that a URI leads to.

    Args:
        fetcher: Fetches.
        uri: A site, a well-known URI, a Source Description, a Capability List or one of the
            documents that it lists, or a plain Sitemap.

    Raises:
        ConfigurationError: It leads to no set of resources, or to several.
        FetchError: A document could not be fetched.
        DocumentError: A document could not be read.
    """
    return await OfferDiscovery(DescriptionReader(fetcher), uri).find()


async def find_offer(fetcher: Fetcher, uri: str) -> Offer:
    """Return the offer of the one set that a URI leads to, even if none of it can be followed."""
    return await SourceSearch(DescriptionReader(fetcher), uri).run()


def base_of(offer: Offer) -> str:
    """Return the URI, ending in `/`, of the folder in which the documents of a set are."""
    documents = [one.uri for one in resource_documents(offer) + change_documents(offer)]
    return resolve(offer.capability_list or next(iter(documents), ""), ".")


@dataclass
class OfferDiscovery:
    """Finds the offer of the one set of resources that a URI leads to, and checks it again."""

    descriptions: DescriptionReader
    uri: str

    @property
    def memory(self) -> DescriptionMemory:
        return self.descriptions.memory

    async def find(self, missing: NotFound | None = None) -> Offer:
        """Return the offer; the errors are those of `discover`.

        `missing` is the answer to a request that was made for this.
        """
        offer = await SourceSearch(self.descriptions, self.uri).run(missing)
        if not (change_documents(offer) or resource_documents(offer)):
            raise ConfigurationError(
                f"{self.uri} leads to a set of resources with neither a Resource List nor a "
                "Change List, and no dump or archive of them"
            )
        return offer if offer.listed else await self._described(offer, offer)

    async def revalidate(self, known: Offer) -> Offer:
        """Return the present offer, from the Capability List and the Source Description.

        Raises:
            SeveralSets: The Source Description lists several other sets instead.
            FetchError: The offer could not be checked.
        """
        if known.capability_list is None:
            if self.uri in known.documents.values():
                return known  # there is only this list, which the follower reads anyway
            return await self.find()
        try:
            offer = await self._capability_list(known.capability_list)
        except NotFound as missing:
            return await self.find(missing)
        return await self._described(self._with_named(offer, known), known)

    async def _capability_list(self, uri: str) -> Offer:
        document, origin = await self.descriptions.document(uri)
        return offer_at(document, origin)

    def _with_named(self, offer: Offer, known: Offer) -> Offer:
        """Keep the list that the user named, even if its Capability List leaves it out."""
        named = {field for field in FIELDS.values() if getattr(known, field) == self.uri}
        return replace(
            offer, **{field: self.uri for field in named if getattr(offer, field) is None}
        )

    async def _described(self, offer: Offer, known: Offer) -> Offer:
        """Compare an offer with the Source Description, which may list another set by now."""
        uri = offer.source_description
        if known.listed or uri is None:  # a Capability List may leave out the link up
            uri = known.source_description
        offer = replace(
            offer,
            source_description=uri,
            framework=known.framework,
            framework_hubs=known.framework_hubs,
        )
        if uri is None:
            return offer
        try:
            document, origin = await self.descriptions.document(uri)
        except NotFound:
            return await self.find() if known.listed else offer
        except (FetchError, DocumentError):
            if known.listed:
                raise
            return offer
        if document.capability != Capability.DESCRIPTION or document.index:
            return await self.find() if known.listed else offer
        entries = tuple(
            replace(one, uri=self.descriptions.current_uri(resolve(origin.base, one.uri)))
            for one in document.resources
        )
        document = replace(document, resources=entries)
        listed = capability_lists(document)
        if known.listed and offer.capability_list not in listed:
            moved = await self._capability_list(single_set(uri, document, listed))
            offer = replace(moved, source_description=uri)
        return read_framework(offer, document, origin.base)
