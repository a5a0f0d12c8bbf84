"""The content of changes, from the cheapest source that has what was announced (core §14).

The order is that of cost: content inside the document, a member of a package that is already here,
a patch of the content that is held, and then a GET, of a mirror or of the resource itself.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import b64decode
from collections.abc import Mapping, Sequence
from datetime import timedelta
from random import Random
from types import MappingProxyType
from urllib.parse import unquote_to_bytes

from msgspec.structs import replace

from rsnotify.errors import ContentMismatch, FetchError, Unavailable
from rsnotify.format.coverage import Change
from rsnotify.format.datetimes import Instant, from_microseconds, to_microseconds
from rsnotify.format.timestamp_precision import end_of_unit, postponed
from rsnotify.selection.representations import (
    RepresentationSource,
    WantedRepresentation,
    wanted_link_target,
    wanted_representation,
)
from rsnotify_subscriber.content.dump_packages import DumpPackages
from rsnotify_subscriber.content.freshness import (
    FreshnessCheck,
    check_announced,
    with_doubt_if_old,
)
from rsnotify_subscriber.fetching.contents import Content, Unchanged
from rsnotify_subscriber.fetching.digests import agree, parse_hashes, verified_hashes
from rsnotify_subscriber.fetching.fetcher import Fetcher
from rsnotify_subscriber.handlers import ReadableHandler
from rsnotify_subscriber.patching import Patch
from rsnotify_subscriber.patching.patcher import Patcher
from rsnotify_subscriber.storage.resource_state import ResourceState

logger = logging.getLogger("rsnotify.subscriber")


#: The seconds for which a host gets no requests after it did not answer.
_PAUSE = 60.0
#: A validator received so shortly before or after a change may be that of both versions.
_AROUND = timedelta(seconds=2)


class ContentResolver:
    """Returns the content of changes.

    Args:
        prefer: Media types, the best first (core §14.3).
        exact: Whether the version of the change is fetched, rather than the current one, where
            the Source has both (core §14.6).
        patches: Functions that apply patches, by media type, beside the standard ones.
        packages: Has the members of dump packages, if dumps are used.
        holding: Has the content that is held, if the handler can return it.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        *,
        prefer: Sequence[str] = (),
        exact: bool = False,
        patches: Mapping[str, Patch] = MappingProxyType({}),
        packages: DumpPackages | None = None,
        holding: ReadableHandler | None = None,
    ) -> None:
        self._fetcher = fetcher
        self._freshness = FreshnessCheck(fetcher)
        self._prefer = tuple(prefer)
        self._exact = exact
        self._packages = packages
        self._random = Random()
        self._paused: dict[str, float] = {}
        self._patcher = Patcher(holding, patches) if holding is not None else None

    def wanted(self, change: Change) -> WantedRepresentation:
        """Return the representation to copy for a change that is no deletion."""
        return wanted_representation(change, self._prefer, exact=self._exact, random=self._random)

    def inline(self, wanted: WantedRepresentation) -> Content | None:
        """Return the verified content inside the document; None if it has to be fetched."""
        found = _inline_content(wanted)
        return None if found is None else self._fetcher.store(*found)

    async def members(self, wanted: Sequence[WantedRepresentation]) -> list[Content | None]:
        """Return the verified contents of small members of packages; None for all others."""
        if self._packages is None:
            return [None] * len(wanted)
        return await self._packages.small_members([(each.package, each.entry) for each in wanted])

    async def resolve(
        self, wanted: WantedRepresentation, held: ResourceState | None
    ) -> Content | Unchanged:
        """Return verified content, from a package, a patch or a server.

        Returns:
            The content, or the server's answer that it is the content that is held.

        Raises:
            FetchError: No source had what was announced; the error is that of its own URI.
            OSError: It could not be written.
        """
        uri = wanted.entry.uri
        try:
            answer = await self._resolve(wanted, held, fresh=self._freshness.refused(uri))
        except ContentMismatch:
            self._freshness.refuse(uri)
            raise
        self._freshness.accept(uri)
        return answer

    async def _resolve(
        self, wanted: WantedRepresentation, held: ResourceState | None, *, fresh: bool
    ) -> Content | Unchanged:
        if (member := await self._member(wanted)) is not None:
            return member
        since = None if fresh else _condition(wanted, held)
        if since is not None:
            home = replace(wanted.entry, uri=wanted.home.uri)
            answer = await self._fetcher.changed_content(home, since)
        else:
            answer = await self._patched(wanted, held) or await self._get(wanted, fresh=fresh)
        return await self._freshness.checked(answer, wanted, held)

    async def current(self, wanted: WantedRepresentation, held: ResourceState | None) -> Content:
        """Fetch the current content of a resource from its own URI, past caches.

        If it is neither what is held nor what was announced, this is a `ContentMismatch`.
        """
        home = replace(wanted.entry, uri=wanted.home.uri)
        content = await self._fetcher.current_content(home)
        if held is None or agree(held.hash, content.hashes) is not True:
            try:
                check_announced(wanted.entry, content)
            except ContentMismatch:
                content.discard()
                raise
        return with_doubt_if_old(content, wanted)

    async def _member(self, wanted: WantedRepresentation) -> Content | None:
        if self._packages is None or wanted.package is None or wanted.entry.path is None:
            return None
        try:
            return await self._packages.member(wanted.package, wanted.entry)
        except FetchError as error:
            logger.info("it is fetched, as its package did not have it: %s", error)
            return None

    async def _patched(
        self, wanted: WantedRepresentation, held: ResourceState | None
    ) -> Content | None:
        if self._patcher is None or held is None:
            return None
        for link in self._patcher.usable(wanted, held):
            try:
                document = await self._document(wanted_link_target(link, wanted.package))
            except FetchError as error:
                logger.info("a patch cannot be fetched: %s", error)
                continue
            data = await self._patcher.patched(wanted, held, link, document)
            if data is not None:
                hashes = verified_hashes(data, wanted.entry.hash)
                assert hashes is not None, "the patched content was verified"
                return self._fetcher.store(data, hashes)
        return None

    async def _document(self, wanted: WantedRepresentation) -> Content:
        found = _inline_content(wanted, needs_hash=False)
        if found is not None:
            return self._fetcher.store(*found)
        return await self._member(wanted) or await self._get(wanted)

    async def _get(self, wanted: WantedRepresentation, *, fresh: bool = False) -> Content:
        reason: FetchError | None = None
        for place in self._answering(wanted):
            entry = replace(wanted.entry, uri=place.uri)
            try:
                return await self._fetcher.content(entry, moment=place.moment, fresh=fresh)
            except FetchError as error:
                if reason is None or place == wanted.home:
                    reason = error
                if place != wanted.home:
                    self._note(place, error)
        # Without a URI it is inside the document, and was found not to be what was announced.
        raise reason or ContentMismatch(wanted.entry.uri[:80], "it is not what was announced")

    def _answering(self, wanted: WantedRepresentation) -> Sequence[RepresentationSource]:
        """Return the sources to try: a mirror that is away must not delay each resource."""
        now = asyncio.get_running_loop().time()
        found = [place for place in wanted.sources if self._paused.get(_host(place), 0.0) <= now]
        return found or wanted.sources

    def _note(self, place: RepresentationSource, error: FetchError) -> None:
        logger.info("another source is tried: %s", error)
        if isinstance(error, Unavailable):
            now = asyncio.get_running_loop().time()
            self._paused = {host: end for host, end in self._paused.items() if end > now}
            self._paused[_host(place)] = now + _PAUSE


