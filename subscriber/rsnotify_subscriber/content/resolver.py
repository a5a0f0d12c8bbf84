"""Obtains the content of changes from the cheapest source that has it (core §14).

The sources in order of cost: inline content, a member of an open package, a patch of the content in
the copy (`Patcher`), and a GET request to a mirror or to the resource itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from random import Random
from types import MappingProxyType

from msgspec.structs import replace

from rsnotify.errors import ContentMismatch, FetchError, Unavailable
from rsnotify.format.coverage import Change
from rsnotify.format.datetimes import (
    Instant,
    end_of_unit,
    from_microseconds,
    postponed,
    to_microseconds,
)
from rsnotify.format.hashes import agree, parse_hashes, verified_hashes
from rsnotify.format.inline_content import decode_inline_content
from rsnotify.selection import (
    RepresentationSource,
    WantedRepresentation,
    wanted_link_target,
    wanted_representation,
)
from rsnotify_subscriber.content.freshness import (
    FreshnessCheck,
    check_announced,
    with_doubt_if_old,
)
from rsnotify_subscriber.content.packages import DumpPackages
from rsnotify_subscriber.content.patches import Patch, Patcher
from rsnotify_subscriber.fetching.fetcher import Content, Fetcher, Unchanged
from rsnotify_subscriber.handlers import ReadableHandler
from rsnotify_subscriber.storage.resource_state import ResourceState

logger = logging.getLogger("rsnotify.subscriber")


async def _chunks(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
            yield chunk


#: Number of bytes of a file to read at once.
_CHUNK_BYTES = 1_000_000
#: Seconds for which a host receives no requests after it failed to answer.
_HOST_PAUSE = 60.0
#: A validator received within this time before or after a change may belong to both versions.
_VALIDATOR_MARGIN = timedelta(seconds=2)


class EntryRequired(ContentMismatch):
    """A resource that may have a preferred alternate was requested without its entry."""


class ContentResolver:
    """Obtains the content of changes.

    Args:
        fetcher: Fetches content.
        prefer: The preferred media types, best first (core §14.3).
        exact: Whether to fetch the version that the change describes rather than the current one,
            if the Source has both (core §14.6).
        patches: Functions that apply patches, by media type, in addition to the installed ones.
        packages: The open packages of dumps, if dumps are used.
        holding: The handler, if it can return the content in the copy.
        adopt: Whether to use content that `holding` already has for a new resource if its hash
            matches.
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
        adopt: bool = False,
    ) -> None:
        self._fetcher = fetcher
        self._freshness = FreshnessCheck(fetcher)
        self._prefer = tuple(prefer)
        self._exact = exact
        self._packages = packages
        self._random = Random()
        self._paused: dict[str, float] = {}
        self._patcher = Patcher(holding, patches) if holding is not None else None
        self._adopted_from = holding if adopt else None

    def wanted(self, change: Change) -> WantedRepresentation:
        """Return the representation to copy for a change other than a deletion."""
        return wanted_representation(change, self._prefer, exact=self._exact, random=self._random)

    def inline(self, wanted: WantedRepresentation) -> Content | None:
        """Return the verified inline content, or None if it must be fetched."""
        found = _inline_content(wanted)
        return None if found is None else self._fetcher.store(*found)

    async def members(self, wanted: Sequence[WantedRepresentation]) -> list[Content | None]:
        """Return the verified content of each small package member, or None for anything else."""
        if self._packages is None:
            return [None] * len(wanted)
        return await self._packages.small_members([(each.package, each.entry) for each in wanted])

    async def resolve(
        self, wanted: WantedRepresentation, held: ResourceState | None, *, fresh: bool = False
    ) -> Content | Unchanged:
        """Return verified content from a package, a patch or a server.

        With `fresh`, a request to a server bypasses caches.

        Returns:
            The content, or `Unchanged` if the content in the copy is current.

        Raises:
            FetchError: No source has the announced content. The reason is that of the resource's
                own URI.
            StorageError: The content could not be written.
        """
        uri = wanted.entry.uri
        fresh = fresh or self._freshness.must_bypass_caches(uri)
        try:
            answer = await self._resolve(wanted, held, fresh=fresh)
        except ContentMismatch:
            self._freshness.record_refused(uri)
            raise
        self._freshness.record_accepted(uri)
        return answer

    async def _resolve(
        self, wanted: WantedRepresentation, held: ResourceState | None, *, fresh: bool
    ) -> Content | Unchanged:
        if (member := await self._member(wanted)) is not None:
            return member
        if held is None and (adopted := await self._adopted(wanted)) is not None:
            return adopted
        since = None if fresh else _condition(wanted, held)
        if since is not None:
            home = replace(wanted.entry, uri=wanted.home.uri)
            answer = await self._fetcher.changed_content(home, since)
        else:
            answer = await self._patched(wanted, held) or await self._get(wanted, fresh=fresh)
        return await self._freshness.checked(answer, wanted, held)

    async def current(self, wanted: WantedRepresentation, held: ResourceState | None) -> Content:
        """Fetch the current content of a resource from its own URI, bypassing caches.

        Raises:
            ContentMismatch: The content is neither that of the copy nor the announced one.
            EntryRequired: The content is not that of the copy, and may not be the preferred one.
        """
        home = replace(wanted.entry, uri=wanted.home.uri)
        content = await self._fetcher.current_content(home)
        if held is None or agree(held.hash, content.hashes) is not True:
            try:
                self._check_preferred(wanted)
                check_announced(wanted.entry, content)
            except ContentMismatch:
                content.discard()
                raise
        return with_doubt_if_old(content, wanted)

    def _check_preferred(self, wanted: WantedRepresentation) -> None:
        """Check that the entry describes the resource, which may have a preferred alternate."""
        entry = wanted.entry
        is_described = wanted.alternate is not None or entry.hash or entry.lastmod
        if self._prefer and not is_described:
            raise EntryRequired(entry.uri, "only its entry in a list links to its alternates")

    async def _member(self, wanted: WantedRepresentation) -> Content | None:
        if self._packages is None or wanted.package is None or wanted.entry.path is None:
            return None
        try:
            return await self._packages.member(wanted.package, wanted.entry)
        except FetchError as error:
            logger.info("fetching a resource that its package lacks: %s", error)
            return None

    async def _adopted(self, wanted: WantedRepresentation) -> Content | None:
        """Return content from before the first run, if it is the announced content."""
        entry, holding = wanted.entry, self._adopted_from
        path = holding.held_content(entry.uri) if holding and parse_hashes(entry.hash) else None
        if path is None:
            return None
        try:
            return await self._fetcher.collect(entry, _chunks(path), verify=True)
        except (OSError, ContentMismatch) as error:
            logger.info("fetching %s, because the existing file differs: %s", entry.uri, error)
            return None

    async def _patched(
        self, wanted: WantedRepresentation, held: ResourceState | None
    ) -> Content | None:
        if self._patcher is None or held is None:
            return None
        for link in self._patcher.usable(wanted, held):
            try:
                document = await self._patch(wanted_link_target(link, wanted.package))
            except FetchError as error:
                logger.info("cannot fetch a patch: %s", error)
                continue
            data = await self._patcher.patched(wanted, held, link, document)
            if data is not None:
                hashes = verified_hashes(data, wanted.entry.hash)
                assert hashes is not None, "the patched content was verified"
                return self._fetcher.store(data, hashes)
        return None

    async def _patch(self, wanted: WantedRepresentation) -> Content:
        found = _inline_content(wanted, needs_hash=False)
        if found is not None:
            return self._fetcher.store(*found)
        return await self._member(wanted) or await self._get(wanted)

    async def _get(self, wanted: WantedRepresentation, *, fresh: bool = False) -> Content:
        reason: FetchError | None = None
        for source in self._sources_to_try(wanted):
            entry = replace(wanted.entry, uri=source.uri)
            try:
                return await self._fetcher.content(entry, moment=source.moment, fresh=fresh)
            except FetchError as error:
                if reason is None or source == wanted.home:
                    reason = error
                if source != wanted.home:
                    self._record_failure(source, error)
        # A wanted representation without a URI is inline, and differed from the announcement.
        raise reason or ContentMismatch(wanted.entry.uri[:80], "it differs from the announcement")

    def _sources_to_try(self, wanted: WantedRepresentation) -> Sequence[RepresentationSource]:
        """Return the sources except those that are down, which must not delay each resource."""
        now = asyncio.get_running_loop().time()
        found = [one for one in wanted.sources if self._paused.get(_host(one), 0.0) <= now]
        return found or wanted.sources

    def _record_failure(self, source: RepresentationSource, error: FetchError) -> None:
        logger.info("trying another source: %s", error)
        if isinstance(error, Unavailable):
            now = asyncio.get_running_loop().time()
            self._paused = {host: end for host, end in self._paused.items() if end > now}
            self._paused[_host(source)] = now + _HOST_PAUSE


