"""Finding out what a Source offers, from whatever URI the user has (core §6.3)."""

from __future__ import annotations

import msgspec

from rsnotify.embedded import html_links
from rsnotify.errors import (
    ConfigurationError,
    DocumentError,
    FetchError,
    NotFound,
    RsnotifyError,
    SeveralSets,
    Unavailable,
)
from rsnotify.ladder import change_ways, resource_ways
from rsnotify.links import resolve
from rsnotify.model import Document
from rsnotify.offer import FIELDS, Offer, read_framework, read_offer
from rsnotify.vocabulary import WELL_KNOWN_PATH, Capability, Rel
from rsnotify_subscriber.fetching.fetcher import Fetcher, Page

#: Where a site names its Sitemaps (core §6.3.4).
ROBOTS_PATH = "/robots.txt"
#: How many links are followed from one document to the next, up or down.
_STEPS = 6
_LISTED_UNDER: dict[str | None, str] = {
    **FIELDS,
    None: "resource_list",  # a plain Sitemap (core §6.1)
}


async def discover(fetcher: Fetcher, uri: str) -> Offer:
    """Find what is offered for the one set of resources that a URI leads to.

    Args:
        fetcher: Fetches.
        uri: A site, a well-known URI, a Source Description, a Capability List or one of the
            documents that it lists, or a plain Sitemap.

    Raises:
        ConfigurationError: It leads to no set of resources, or to several.
        FetchError: It could not be had.
        DocumentError: What it leads to could not be read.
    """
    offer = await find(fetcher, uri)
    if not (change_ways(offer) or resource_ways(offer)):
        raise ConfigurationError(
            f"{uri} leads to a set of resources with neither a Resource List nor a Change List, "
            "and no dump or archive of them"
        )
    return offer


async def find(fetcher: Fetcher, uri: str) -> Offer:
    """Find the one set of resources that a URI leads to, whatever is offered for it.

    Args:
        fetcher: Fetches.
        uri: As for `discover`.

    Raises:
        SeveralSets: It leads to several.
        RsnotifyError: As `discover`.
    """
    return await _Search(fetcher, uri).from_start()


async def rediscover(fetcher: Fetcher, uri: str, known: Offer, *, framework: bool = False) -> Offer:
    """Find what is offered now, for the same set of resources.

    Args:
        fetcher: Fetches.
        uri: What the user named.
        known: What was offered before.
        framework: Whether it is to be found, too, where is told of the documents themselves.

    Raises:
        RsnotifyError: As `discover`.
    """
    if known.capability_list is None:
        return await discover(fetcher, uri)
    try:
        document = await fetcher.document(known.capability_list)
    except NotFound:
        return await discover(fetcher, uri)
    offer = msgspec.structs.replace(
        read_offer(document, known.capability_list),
        framework=known.framework,
        framework_hubs=known.framework_hubs,
    )
    return await _with_framework(fetcher, offer) if framework else offer


async def _with_framework(fetcher: Fetcher, offer: Offer) -> Offer:
    """Read the Source Description, which one can do without."""
    if offer.source_description is None:
        return offer
    try:
        description = await fetcher.document(offer.source_description)
    except (FetchError, DocumentError):
        return offer
    if description.capability != Capability.DESCRIPTION or description.index:
        return offer
    return read_framework(offer, description, offer.source_description)


def base_of(offer: Offer) -> str:
    """Return the URI, ending in `/`, of the folder in which a set of resources is described."""
    ways = [way.uri for way in resource_ways(offer) + change_ways(offer)]
    return resolve(offer.capability_list or next(iter(ways), ""), ".")


