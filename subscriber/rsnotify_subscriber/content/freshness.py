"""Whether an answer may be older than the version that a document announced.

A cache, or a replica that lags, may answer with an earlier version. A hash shows that; without one
only the dates do: the Last-Modified of the answer, against the `lastmod` or `datetime` of the
entry. These may be of two clocks, and some servers do not know when a resource changed. So a
contradiction leads to a request past caches, and then to a few more attempts. After those the
content is accepted, and marked as doubtful.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from datetime import timedelta
from typing import TypeVar

from msgspec.structs import replace

from rsnotify.errors import ContentMismatch
from rsnotify.format.datetimes import format_datetime, to_microseconds
from rsnotify.format.model import Resource
from rsnotify.format.timestamp_precision import end_of_unit, postponed
from rsnotify.selection.representations import WantedRepresentation
from rsnotify_subscriber.fetching.contents import Content, Unchanged
from rsnotify_subscriber.fetching.digests import agree
from rsnotify_subscriber.fetching.fetcher import Fetcher
from rsnotify_subscriber.fetching.responses import check_type
from rsnotify_subscriber.storage.resource_state import ResourceState

logger = logging.getLogger("rsnotify.subscriber")

_Answer = TypeVar("_Answer", bound=Content | Unchanged)
#: The difference between dates of one modification: whole seconds, rounded up here and down there.
_ROUNDED = timedelta(seconds=2)
#: How often an answer is refused before it is accepted with a doubt.
_TRIES = 5
#: After so many requests past caches without a newer version, this Source's dates do not fit.
_VAIN = 3
#: The most resources whose failed attempts are counted.
_MOST_RESOURCES = 10_000


def contradiction_in(answer: Content | Unchanged, wanted: WantedRepresentation) -> str:
    """Return in a clause why an answer is older than a change that was announced without a hash.

    Empty if its dates do not show that. `rsnotify follow` and `rsnotify audit` both judge by it.
    """
    entry, link = wanted.entry, wanted.alternate
    announced = entry.lastmod or entry.datetime
    if answer.modified is None or announced is None or entry.hash is not None:
        return ""
    if link is not None and link.modified is None:
        return ""  # the dates are those of another representation
    # A date without a time may be of any time zone.
    slack = max(_ROUNDED, end_of_unit(announced) - announced)
    if postponed(answer.modified, slack) >= announced:
        return ""
    return (
        f"the server has a version of {format_datetime(answer.modified)}, "
        f"and one of {format_datetime(announced)} was announced"
    )


class FreshnessCheck:
    """Requests content past caches where an answer is older than announced."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self._refused: OrderedDict[str, int] = OrderedDict()
        #: Why answers were accepted with a doubt; the same answer is not refused once more.
        self._accepted: OrderedDict[str, str] = OrderedDict()
        self._vain = 0

    def refused(self, uri: str) -> bool:
        """Return whether the last answer was too old, so that the next request goes past caches."""
        return uri in self._refused or uri in self._accepted

    def refuse(self, uri: str) -> None:
        self._refused[uri] = self._refused.get(uri, 0) + 1
        if len(self._refused) > _MOST_RESOURCES:
            self._refused.popitem(last=False)

    def accept(self, uri: str) -> None:
        if self._refused:
            self._refused.pop(uri, None)

    async def checked(
        self, answer: Content | Unchanged, wanted: WantedRepresentation, held: ResourceState | None
    ) -> Content | Unchanged:
        """Return the answer, or a newer one from a request past caches if this one is too old.

        A `ContentMismatch` means that a later request may return a newer version.
        """
        reason = contradiction_in(answer, wanted)
        if not reason:
            self._accepted.pop(wanted.entry.uri, None)
            return answer
        if self._accepted.get(wanted.entry.uri) == reason:
            return self._doubted(answer, wanted)
        # A `datetime` may be the time at which the Source noticed the change.
        is_stated = wanted.entry.lastmod is not None
        if is_stated or self._vain < _VAIN or _is_held(answer, held):
            answer = await self._past_caches(answer, wanted)
            if not contradiction_in(answer, wanted):
                self._vain = 0
                return answer
        if not is_stated and not _is_held(answer, held):
            self._vain += 1
            return answer
        return self._doubted(answer, wanted)

    async def _past_caches(
        self, answer: Content | Unchanged, wanted: WantedRepresentation
    ) -> Content:
        entry: Resource = replace(wanted.entry, uri=wanted.home.uri)
        if isinstance(answer, Content):
            answer.discard()
        return await self._fetcher.content(entry, fresh=True)

    def _doubted(
        self, answer: Content | Unchanged, wanted: WantedRepresentation
    ) -> Content | Unchanged:
        """Refuse an old answer, or return it with a doubt after it was refused often enough."""
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
    """Return the current content from its server, with a doubt if a later version was announced."""
    reason = contradiction_in(content, wanted) if wanted.entry.lastmod is not None else ""
    return _with_doubt(content, reason) if reason else content


def _with_doubt(answer: _Answer, reason: str) -> _Answer:
    assert answer.modified is not None, "it is older by something"
    moment = to_microseconds(answer.modified)
    if isinstance(answer, Unchanged):
        return replace(answer, fetched_at=moment, doubt=reason)
    return replace(answer, fetched_at=moment, validator=None, doubt=reason)


def check_announced(entry: Resource, content: Content) -> None:
    """Refuse content without the announced hash, or else the announced length and type."""
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