def _condition(wanted: WantedRepresentation, held: ResourceState | None) -> str | None:
    """Return the validator for a conditional request, or None if it must be unconditional."""
    entry = wanted.entry
    if held is None or held.validator is None or not held.fetched_at:
        return None
    if entry.hash is not None or wanted.sources != (wanted.home,):
        return None
    if entry.length not in (None, held.length):
        return None  # the content in the copy is not the announced one
    if entry.lastmod and held.lastmod and to_microseconds(entry.lastmod) < held.lastmod:
        # The date went back, and a server may answer 304 to any later date (RFC 9110 §13.1.3).
        return None
    if wanted.at is not None and _is_near(wanted.at, from_microseconds(held.fetched_at)):
        return None  # RFC 9110 §8.8.2.2: the validator may belong to both versions
    return held.validator


def _is_near(changed: Instant, fetched: Instant) -> bool:
    end = end_of_unit(changed)
    if end - changed > _VALIDATOR_MARGIN:
        return False  # a date without a time shows less than the dates in the response
    is_before = changed <= postponed(fetched, _VALIDATOR_MARGIN)
    return is_before and fetched <= postponed(end, _VALIDATOR_MARGIN)


def _host(source: RepresentationSource) -> str:
    return source.uri.partition("://")[2].partition("/")[0]


def _inline_content(
    wanted: WantedRepresentation, *, needs_hash: bool = True
) -> tuple[bytes, str] | None:
    """Return the inline content and its hashes, or None if it must be fetched.

    It must match the hash and length of its entry. The hash is required so that a list of the
    Source can confirm or contradict content that came through a hub. A patch needs no hash, because
    its result has one.
    """
    entry = wanted.entry
    if not wanted.inline or (needs_hash and not parse_hashes(entry.hash)):
        return None
    for uri in wanted.inline:
        content = decode_inline_content(uri)
        if content is None:
            continue
        hashes = verified_hashes(content, entry.hash, entry.length)
        if hashes is not None:
            return content, hashes
    return None