class _Search:
    """One walk over the documents of a Source."""

    def __init__(self, fetcher: Fetcher, uri: str) -> None:
        self._fetcher = fetcher
        self._uri = uri
        self._steps = 0

    async def from_start(self) -> Offer:
        try:
            page = await self._fetcher.page(self._uri)
        except NotFound as error:
            page, reason = Page([]), str(error)
        else:
            reason = str(page.error) if page.error else "it is no ResourceSync document"
        if page.document is not None:
            return await self._from_document(page.document, self._uri)
        linked = _resourcesync_links(page, self._uri)
        if linked:
            return await self._from_uri(linked[0])
        return await self._from_site(reason)

    async def _from_site(self, reason: str) -> Offer:
        """Look where a Source describes itself without saying so (core §6.3.2, §6.3.4)."""
        tried: list[FetchError | DocumentError | str] = []
        folder = resolve(self._uri, ".")
        for place in dict.fromkeys(
            (folder + WELL_KNOWN_PATH[1:], resolve(self._uri, WELL_KNOWN_PATH))
        ):
            try:
                document = await self._fetcher.document(place)
            except (FetchError, DocumentError) as error:
                tried.append(error)
            else:
                return await self._from_document(document, place)
        sitemaps = await self._sitemaps(tried)
        if len(sitemaps) == 1:
            return await self._from_uri(sitemaps[0])
        if sitemaps:
            robots = resolve(self._uri, ROBOTS_PATH)
            raise _several(self._uri, "Sitemaps", robots, sitemaps)
        for failure in tried:
            if isinstance(failure, Unavailable):
                raise failure  # which says nothing of what is there: a later try may find it
        raise ConfigurationError(
            f"{self._uri} leads to nothing that can be followed: {reason}; "
            + "; ".join(map(str, tried))
        )

    async def _sitemaps(self, tried: list[FetchError | DocumentError | str]) -> list[str]:
        robots = resolve(self._uri, ROBOTS_PATH)
        try:
            page = await self._fetcher.page(robots)
        except FetchError as error:
            tried.append(error)
            return []
        lines = (line.partition(":") for line in page.text.splitlines())
        found = [
            resolve(robots, value.strip())
            for name, _, value in lines
            if name.strip().lower() == "sitemap" and value.strip()
        ]
        if not found:
            tried.append(f"{robots}: it names no Sitemap")
        return list(dict.fromkeys(found))

    async def _from_uri(self, uri: str) -> Offer:
        return await self._from_document(await self._document(uri), uri)

    async def _document(self, uri: str) -> Document:
        self._steps += 1
        if self._steps > _STEPS:
            raise ConfigurationError(f"{self._uri} leads from document to document without end")
        return await self._fetcher.document(uri)

    async def _from_document(self, document: Document, uri: str) -> Offer:
        if document.capability == Capability.DESCRIPTION:
            return await self._from_description(document, uri)
        if document.capability == Capability.CAPABILITY_LIST:
            return read_offer(document, uri)
        above = await self._above(document, uri)
        role = _LISTED_UNDER.get(document.capability)
        if above is not None and (role is None or getattr(above, role) is not None):
            return above
        if role is None:
            raise ConfigurationError(
                f"{uri} is a document of capability {document.capability!r}, from which nothing "
                "can be followed; name the Capability List instead"
            )
        return msgspec.structs.replace(above or Offer(), **{role: uri})

    async def _from_description(self, document: Document, uri: str) -> Offer:
        sets = (r for r in document.resources if r.capability != Capability.FRAMEWORK_NOTIFICATION)
        listed = [resolve(uri, resource.uri) for resource in sets]
        if not listed:
            raise ConfigurationError(f"{uri} describes no set of resources")
        if len(listed) > 1:
            what = "Source Descriptions" if document.index else "sets of resources"
            raise _several(uri, what, uri, listed)
        offer = await self._from_uri(listed[0])
        # Capability Lists forget the link up, too.
        offer = msgspec.structs.replace(offer, source_description=offer.source_description or uri)
        return read_framework(offer, document, uri)

    async def _above(self, document: Document, uri: str) -> Offer | None:
        """Follow the link up; Sources forget it, or let it point to nowhere."""
        up = document.link(Rel.UP) or document.link(Rel.INDEX)
        if up is None:
            return None
        try:
            return await self._from_uri(resolve(uri, up))
        except RsnotifyError:
            return None


def _several(uri: str, what: str, where: str, found: list[str]) -> SeveralSets:
    names = "".join(f"\n  {one}" for one in found)
    message = f"{uri} leads to several {what}; name one of them:{names}"
    return SeveralSets(message, where, tuple(found))


def _resourcesync_links(page: Page, uri: str) -> list[str]:
    found = [target for rel, target in page.links if rel.lower() == Rel.RESOURCESYNC]
    embedded = html_links(page.text)  # core §6.3.3
    return found + [resolve(uri, target) for rel, target in embedded if rel == Rel.RESOURCESYNC]
