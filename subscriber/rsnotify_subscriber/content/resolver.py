"""Returns the content of changes, from the cheapest source that has it as announced (core §14).

Sources are tried in order of cost: content inside the document, a member of a package that is
already open, a patch of the content in the copy (`Patcher`), and then a GET of a mirror or of the
resource itself.

A cache, or a replica that lags, may answer with an earlier version (`FreshnessCheck`). A hash shows
that. Without a hash, only dates do: the response's Last-Modified compared with the entry's
`lastmod` or `datetime`. These may come from two clocks, and some servers do not know when a
resource changed. A contradiction therefore leads to a request that bypasses caches, and then to a
few more attempts. After those, the content is accepted and marked as doubtful.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import b64decode
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import TypeVar
from urllib.parse import unquote_to_bytes

from msgspec.structs import replace

from rsnotify.errors import ContentMismatch, FetchError, Unavailable
from rsnotify.format.coverage import Change
from rsnotify.format.datetimes import (
    Instant,
    end_of_unit,
    format_datetime,
    from_microseconds,
    postponed,
    to_microseconds,
)
from rsnotify.format.hashes import agree, parse_hashes, verified_hashes, verifies
from rsnotify.format.model import Link, Resource
from rsnotify.selection import (
    RepresentationSource,
    WantedRepresentation,
    wanted_link_target,
    wanted_representation,
)
from rsnotify_subscriber.content.packages import DumpPackages
from rsnotify_subscriber.content.patch_functions import Patch, PatchFunctions
from rsnotify_subscriber.fetching.fetcher import Content, Fetcher, Unchanged
from rsnotify_subscriber.fetching.responses import check_type
from rsnotify_subscriber.handlers import ReadableHandler
from rsnotify_subscriber.storage.resource_state import ResourceState

logger = logging.getLogger("rsnotify.subscriber")

_Answer = TypeVar("_Answer", bound=Content | Unchanged)
#: Maximum difference between two dates of one modification: both are in whole seconds, and one may
#: be rounded up and the other down.
_ROUNDED = timedelta(seconds=2)
#: Number of attempts before an old answer is accepted with a doubt.
_TRIES = 5
#: Number of unsuccessful requests bypassing caches after which the Source's dates are considered
#: inconsistent.
_VAIN = 3
#: Maximum number of resources for which failed attempts are counted.
_MOST_RESOURCES = 10_000


def contradiction_in(answer: Content | Unchanged, wanted: WantedRepresentation) -> str:
    """Return, in a clause, why an answer is older than a change announced without a hash.

    Empty if the dates do not show that. `rsnotify follow` and `rsnotify audit` both use this
    function.
    """
    entry, link = wanted.entry, wanted.alternate
    announced = entry.lastmod or entry.datetime
    if answer.modified is None or announced is None or entry.hash is not None:
        return ""
    if link is not None and link.modified is None:
        return ""  # the dates belong to another representation
    # A date without a time may be in any time zone.
    slack = max(_ROUNDED, end_of_unit(announced) - announced)
    if postponed(answer.modified, slack) >= announced:
        return ""
    return (
        f"the server has a version of {format_datetime(answer.modified)}, "
        f"and one of {format_datetime(announced)} was announced"
    )


class FreshnessCheck:
    """Requests content again, bypassing caches, if an answer is older than announced."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self._refused: OrderedDict[str, int] = OrderedDict()
        #: Why answers were accepted with a doubt, by URI. The same answer is not refused again.
        self._accepted: OrderedDict[str, str] = OrderedDict()
        self._vain = 0

    def refused(self, uri: str) -> bool:
        """Return whether the last answer was too old, and the next request has to bypass caches."""
        return uri in self._refused or uri in self._accepted

    def refuse(self, uri: str) -> None:
        self._refused[uri] = self._refused.get(uri, 0) + 1
        if len(self._refused) > _MOST_RESOURCES:
            self._refused.popitem(last=False)

    def accept(self, uri: str) -> None:
        self._refused.pop(uri, None)

    async def checked(
        self, answer: Content | Unchanged, wanted: WantedRepresentation, held: ResourceState | None
    ) -> Content | Unchanged:
        """Return the answer, or if it is too old, a newer one from a request that bypasses caches.

        Raises:
            ContentMismatch: The answers are too old. A later request may return a newer version.
        """
        reason = contradiction_in(answer, wanted)
        if not reason:
            self._accepted.pop(wanted.entry.uri, None)
            return answer
        if self._accepted.get(wanted.entry.uri) == reason:
            return self._doubted(answer, wanted)
        # A `datetime` may be the time when the Source noticed the change.
        is_stated = wanted.entry.lastmod is not None
        if is_stated or self._vain < _VAIN or _is_held(answer, held):
            if isinstance(answer, Content):
                answer.discard()
            home = replace(wanted.entry, uri=wanted.home.uri)
            answer = await self._fetcher.content(home, fresh=True)
            if not contradiction_in(answer, wanted):
                self._vain = 0
                return answer
        if not is_stated and not _is_held(answer, held):
            self._vain += 1
            return answer
        return self._doubted(answer, wanted)

    def _doubted(
        self, answer: Content | Unchanged, wanted: WantedRepresentation
    ) -> Content | Unchanged:
        """Refuse an old answer; after enough attempts, return it with a doubt."""
        uri = wanted.entry.uri
        reason = contradiction_in(answer, wanted)
        if self._accepted.get(uri) != reason:
            if self._refused.get(uri, 0) + 1 < _TRIES and self._vain < _VAIN:
                if isinstance(answer, Content):
                    answer.discard()
                raise ContentMismatch(uri, reason)
            self._vain += 1
            logger.warning("%s may be out of date: %s", uri, reason)
            self._accepted[uri] = reason
            if len(self._accepted) > _MOST_RESOURCES:
                self._accepted.popitem(last=False)
        return _with_doubt(answer, reason)


