"""The search through the documents of a Source, from a URI to one set of resources (core §6.3)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
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
)
from rsnotify.format.embedded_links import html_links
from rsnotify.format.links import resolve
from rsnotify.format.model import Document
from rsnotify.format.offer import FIELDS, Offer, read_framework, read_offer
from rsnotify.format.vocabulary import WELL_KNOWN_PATH, Capability, Rel
from rsnotify_subscriber.discovery.descriptions import DescriptionReader
from rsnotify_subscriber.fetching.fetcher import FetchedDocument
from rsnotify_subscriber.fetching.origin import ResponseOrigin

#: The path at which a site names its Sitemaps (core §6.3.4).
ROBOTS_PATH = "/robots.txt"
#: The most links that are followed from one document to the next, up or down.
_STEPS = 6
_LISTED_UNDER: dict[str | None, str] = {
    **FIELDS,
    None: "resource_list",  # a plain Sitemap (core §6.1)
}


def offer_at(document: Document, origin: ResponseOrigin) -> Offer:
    """Return the offer of a Capability List, with the URI to which it was redirected."""
    return replace(read_offer(document, origin.base), capability_list=origin.place)


def capability_lists(description: Document) -> list[str]:
    """Return the entries of a Source Description for sets of resources."""
    return [
        one.uri
        for one in description.resources
        if one.capability != Capability.FRAMEWORK_NOTIFICATION
    ]


def single_set(uri: str, description: Document, listed: list[str]) -> str:
    """Return the Capability List of the one set that a Source Description lists.

    Raises `ConfigurationError` if it lists none, or several (`SeveralSets`).
    """
    if not listed:
        raise ConfigurationError(f"{uri} describes no set of resources")
    if len(listed) > 1:
        what = "Source Descriptions" if description.index else "sets of resources"
        raise _several(uri, what, uri, listed)
    return listed[0]


@dataclass
class SourceSearch:
    """One search through the documents of a Source; used once."""

    descriptions: DescriptionReader
    uri: str
    _steps: int = field(default=0, init=False)

    async def run(self, missing: NotFound | None = None) -> Offer:
        """Return the offer of the set; the errors are those of `discover`.

        A URI that was just found `missing` is not requested again.
        """
        if missing is not None and missing.uri == self.uri:
            return await self._from_site(missing)
        try:
            page, origin = await self.descriptions.page(self.uri)
        except FetchError as error:
            if isinstance(error, NotFound) or (self._is_site and _was_answered(error)):
                return await self._from_site(error)
            raise
        if page.document is not None:
            return await self._from_document(page.document, origin)
        linked = _resourcesync_links(page, origin.base)
        if linked:
            return await self._from_uri(linked[0])
        return await self._from_site(page.error or "it is no ResourceSync document")

    @property
    def _is_site(self) -> bool:
        """Whether the URI names a site or a folder, and not one document."""
        return urlsplit(self.uri).path in ("", "/") or self.uri.endswith("/")

    async def _from_site(self, reason: FetchError | DocumentError | str) -> Offer:
        """Search the URIs at which a Source may describe itself (core §6.3.2, §6.3.4).

        `reason` is why the URI itself leads to nothing.
        """
        tried: list[FetchError | DocumentError | str] = [reason]
        places = [resolve(self.uri, ".") + WELL_KNOWN_PATH[1:]]
        # The rest of the host may describe another set than that of a failing folder.
        is_failing = _may_pass(reason)
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
            if isinstance(failure, Unavailable):  # a later attempt may find something there
                others = [str(other) for other in tried if other is not failure]
                why = "; ".join([failure.reason, *others])
                raise Unavailable(failure.uri, why, failure.retry_after, status=failure.status)
        raise ConfigurationError(
            f"{self.uri} leads to nothing that can be followed: " + "; ".join(map(str, tried))
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
        if self._steps > _STEPS:
            raise ConfigurationError(f"{self.uri} leads from document to document without end")
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
                f"{origin.place} is a document of capability {document.capability!r}, from which "
                "nothing can be followed; name the Capability List instead"
            )
        return replace(above or Offer(), **{role: origin.place})

    async def _from_description(self, document: Document, origin: ResponseOrigin) -> Offer:
        listed = [resolve(origin.base, uri) for uri in capability_lists(document)]
        offer = await self._from_uri(single_set(origin.place, document, listed))
        if document.index:
            return offer
        up = offer.source_description
        if up is not None and up != origin.place:  # a description of this set alone, if any
            with suppress(FetchError, DocumentError):
                above, its_origin = await self.descriptions.document(up)
                described = read_framework(offer, above, its_origin.base)
                if above.capability == Capability.DESCRIPTION and described.listed:
                    return described
        offer = read_framework(offer, document, origin.base)
        return replace(offer, source_description=origin.place, listed=True)

    async def _check_listed(self, document: Document, origin: ResponseOrigin, listed: str) -> None:
        """Refuse a list if the Capability List above it names a list of another set instead."""
        if _bare(listed) in (_bare(self.uri), _bare(origin.place), _bare(origin.base)):
            return
        other, _ = await self.descriptions.document(listed)
        if not _share_entries(document, other):
            raise ConfigurationError(
                f"{origin.place} has a link up to a Capability List that lists {listed} instead; "
                "name the Capability List of the set to follow"
            )

    async def _above(self, document: Document, origin: ResponseOrigin) -> Offer | None:
        """Follow the link up; Sources may omit it, or let it point nowhere."""
        up = document.link(Rel.UP) or document.link(Rel.INDEX)
        if up is None:
            return None
        uri = resolve(origin.base, up)
        try:
            return await self._from_uri(uri)
        except Unavailable as error:
            if _host(error.uri) == _host(origin.base):
                raise  # it may be there later, and lists documents that a whole copy needs
            return None
        except RsnotifyError:
            return None


def _was_answered(error: FetchError) -> bool:
    """Return whether a host answered, so that it may answer for another URI, too."""
    return not isinstance(error, Unavailable) or error.status is not None


def _may_pass(reason: FetchError | DocumentError | str) -> bool:
    """Return whether a failure is one of the server, and shows nothing about the resource."""
    if not isinstance(reason, Unavailable) or reason.status is None:
        return False
    return reason.status >= 500 or reason.status in (408, 429)


def _several(uri: str, what: str, where: str, found: list[str]) -> SeveralSets:
    names = "".join(f"\n  {one}" for one in found)
    message = f"{uri} leads to several {what}; name one of them:{names}"
    return SeveralSets(message, where, tuple(found))


def _bare(uri: str) -> str:
    """Return a URI without the parts that often differ between spellings of it."""
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
