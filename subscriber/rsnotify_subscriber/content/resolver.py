"""Bringing content: one way after the other, until one gives what was announced (core §14).

The order is that of cost: what came with the document, what is in a package already, a patch
of what is held, and then a GET, of a mirror or of the resource itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from random import Random
from typing import Protocol

import msgspec
from msgspec import Struct

from rsnotify.errors import ContentMismatch, FetchError, Unavailable
from rsnotify.format.coverage import Change
from rsnotify.format.datetimes import Instant, from_microseconds, to_microseconds
from rsnotify.format.model import Resource
from rsnotify.format.timestamp_precision import ends, postponed
from rsnotify.selection.representations import (
    RepresentationSource,
    WantedRepresentation,
    wanted,
    wanted_link,
)
from rsnotify_subscriber.content.freshness import FreshnessCheck, check_announced
from rsnotify_subscriber.content.inline import inline_content
from rsnotify_subscriber.fetching.contents import Content, Unchanged
from rsnotify_subscriber.fetching.digests import agree
from rsnotify_subscriber.fetching.fetcher import Fetcher
from rsnotify_subscriber.handlers import ReadableHandler
from rsnotify_subscriber.patching import Patch
from rsnotify_subscriber.patching.patcher import Patcher
from rsnotify_subscriber.storage.resource_state import ResourceState

logger = logging.getLogger("rsnotify.subscriber")


#: Seconds for which a mirror is not asked again after it did not answer.
_REST = 60.0
#: A validator that was had so shortly before or after a change may be that of both versions.
_AROUND = timedelta(seconds=2)


class ContentPreferences(Struct, frozen=True):
    """What a user wants of the content, where a Source offers several things.

    Args:
        prefer: Media types, the best first (core §14.3).
        exact: Whether the version that a change speaks of is asked for, rather than the
            current one, where the Source has both (core §14.6).
        patches: What applies a patch, by its media type, beside the standard ones.
    """

    prefer: tuple[str, ...] = ()
    exact: bool = False
    patches: Mapping[str, Patch] = {}


NO_PREFERENCES = ContentPreferences()


class PackageSource(Protocol):
    """Where the members of dump packages are had."""

    async def member(self, package: str, entry: Resource) -> Content:
        """Bring the member at `entry.path`, verified by the entry's hash and length.

        Raises:
            FetchError: It cannot be had from there; it is then fetched from elsewhere.
            OSError: It could not be written.
        """


class ContentResolver:
    """Brings the content of changes.

    Args:
        fetcher: Fetches.
        wishes: What is wanted, where there is a choice.
        packages: Where the members of dump packages are had, if dumps are used.
        holding: Has what is held, if the handler can give it back.
        give_up: How often an answer that looks out of date is refused.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        wishes: ContentPreferences = NO_PREFERENCES,
        *,
        packages: PackageSource | None = None,
        holding: ReadableHandler | None = None,
        give_up: int = 5,
    ) -> None:
        self._fetcher = fetcher
        self._freshness = FreshnessCheck(fetcher, give_up)
        self._wishes = wishes
        self._packages = packages
        self._random = Random()
        self._resting: dict[str, float] = {}
        self._patcher = Patcher(holding, wishes.patches) if holding is not None else None

    def wanted(self, change: Change) -> WantedRepresentation:
        """Tell what is to be brought for a change that is no deletion."""
        wishes = self._wishes
        return wanted(change, wishes.prefer, exact=wishes.exact, random=self._random)

    def at_hand(self, wanted: WantedRepresentation) -> Content | None:
        """Return content that came with the document, verified; None if it is to be brought."""
        data = inline_content(wanted)
        return None if data is None else self._fetcher.at_hand(data, wanted.entry.hash)

    async def bring(
        self, wanted: WantedRepresentation, held: ResourceState | None
    ) -> Content | Unchanged:
        """Bring content, verified.

        Args:
            wanted: What is wanted.
            held: How its resource is held so far.

        Returns:
            The content; or that the server says it is what is held.

        Raises:
            FetchError: No way gave what was announced; the error is that of its own place.
            OSError: It could not be written.
        """
        uri = wanted.entry.uri
        try:
            answer = await self._brought(wanted, held, fresh=self._freshness.refused(uri))
        except ContentMismatch:
            self._freshness.refuse(uri)
            raise
        self._freshness.accept(uri)
        return answer

    async def _brought(
        self, wanted: WantedRepresentation, held: ResourceState | None, *, fresh: bool
    ) -> Content | Unchanged:
        if (member := await self._member(wanted)) is not None:
            return member
        since = None if fresh else _condition(wanted, held)
        if since is not None:
            home = msgspec.structs.replace(wanted.entry, uri=wanted.home.uri)
            answer = await self._fetcher.changed_content(home, since)
        else:
            answer = await self._patched(wanted, held) or await self._get(wanted, fresh=fresh)
        return await self._freshness.checked(answer, wanted, held)

    async def current(self, wanted: WantedRepresentation, held: ResourceState | None) -> Content:
        """Fetch the current content of a resource from its own URI, past caches.

        Args:
            wanted: What is announced of it.
            held: How it is held so far. If it is still that, nothing else needs to be true.

        Raises:
            ContentMismatch: It is neither what is held nor what was announced.
            FetchError: It could not be had.
            OSError: It could not be written.
        """
        home = msgspec.structs.replace(wanted.entry, uri=wanted.home.uri)
        content = await self._fetcher.current_content(home)
        if held is None or agree(held.hash, content.hashes) is not True:
            try:
                check_announced(wanted.entry, content)
            except ContentMismatch:
                content.discard()
                raise
        return content

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
                document = await self._document(wanted_link(link, wanted.package))
            except FetchError as error:
                logger.info("a patch cannot be had: %s", error)
                continue
            data = await self._patcher.patched(wanted, held, link, document)
            if data is not None:
                return self._fetcher.at_hand(data, wanted.entry.hash)
        return None

    async def _document(self, wanted: WantedRepresentation) -> Content:
        data = inline_content(wanted, proved=False)
        if data is not None:
            return self._fetcher.at_hand(data, wanted.entry.hash)
        return await self._member(wanted) or await self._get(wanted)

    async def _get(self, wanted: WantedRepresentation, *, fresh: bool = False) -> Content:
        reason: FetchError | None = None
        for place in self._awake(wanted):
            entry = msgspec.structs.replace(wanted.entry, uri=place.uri)
            try:
                return await self._fetcher.content(entry, moment=place.moment, fresh=fresh)
            except FetchError as error:
                if reason is None or place == wanted.home:
                    reason = error
                if place != wanted.home:
                    self._note(place, error)
        # Without a place it travels in the document, and was found not to be what was announced.
        raise reason or ContentMismatch(wanted.entry.uri[:80], "it is not what was announced")

    def _awake(self, wanted: WantedRepresentation) -> Sequence[RepresentationSource]:
        """Return the places to try: a mirror that is away must not hold up each resource."""
        now = asyncio.get_running_loop().time()
        awake = [place for place in wanted.places if self._resting.get(_host(place), 0.0) <= now]
        return awake or wanted.places

    def _note(self, place: RepresentationSource, error: FetchError) -> None:
        logger.info("another place is tried: %s", error)
        if isinstance(error, Unavailable):
            now = asyncio.get_running_loop().time()
            self._resting = {host: end for host, end in self._resting.items() if end > now}
            self._resting[_host(place)] = now + _REST


def _condition(wanted: WantedRepresentation, held: ResourceState | None) -> str | None:
    """Return the header field that asks for content only if it is not what is held."""
    entry = wanted.entry
    if held is None or held.validator is None or not held.fetched_at:
        return None
    if entry.hash is not None or wanted.places != (wanted.home,):
        return None
    if entry.length not in (None, held.length):
        return None  # it cannot be what is held
    if entry.lastmod and held.lastmod and to_microseconds(entry.lastmod) < held.lastmod:
        # It was put back, and servers may answer 304 to any later date (RFC 9110 §13.1.3).
        return None
    if wanted.at is not None and _is_around(wanted.at, from_microseconds(held.fetched_at)):
        return None  # RFC 9110 §8.8.2.2: the validator may be that of both versions
    return held.validator


def _is_around(made: Instant, fetched: Instant) -> bool:
    over = ends(made)
    if over - made > _AROUND:
        return False  # of a whole day, the age that the answer itself had tells more
    return made <= postponed(fetched, _AROUND) and fetched <= postponed(over, _AROUND)


def _host(place: RepresentationSource) -> str:
    return place.uri.partition("://")[2].partition("/")[0]