def with_doubt_if_old(content: Content, wanted: WantedRepresentation) -> Content:
    """Return content from its own server, with a doubt if a later version was announced."""
    reason = contradiction_in(content, wanted) if wanted.entry.lastmod is not None else ""
    return _with_doubt(content, reason) if reason else content


def _with_doubt(answer: _Answer, reason: str) -> _Answer:
    assert answer.modified is not None, "it is older by something"
    moment = to_microseconds(answer.modified)
    if isinstance(answer, Unchanged):
        return replace(answer, fetched_at=moment, doubt=reason)
    return replace(answer, fetched_at=moment, validator=None, doubt=reason)


def check_announced(entry: Resource, content: Content) -> None:
    """Raise `ContentMismatch` if content differs from its entry.

    The hash is checked or, if it cannot be compared, the length. Without a hash, the type is
    checked as well.
    """
    same = agree(entry.hash, content.hashes)
    wrong = same is False or (same is None and entry.length not in (None, content.length))
    if wrong:
        raise ContentMismatch(
            entry.uri,
            f"the content has {content.length} bytes and hash {content.hashes}, "
            f"not {entry.length} and {entry.hash} as announced",
        )
    check_type(entry, content.type)


def _is_held(answer: Content | Unchanged, held: ResourceState | None) -> bool:
    if isinstance(answer, Unchanged):
        return True
    return held is not None and agree(answer.hashes, held.hash) is True


#: Maximum number of bytes of content before and after a patch, since all of it is kept in memory.
_MOST_BYTES = 16 << 20


class Patcher:
    """Applies patches, one at a time.

    A link does not name the version that it patches (core §14.4). That is the previous version,
    which is not always the one in the copy. The content in the copy is therefore verified against
    its hash in the state, and the result against the announced hash.
    """

    def __init__(self, holding: ReadableHandler, patches: Mapping[str, Patch]) -> None:
        self._holding = holding
        self._functions = PatchFunctions(patches)
        self._lock = asyncio.Lock()

    def usable(self, wanted: WantedRepresentation, held: ResourceState | None) -> Iterator[Link]:
        """Yield the patches that may be worth fetching."""
        entry = wanted.entry
        if held is None or not held.exists or held.hash is None or not parse_hashes(entry.hash):
            return
        if max(held.length or 0, entry.length or 0) > _MOST_BYTES:
            return
        for link in wanted.patches:
            most = _MOST_BYTES if entry.length is None else min(_MOST_BYTES, entry.length)
            if (link.length or 0) <= most and self._functions.offers(_media_type(link)):
                yield link

    async def patched(
        self, wanted: WantedRepresentation, held: ResourceState, link: Link, document: Content
    ) -> bytes | None:
        """Return the verified, patched content; None if the patch does not produce it.

        The downloaded patch, `document`, is discarded afterwards.
        """
        path = self._holding.held_content(wanted.entry.uri)
        async with self._lock:
            return await asyncio.to_thread(self._patched, wanted, held, link, path, document)

    def _patched(
        self,
        wanted: WantedRepresentation,
        held: ResourceState,
        link: Link,
        path: Path | None,
        document: Content,
    ) -> bytes | None:
        entry = wanted.entry
        try:
            before = _read(path, held)
            if before is None or document.length > _MOST_BYTES:
                return None
            function = self._functions.load(_media_type(link))
            if function is None:
                return None
            after = function(before, document.read())
        except Exception as error:
            # The function may be user code, and the patch is untrusted. After any exception, the
            # whole resource is fetched.
            logger.info("%s is fetched, as its patch cannot be applied: %s", entry.uri, error)
            return None
        finally:
            document.discard()
        if not verifies(after, entry.hash, entry.length):
            logger.info("%s is fetched, as its patch produces other content", entry.uri)
            return None
        return after


