"""Detects content that is older than the announced change.

A cache, or a replica that lags, may serve an earlier version. A hash reveals that. Without a hash,
only dates do: the response's Last-Modified is compared with the entry's `lastmod` or `datetime`.
These may come from two clocks, and some servers do not know when a resource changed. After a
contradiction, the content is therefore requested again, bypassing caches, a few times. After that,
it is accepted with a doubt.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from datetime import timedelta
from typing import TypeVar

from msgspec.structs import replace

from rsnotify.errors import ContentMismatch
from rsnotify.format.datetimes import end_of_unit, format_datetime, postponed, to_microseconds
from rsnotify.format.hashes import agree
from rsnotify.format.model import Resource
from rsnotify.selection import WantedRepresentation
from rsnotify_subscriber.fetching.fetcher import Content, Fetcher, Unchanged
from rsnotify_subscriber.fetching.responses import check_type
from rsnotify_subscriber.storage.resource_state import ResourceState

logger = logging.getLogger("rsnotify.subscriber")

_Answer = TypeVar("_Answer", bound=Content | Unchanged)
#: Maximum difference between two dates of one modification, due to rounding to whole seconds.
_MAX_ROUNDING = timedelta(seconds=2)
#: Number of attempts before old content is accepted with a doubt.
_MAX_ATTEMPTS = 5
#: Number of useless requests that bypass caches after which the Source's dates are not trusted.
_MAX_USELESS_REQUESTS = 3
#: Maximum number of resources to remember.
_MAX_RESOURCES = 10_000


def contradiction_in(answer: Content | Unchanged, wanted: WantedRepresentation) -> str:
    """Return a clause saying that an answer is older than the announced change, or ''.

    The result is '' if there is a hash, which decides. `rsnotify follow` and `rsnotify audit` both
    use this function.
    """
    entry, link = wanted.entry, wanted.alternate
    announced = entry.lastmod or entry.datetime
    if answer.modified is None or announced is None or entry.hash is not None:
        return ""
    if link is not None and link.modified is None:
        return ""  # the dates belong to another representation
    # A date without a time may be in any time zone.
    slack = max(_MAX_ROUNDING, end_of_unit(announced) - announced)
    if postponed(answer.modified, slack) >= announced:
        return ""
    return (
        f"the server has a version of {format_datetime(answer.modified)}, "
        f"but one of {format_datetime(announced)} was announced"
    )


class FreshnessCheck:
    """Requests content again, bypassing caches, if an answer is older than the announcement."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        #: The number of refused answers, by URI.
        self._refusals: OrderedDict[str, int] = OrderedDict()
        #: The doubts with which answers were accepted, by URI. They are not refused again.
        self._doubts: OrderedDict[str, str] = OrderedDict()
        self._useless_requests = 0

    def must_bypass_caches(self, uri: str) -> bool:
        """Return whether the last answer was refused, or accepted with a doubt."""
        return uri in self._refusals or uri in self._doubts

    def record_refused(self, uri: str) -> None:
        self._refusals[uri] = self._refusals.get(uri, 0) + 1
        if len(self._refusals) > _MAX_RESOURCES:
            self._refusals.popitem(last=False)

    def record_accepted(self, uri: str) -> None:
        self._refusals.pop(uri, None)

    async def checked(
        self, answer: Content | Unchanged, wanted: WantedRepresentation, held: ResourceState | None
    ) -> Content | Unchanged:
        """Return the answer or, if it is too old, that of a request that bypasses caches.

        Raises:
            ContentMismatch: Both answers are too old. A later one may not be.
        """
        reason = contradiction_in(answer, wanted)
        if not reason:
            self._doubts.pop(wanted.entry.uri, None)
            return answer
        if self._doubts.get(wanted.entry.uri) == reason:
            return self._doubted(answer, wanted)
        # Without `lastmod`, the `datetime` may be the time when the Source detected the change.
        has_lastmod = wanted.entry.lastmod is not None
        may_be_stale = has_lastmod or self._useless_requests < _MAX_USELESS_REQUESTS
        if may_be_stale or _is_held(answer, held):
            if isinstance(answer, Content):
                answer.discard()
            home = replace(wanted.entry, uri=wanted.home.uri)
            answer = await self._fetcher.content(home, fresh=True)
            if not contradiction_in(answer, wanted):
                self._useless_requests = 0
                return answer
        if not has_lastmod and not _is_held(answer, held):
            self._useless_requests += 1
            return answer
        return self._doubted(answer, wanted)

    def _doubted(
        self, answer: Content | Unchanged, wanted: WantedRepresentation
    ) -> Content | Unchanged:
        """Refuse an old answer or, after enough attempts, return it with a doubt."""
        uri = wanted.entry.uri
        reason = contradiction_in(answer, wanted)
        if self._doubts.get(uri) != reason:
            attempts = self._refusals.get(uri, 0) + 1
            if attempts < _MAX_ATTEMPTS and self._useless_requests < _MAX_USELESS_REQUESTS:
                if isinstance(answer, Content):
                    answer.discard()
                raise ContentMismatch(uri, reason)
            self._useless_requests += 1
            logger.warning("%s may be out of date: %s", uri, reason)
            self._doubts[uri] = reason
            if len(self._doubts) > _MAX_RESOURCES:
                self._doubts.popitem(last=False)
        return _with_doubt(answer, reason)


def with_doubt_if_old(content: Content, wanted: WantedRepresentation) -> Content:
    """Return content, with a doubt if a later version was announced."""
    reason = contradiction_in(content, wanted) if wanted.entry.lastmod is not None else ""
    return _with_doubt(content, reason) if reason else content


def _with_doubt(answer: _Answer, reason: str) -> _Answer:
    assert answer.modified is not None, "its date contradicts the announcement"
    moment = to_microseconds(answer.modified)
    if isinstance(answer, Unchanged):
        return replace(answer, fetched_at=moment, doubt=reason)
    return replace(answer, fetched_at=moment, validator=None, doubt=reason)


def check_announced(entry: Resource, content: Content) -> None:
    """Raise `ContentMismatch` if content differs from its entry.

    Compares the hashes or, if they are not comparable, the lengths. Without a hash, compares the
    media types, too.
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