def _condition(wanted: WantedRepresentation, held: ResourceState | None) -> str | None:
    """Return the header field of a conditional request for content that is not what is held."""
    entry = wanted.entry
    if held is None or held.validator is None or not held.fetched_at:
        return None
    if entry.hash is not None or wanted.sources != (wanted.home,):
        return None
    if entry.length not in (None, held.length):
        return None  # it cannot be what is held
    if entry.lastmod and held.lastmod and to_microseconds(entry.lastmod) < held.lastmod:
        # The date went back, and servers may answer 304 to any later date (RFC 9110 §13.1.3).
        return None
    if wanted.at is not None and _is_around(wanted.at, from_microseconds(held.fetched_at)):
        return None  # RFC 9110 §8.8.2.2: the validator may be that of both versions
    return held.validator


def _is_around(made: Instant, fetched: Instant) -> bool:
    over = end_of_unit(made)
    if over - made > _AROUND:
        return False  # for a whole day, the age in the answer itself shows more
    return made <= postponed(fetched, _AROUND) and fetched <= postponed(over, _AROUND)


def _host(place: RepresentationSource) -> str:
    return place.uri.partition("://")[2].partition("/")[0]


def _inline_content(
    wanted: WantedRepresentation, *, needs_hash: bool = True
) -> tuple[bytes, str] | None:
    """Return the content inside a document and its hashes, if they and its length are as announced.

    None if the entry has no hash, or the content has another: it is fetched from its own URI.
    By the hash, a list of the Source can confirm or contradict content that came by a hub.
    A patch need not have a hash, as its result has one.
    """
    entry = wanted.entry
    if not wanted.inline or (needs_hash and not parse_hashes(entry.hash)):
        return None
    for uri in wanted.inline:
        content = _decode_data_uri(uri)
        if content is None:
            continue
        hashes = verified_hashes(content, entry.hash, entry.length)
        if hashes is not None:
            return content, hashes
    return None


def _decode_data_uri(uri: str) -> bytes | None:
    """Return the content of a `data:` URI (RFC 2397); None if it is malformed."""
    header, comma, data = uri[5:].partition(",")
    if not comma:
        return None
    content = unquote_to_bytes(data)
    if not header.lower().endswith(";base64"):
        return content
    try:
        return b64decode(content, validate=True)
    except ValueError:
        return None