def _media_type(link: Link) -> str:
    return (link.type or "").partition(";")[0].strip().lower()


def _read(path: Path | None, held: ResourceState) -> bytes | None:
    """Return the content in the copy; None if it no longer has the hash in the state."""
    if path is None or path.stat().st_size != held.length:
        return None
    content = path.read_bytes()
    return content if verifies(content, held.hash) else None


async def _chunks(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while chunk := await asyncio.to_thread(file.read, _MOST_CHUNK):
            yield chunk


#: Number of bytes of a file to read at once.
_MOST_CHUNK = 1_000_000
#: Seconds for which a host receives no requests after it did not answer.
_PAUSE = 60.0
#: A validator received within this time before or after a change may belong to both versions.
_AROUND = timedelta(seconds=2)


class ContentResolver:
    """Returns the content of changes.

    Args:
        prefer: The preferred media types, best first (core §14.3).
        exact: Whether to fetch the version that the change describes rather than the current one,
            where the Source has both (core §14.6).
        patches: Functions that apply patches, by media type. They take precedence over the
            installed ones.
        packages: The open packages of dumps, if dumps are used.
        holding: The handler, if it can return the content in the copy.
        adopt: Whether to use content that `holding` already has for a new resource, if its hash is
            right.
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
        """Return the verified inline content; None if the content has to be fetched."""
        found = _inline_content(wanted)
        return None if found is None else self._fetcher.store(*found)

    async def members(self, wanted: Sequence[WantedRepresentation]) -> list[Content | None]:
        """Return the verified contents of small package members, and None for all others."""
        if self._packages is None:
            return [None] * len(wanted)
        return await self._packages.small_members([(each.package, each.entry) for each in wanted])

    async def resolve(
        self, wanted: WantedRepresentation, held: ResourceState | None
    ) -> Content | Unchanged:
        """Return verified content from a package, a patch or a server.

        Returns:
            The content, or the server's answer that the content in the copy is current.

        Raises:
            FetchError: No source had the announced content. The error is from the resource's own
                URI.
            OSError: The content could not be written.
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
            ContentMismatch: The content is neither the copy's nor the announced one.
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

    async def _adopted(self, wanted: WantedRepresentation) -> Content | None:
        """Return content that existed before the first run, if it is the announced content."""
        entry, holding = wanted.entry, self._adopted_from
        path = holding.held_content(entry.uri) if holding and parse_hashes(entry.hash) else None
        if path is None:
            return None
        try:
            return await self._fetcher.collect(entry, _chunks(path), verify=True)
        except (OSError, ContentMismatch) as error:
            logger.info("%s is fetched, as the file in its place differs: %s", entry.uri, error)
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
        # Without a URI, the content is inline, and was found to differ from the announcement.
        raise reason or ContentMismatch(wanted.entry.uri[:80], "it is not what was announced")

    def _answering(self, wanted: WantedRepresentation) -> Sequence[RepresentationSource]:
        """Return the sources to try. A mirror that is down must not delay each resource."""
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
    """Return the validator for a conditional request; None if it has to be unconditional."""
    entry = wanted.entry
    if held is None or held.validator is None or not held.fetched_at:
        return None
    if entry.hash is not None or wanted.sources != (wanted.home,):
        return None
    if entry.length not in (None, held.length):
        return None  # it cannot be the content in the copy
    if entry.lastmod and held.lastmod and to_microseconds(entry.lastmod) < held.lastmod:
        # The date went back, and a server may answer 304 to any later date (RFC 9110 §13.1.3).
        return None
    if wanted.at is not None and _is_around(wanted.at, from_microseconds(held.fetched_at)):
        return None  # RFC 9110 §8.8.2.2: the validator may belong to both versions
    return held.validator


def _is_around(made: Instant, fetched: Instant) -> bool:
    over = end_of_unit(made)
    if over - made > _AROUND:
        return False  # for a date without a time, the dates in the answer itself show more
    return made <= postponed(fetched, _AROUND) and fetched <= postponed(over, _AROUND)


def _host(place: RepresentationSource) -> str:
    return place.uri.partition("://")[2].partition("/")[0]


def _inline_content(
    wanted: WantedRepresentation, *, needs_hash: bool = True
) -> tuple[bytes, str] | None:
    """Return the inline content and its hashes, if its hash and length are as announced.

    None if the entry has no hash, or if the content has a different one. The content is then
    fetched from its own URI. The hash is required because it enables a list of the Source to
    confirm or contradict content that came through a hub. A patch may lack a hash, because its
    result has one.
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
