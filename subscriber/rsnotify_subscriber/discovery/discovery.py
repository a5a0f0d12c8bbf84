"""Finds the set of resources that a user's URI leads to, and the Source's offer for that set.

The search follows core §6.3: it reads documents at well-known URIs, and those that pages,
robots.txt and other documents link to. A run identifies its Source once, and then rereads the
current offer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from urllib.parse import urlsplit

from msgspec.structs import replace

from rsnotify.errors import (
    ConfigurationError,
    DocumentError,
    FetchError,
    NotFound,
    RsnotifyError,
    SeveralSets,
    Unavailable,
    without_credentials,
)
from rsnotify.format.links import html_links, resolve
from rsnotify.format.model import WELL_KNOWN_PATH, Capability, Document, Rel
from rsnotify.format.offer import FIELDS, Offer, read_framework, read_offer
from rsnotify.runtime.tasks import first_completed
from rsnotify.sync.pull import change_documents, resource_documents
from rsnotify.sync.retry import Retry
from rsnotify_subscriber.discovery.descriptions import DescriptionReader
from rsnotify_subscriber.fetching.credentials import without_login
from rsnotify_subscriber.fetching.fetcher import FetchedDocument, Fetcher
from rsnotify_subscriber.fetching.responses import ResponseOrigin
from rsnotify_subscriber.storage.identity import DescriptionMemory, Identity

logger = logging.getLogger("rsnotify.subscriber")

#: The path of the file that names a site's Sitemaps (core §6.3.4).
ROBOTS_PATH = "/robots.txt"
#: Maximum number of links to follow from document to document.
_MAX_STEPS = 6
_LISTED_UNDER: dict[str | None, str] = {
    **FIELDS,
    None: "resource_list",  # a plain Sitemap (core §6.1)
}


def offer_at(document: Document, origin: ResponseOrigin) -> Offer:
    """Return the offer of a Capability List."""
    return replace(read_offer(document, origin.base), capability_list=origin.place)


def capability_lists(description: Document) -> list[str]:
    """Return the URIs of the Capability Lists that a Source Description lists."""
    return [
        one.uri
        for one in description.resources
        if one.capability != Capability.FRAMEWORK_NOTIFICATION
    ]


def single_set(uri: str, description: Document, listed: list[str]) -> str:
    """Return the URI of the one Capability List that a Source Description lists.

    Raises `ConfigurationError` if there are none or several (`SeveralSets`).
    """
    if not listed:
        raise ConfigurationError(f"{uri} describes no set of resources")
    if len(listed) > 1:
        what = "Source Descriptions" if description.index else "sets of resources"
        raise _several(uri, what, uri, listed)
    return listed[0]


@dataclass
class SourceSearch:
    """A single search through the documents of a Source."""

    descriptions: DescriptionReader
    uri: str
    _steps: int = field(default=0, init=False)

    async def run(self, missing: NotFound | None = None) -> Offer:
        """Return the offer of the set. Raises the errors of `discover`.

        A URI that is known to be `missing` is not requested again.
        """
        if missing is not None and missing.uri == self.uri:
            return await self._from_site(missing)
        try:
            page, origin = await self.descriptions.page(self.uri)
        except FetchError as error:
            if isinstance(error, NotFound) or (self._is_site and was_answered(error)):
                return await self._from_site(error)
            raise
        if page.document is not None:
            return await self._from_document(page.document, origin)
        linked = _resourcesync_links(page, origin.base)
        if linked:
            return await self._from_uri(linked[0])
        return await self._from_site(page.error or "it is not a ResourceSync document")

    @property
    def _is_site(self) -> bool:
        """Whether the URI names a site or a folder rather than one document."""
        return urlsplit(self.uri).path in ("", "/") or self.uri.endswith("/")

    async def _from_site(self, reason: FetchError | DocumentError | str) -> Offer:
        """Search the well-known URIs (core §6.3.2, §6.3.4), because the URI itself leads nowhere.

        `reason` says why.
        """
        tried: list[FetchError | DocumentError | str] = [reason]
        places = [resolve(self.uri, ".") + WELL_KNOWN_PATH[1:]]
        # While the folder fails, do not use the host's description, which may be of another set.
        is_failing = _is_temporary(reason)
        if not is_failing:
            places.append(resolve(self.uri, WELL_KNOWN_PATH))
        for place in dict.fromkeys(places):
            try:
                document, origin = await self.descriptions.document(place)
            except (FetchError, DocumentError) as error:
                tried.append(error)
            else:
                return await self._from_document(document, origin)
        sitemaps = [] if is_failing else await self._sitemaps(tried)
        if len(sitemaps) == 1:
            return await self._from_uri(sitemaps[0])
        if sitemaps:
            robots = resolve(self.uri, ROBOTS_PATH)
            raise _several(self.uri, "Sitemaps", robots, sitemaps)
        for failure in tried:
            if isinstance(failure, Unavailable):  # a later attempt may succeed
                others = [str(other) for other in tried if other is not failure]
                why = "; ".join([failure.reason, *others])
                raise Unavailable(failure.uri, why, failure.retry_after, status=failure.status)
        raise ConfigurationError(
            f"{self.uri} leads to no set of resources: " + "; ".join(map(str, tried))
        )

    async def _sitemaps(self, tried: list[FetchError | DocumentError | str]) -> list[str]:
        robots = resolve(self.uri, ROBOTS_PATH)
        try:
            page, _ = await self.descriptions.page(robots)
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
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise ConfigurationError(f"{self.uri} leads to an endless chain of documents")
        document, origin = await self.descriptions.document(uri)
        return await self._from_document(document, origin)

    async def _from_document(self, document: Document, origin: ResponseOrigin) -> Offer:
        if document.capability == Capability.DESCRIPTION:
            return await self._from_description(document, origin)
        if document.capability == Capability.CAPABILITY_LIST:
            return offer_at(document, origin)
        above = await self._above(document, origin)
        role = _LISTED_UNDER.get(document.capability)
        listed = None if above is None or role is None else getattr(above, role)
        if above is not None and (role is None or listed is not None):
            if listed is not None and document.link(Rel.INDEX) is None:
                await self._check_listed(document, origin, listed)
            return above
        if role is None:
            raise ConfigurationError(
                f"{origin.place} has the capability {document.capability!r}, which cannot be "
                "followed; name the Capability List instead"
            )
        return replace(above or Offer(), **{role: origin.place})

    async def _from_description(self, document: Document, origin: ResponseOrigin) -> Offer:
        listed = [resolve(origin.base, uri) for uri in capability_lists(document)]
        offer = await self._from_uri(single_set(origin.place, document, listed))
        if document.index:
            return offer
        up = offer.source_description
        if up is not None and up != origin.place:  # perhaps a description of this set alone
            with suppress(FetchError, DocumentError):
                above, its_origin = await self.descriptions.document(up)
                described = read_framework(offer, above, its_origin.base)
                if above.capability == Capability.DESCRIPTION and described.listed:
                    return described
        offer = read_framework(offer, document, origin.base)
        return replace(offer, source_description=origin.place, listed=True)

    async def _check_listed(self, document: Document, origin: ResponseOrigin, listed: str) -> None:
        """Reject a list if the Capability List above it names the list of another set."""
        if _bare(listed) in (_bare(self.uri), _bare(origin.place), _bare(origin.base)):
            return
        other, _ = await self.descriptions.document(listed)
        if not _share_entries(document, other):
            raise ConfigurationError(
                f"{origin.place} links to a Capability List that lists {listed} instead; name the "
                "Capability List of the set to follow"
            )

    async def _above(self, document: Document, origin: ResponseOrigin) -> Offer | None:
        """Follow the link up, which Sources may omit, or which may be broken."""
        up = document.link(Rel.UP) or document.link(Rel.INDEX)
        if up is None:
            return None
        uri = resolve(origin.base, up)
        try:
            return await self._from_uri(uri)
        except Unavailable as error:
            if _host(error.uri) == _host(origin.base):
                raise  # a later attempt may succeed, and a complete copy needs the documents above
            return None
        except RsnotifyError:
            return None


def was_answered(error: FetchError) -> bool:
    """Return whether the host answered, so that it may also answer for another URI."""
    return not isinstance(error, Unavailable) or error.status is not None


def _is_temporary(reason: FetchError | DocumentError | str) -> bool:
    """Return whether a failure is temporary, and says nothing about the resource."""
    if not isinstance(reason, Unavailable) or reason.status is None:
        return False
    return reason.status >= 500 or reason.status in (408, 429)


def _several(uri: str, what: str, where: str, found: list[str]) -> SeveralSets:
    names = "".join(f"\n  {one}" for one in found)
    message = f"{uri} leads to several {what}; use the URL of one of them instead:{names}"
    return SeveralSets(message, where, tuple(found))


def _bare(uri: str) -> str:
    """Return a URI without the scheme and `www.`, which often vary."""
    return uri.partition("://")[2].removeprefix("www.")


def _share_entries(one: Document, other: Document) -> bool:
    uris = {entry.uri for entry in one.resources}
    return not uris or any(entry.uri in uris for entry in other.resources)


def _host(uri: str) -> str:
    return resolve(uri, "/")


def _resourcesync_links(page: FetchedDocument, uri: str) -> list[str]:
    found = [target for rel, target in page.links if rel.lower() == Rel.RESOURCESYNC]
    embedded = html_links(page.text)  # core §6.3.3
    return found + [resolve(uri, target) for rel, target in embedded if rel == Rel.RESOURCESYNC]


async def discover(fetcher: Fetcher, uri: str) -> Offer:
    """Return the offer of the one set of resources that a URI leads to.

    Args:
        fetcher: Fetches the documents.
        uri: The URI of a site, a well-known URI, a Source Description, a Capability List, a
            document that it lists, or a plain Sitemap.

    Raises:
        ConfigurationError: The URI leads to no set of resources, or to several.
        FetchError: A document could not be fetched.
        DocumentError: A document could not be read.
    """
    return await OfferDiscovery(DescriptionReader(fetcher), uri).find()


async def find_offer(fetcher: Fetcher, uri: str) -> Offer:
    """Return the offer of the one set that a URI leads to, even if it has nothing to follow."""
    return await SourceSearch(DescriptionReader(fetcher), uri).run()


async def find_top_document(fetcher: Fetcher, uri: str) -> str:
    """Return the URI of the topmost document of the Source that a URI leads to.

    This may be the Source Description of several sets. Raises the errors of `discover`.
    """
    try:
        offer = await find_offer(fetcher, uri)
    except SeveralSets as several:
        if several.where.endswith(ROBOTS_PATH):
            raise
        return several.where
    return offer.top or uri


def base_of(offer: Offer) -> str:
    """Return the URI, ending in `/`, of the folder with the documents of a set."""
    documents = [one.uri for one in resource_documents(offer) + change_documents(offer)]
    return resolve(offer.capability_list or next(iter(documents), ""), ".")


@dataclass
class OfferDiscovery:
    """Finds the offer of the one set of resources that a URI leads to, and rechecks it."""

    descriptions: DescriptionReader
    uri: str

    @property
    def memory(self) -> DescriptionMemory:
        return self.descriptions.memory

    async def find(self, missing: NotFound | None = None) -> Offer:
        """Return the offer. Raises the errors of `discover`.

        `missing` is as in `SourceSearch.run`.
        """
        offer = await SourceSearch(self.descriptions, self.uri).run(missing)
        if not (change_documents(offer) or resource_documents(offer)):
            raise ConfigurationError(
                f"{self.uri} leads to a set of resources without a Resource List, Change List, "
                "dump or archive"
            )
        return offer if offer.listed else await self._described(offer, offer)

    async def revalidate(self, known: Offer) -> Offer:
        """Reread the offer from the Capability List and the Source Description.

        Raises:
            SeveralSets: The Source Description lists several other sets instead.
            FetchError: The offer could not be checked.
        """
        if known.capability_list is None:
            if self.uri in known.documents.values():
                return known  # the offer is only this list, which the follower reads anyway
            return await self.find()
        try:
            offer = await self._capability_list(known.capability_list)
        except NotFound as missing:
            return await self.find(missing)
        return await self._described(self._with_named_list(offer, known), known)

    async def _capability_list(self, uri: str) -> Offer:
        document, origin = await self.descriptions.document(uri)
        return offer_at(document, origin)

    def _with_named_list(self, offer: Offer, known: Offer) -> Offer:
        """Keep the list that the user named even if the Capability List omits it."""
        named = {field for field in FIELDS.values() if getattr(known, field) == self.uri}
        return replace(
            offer, **{field: self.uri for field in named if getattr(offer, field) is None}
        )

    async def _described(self, offer: Offer, known: Offer) -> Offer:
        """Complete an offer from the Source Description, which may now list another set."""
        uri = offer.source_description
        if known.listed or uri is None:  # a Capability List may omit the link up
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


_RETRY = Retry(first=1.0, most=60.0)


@dataclass
class SourceIdentification:
    """Identifies the Source of a run.

    Args:
        url: The URL that the user gave.
        place: The location of the state, for messages.
        offers: Finds the offer.
        stopping: Set when the run should end.
        waiting: Called with the reason when the Source cannot be reached.
        suffices: Returns whether an offer has what the run needs.
        checked: Whether the offer was read in this run.
    """

    url: str
    place: object
    offers: OfferDiscovery
    stopping: asyncio.Event
    waiting: Callable[[str], None]
    suffices: Callable[[Offer], bool]
    checked: bool = False

    async def identify(self, known: Identity | None, *, patient: bool) -> Identity | None:
        """Return the identity of the Source, with its offer, or None if the run was stopped.

        Args:
            known: The identity in the state. If it is another set, this raises
                `ConfigurationError`.
            patient: Whether to wait for a Source that cannot be reached. If so, a known offer that
                suffices is returned unchecked.
        """
        if known is not None:  # an earlier version may have stored a password in the URL
            known = replace(known, url=without_login(known.url))
        if known is not None and known.url == self.url and patient and self.suffices(known.offer):
            return known
        self.checked = True
        work = self._identified(known, patient=patient)
        found: Identity | None = None
        # Stop at once, even if the Source is slow.
        async with first_completed(work, self.stopping.wait()) as (working, _):
            if working.done():
                found = working.result()
        return found

    async def _identified(self, known: Identity | None, *, patient: bool) -> Identity:
        if known is None:
            offer = await self._found(self.offers.find, patient=patient)
            return Identity(self.url, base_of(offer), offer, memory=self.offers.memory)
        if known.url == self.url:
            offer = await self._found(partial(self.offers.revalidate, known.offer), patient=patient)
        else:
            there = await self._found(self.offers.find, patient=patient)
            found = await same_set(self.offers, known, there)
            if found is None:
                raise ConfigurationError(
                    f"{self.place} holds the state of {without_credentials(known.url)}; "
                    f"to follow {without_credentials(self.url)}, use another state, or remove "
                    "this one"
                )
            offer = found
        return replace(known, url=self.url, offer=offer, memory=self.offers.memory)

    async def _found(self, find: Callable[[], Awaitable[Offer]], *, patient: bool) -> Offer:
        """Return the offer. If `patient`, retry while the Source cannot be reached."""
        random = Random()
        attempts = 0
        while True:
            try:
                return await find()
            except Unavailable as error:
                if not patient:
                    raise
                attempts += 1
                level = logging.WARNING if attempts == 1 else logging.INFO
                logger.log(level, "waiting for the Source: %s", error)
                self.waiting(str(error))
            await asyncio.sleep(_RETRY.delay(attempts, random))


async def same_set(offers: OfferDiscovery, known: Identity, offer: Offer) -> Offer | None:
    """Return the current offer of the known set if `offer` is of the same set, or None."""
    before = known.offer
    if _overlap(before, offer) and (offer.capability_list or not before.capability_list):
        return offer
    if before.capability_list is None:
        return None
    try:  # the set may have moved, or the URL may lead to a part of the offer
        now = await offers.revalidate(before)
    except RsnotifyError:
        return None
    return now if _overlap(now, offer) else None


def _overlap(one: Offer, other: Offer) -> bool:
    if one.capability_list is not None and one.capability_list == other.capability_list:
        return True
    return bool(set(one.documents.values()) & set(other.documents.values()))
