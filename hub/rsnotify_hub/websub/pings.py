"""WebSub pings (`hub.mode=publish`): the hub fetches the topic itself.

Theory of operation. The hub runs at most one fetch per topic at a time. Pings that arrive during a
fetch share the next one, which starts after all of these pings and therefore sees the changes that
they announce. An open topic, which anybody may ping, is fetched at most once per
`websub.ping_seconds`.

The hub appends only the part of a Change List that the topic's log does not have (`new_part`).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from urllib.parse import urldefrag, urlsplit
from weakref import WeakValueDictionary

import aiohttp
from msgspec import Struct
from yarl import URL

from rsnotify.errors import DocumentError, InvalidDocument, Unavailable
from rsnotify.format.datetimes import Instant, just_before
from rsnotify.format.model import Document, Resource
from rsnotify.format.reader import DocumentLimits, read_document
from rsnotify.format.writer import write_document
from rsnotify.runtime.reasons import reason_of
from rsnotify.runtime.tasks import cancel, retrieve_exception
from rsnotify_hub.config.configuration import IntakeConfig, WebSubConfig
from rsnotify_hub.fragments import (
    MERGED_CONTENT_TYPE,
    Fragment,
    fragment_from,
    notification_capability,
    read_fragment,
    read_stored,
    up_links,
)
from rsnotify_hub.intake import is_sitemap, is_xml, whole_content
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.store.interface import LogEntry
from rsnotify_hub.topic_log import TopicLogs
from rsnotify_hub.urls import check_url, host_of
from rsnotify_hub.websub.callback_requests import exact_url

#: Maximum number of concurrent fetches, in total and per host. Each one may use much memory.
_MAX_FETCHES, _MAX_FETCHES_PER_HOST = 16, 4
#: Maximum number of topics that are being fetched or waiting to be fetched.
_MAX_TOPICS = 1000
#: Maximum number of topics whose fetched version the hub remembers.
_MAX_VERSIONS = 10_000

#: Maximum number of redirects to follow.
MAX_REDIRECTS = 3

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
#: Maximum length of an `ETag` or `Last-Modified` to send back.
_MAX_VALIDATOR_SIZE = 200
_SUCCESS, _NOT_MODIFIED = 200, 304

#: The URI, kind and hash of a change, which distinguish it from others of the same instant.
ChangeKey = tuple[str, str | None, str | None]


@dataclass(eq=False, repr=False)
class TopicFetcher:
    """Fetches topics, and appends new content to their logs.

    `is_open` returns whether anybody may ping a topic.
    """

    topics: TopicLogs
    client: aiohttp.ClientSession
    websub: WebSubConfig
    intake: IntakeConfig
    is_open: Callable[[str], bool]
    clock: Callable[[], Instant]

    def __post_init__(self) -> None:
        most = self.websub.max_channel_bytes
        self._topic_client = TopicClient(
            self.client, max_bytes=most, seconds=self.websub.callback_seconds
        )
        self._limits = DocumentLimits(document_bytes=most, links=self.intake.max_links)
        self._capacity = asyncio.Semaphore(_MAX_FETCHES)
        self._hosts: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._working: dict[str, asyncio.Task[None]] = {}
        self._versions: dict[str, tuple[int, Mapping[str, str]]] = {}

    async def fetch(self, topic: str) -> None:
        """GET a topic, append new content to its log, and return when that is durable.

        Raises:
            Refusal: Too many topics are being fetched, or there are too many open topics.
            Unavailable: The topic's server did not answer with content that the hub can distribute.
        """
        if topic not in self._working:
            self._check_capacity(topic)
        if topic not in self._waiting:
            waiting = self._waiting[topic] = asyncio.get_running_loop().create_future()
            waiting.add_done_callback(retrieve_exception)  # the client may have disconnected
        if topic not in self._working:
            self._working[topic] = asyncio.create_task(self._work(topic))
        await asyncio.shield(self._waiting[topic])

    def _check_capacity(self, topic: str) -> None:
        if len(self._working) >= _MAX_TOPICS:
            raise Refusal(Code.UNAVAILABLE, "too many topics are being fetched; try again later")
        new = self.is_open(topic) and self.topics.state(topic) is None
        if new and len(self.topics.states()) >= self.websub.max_open_topics:
            raise Refusal(Code.UNAVAILABLE, "this hub has too many open topics")

    async def _work(self, topic: str) -> None:
        try:
            while (future := self._waiting.pop(topic, None)) is not None:
                await self._settle(topic, future)
                if self.is_open(topic):
                    await asyncio.sleep(self.websub.ping_seconds)
        finally:
            del self._working[topic]

    async def _settle(self, topic: str, future: asyncio.Future[None]) -> None:
        host = self._hosts.setdefault(host_of(topic), asyncio.Semaphore(_MAX_FETCHES_PER_HOST))
        try:
            # Acquire the host first: waiting for a slow host must not use up the shared capacity.
            async with host, self._capacity:
                await self._fetch(topic)
        except asyncio.CancelledError:
            future.cancel()
            raise
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(None)

    async def _fetch(self, topic: str) -> None:
        fetched = await self._topic_client.fetch(topic, self._version(topic))
        if fetched is None:
            return
        received = self.clock()
        through, last = await self._end_of_log(topic)
        try:
            fragment = await asyncio.to_thread(
                news_of,
                fetched,
                self._limits,
                through=through,
                last=last,
                received=received,
                max_bytes=self.intake.max_fragment_bytes,
            )
            if fragment is not None:
                await self.topics.publish(topic, fragment)
        except DocumentError as error:
            raise Unavailable(topic, error.reason) from None
        self._remember(topic, fetched)

    def _version(self, topic: str) -> Mapping[str, str]:
        """Return the headers for a conditional GET, or none if the log has changed since."""
        position, conditions = self._versions.get(topic, (0, {}))
        return conditions if position == self.topics.position(topic) else {}

    def _remember(self, topic: str, fetched: Fetched) -> None:
        self._versions.pop(topic, None)
        self._versions[topic] = self.topics.position(topic), fetched.conditions
        if len(self._versions) > _MAX_VERSIONS:
            del self._versions[next(iter(self._versions))]

    async def _end_of_log(self, topic: str) -> tuple[Instant | None, list[LogEntry]]:
        """Return the instant at which the log ends, and the entries that end there."""
        state = self.topics.state(topic)
        if state is None or state.whole:
            return None, []
        before = just_before(state.through)
        return state.through, await self.topics.read(topic, after=0, since=before)

    async def close(self) -> None:
        """Cancel all fetches. Pending pings get no answer."""
        for future in self._waiting.values():
            future.cancel()
        await cancel(self._working.values())


class Fetched(Struct, frozen=True):
    """The content of a topic. The content type may be empty.

    `conditions` are the headers of a conditional request for any other version.
    """

    body: bytes
    content_type: str
    conditions: Mapping[str, str]


class TopicClient:
    """Fetches topics. The timeout includes redirects."""

    def __init__(self, client: aiohttp.ClientSession, *, max_bytes: int, seconds: float) -> None:
        self._client = client
        self._max_bytes = max_bytes
        self._seconds = seconds

    async def fetch(self, topic: str, conditions: Mapping[str, str]) -> Fetched | None:
        """Fetch a topic. Return None if it has not changed according to the conditions.

        Raises:
            Unavailable: The topic could not be fetched, or its content is unusable.
        """
        try:
            async with asyncio.timeout(self._seconds):
                return await self._follow(topic, conditions)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise Unavailable(topic, reason_of(error)) from None

    async def _follow(self, topic: str, conditions: Mapping[str, str]) -> Fetched | None:
        url = topic
        for _ in range(MAX_REDIRECTS + 1):
            async with self._client.get(
                exact_url(url), allow_redirects=False, headers=conditions
            ) as response:
                if response.status not in _REDIRECTS:
                    return await self._read(topic, response)
                url = _redirect_target(topic, url, response.headers.get("Location", ""))
        raise Unavailable(topic, f"it redirects more than {MAX_REDIRECTS} times")

    async def _read(self, topic: str, response: aiohttp.ClientResponse) -> Fetched | None:
        if response.status == _NOT_MODIFIED:
            return None
        if response.status != _SUCCESS:
            raise Unavailable(topic, f"it answers {response.status}")
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise Unavailable(topic, "it answers with a Content-Encoding")
        chunks, size = [], 0
        async for chunk in response.content.iter_any():
            chunks.append(chunk)
            size += len(chunk)
            if size > self._max_bytes:
                raise Unavailable(topic, f"its content is too large: over {self._max_bytes} bytes")
        return Fetched(
            body=b"".join(chunks),
            content_type=response.headers.get("Content-Type", ""),
            conditions=_conditions(response.headers),
        )


def _conditions(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a conditional request for another version (RFC 9110 §13.1)."""
    values = {
        "If-None-Match": headers.get("ETag", ""),
        "If-Modified-Since": headers.get("Last-Modified", ""),
    }
    return {name: value for name, value in values.items() if 0 < len(value) <= _MAX_VALIDATOR_SIZE}


def _redirect_target(topic: str, url: str, location: str) -> str:
    """Return the target of a redirect. Raise `Unavailable` if it must not be followed."""
    target = urldefrag(str(exact_url(url).join(URL(location, encoded=True)))).url
    try:
        check_url(target, "the Location")
    except Refusal:
        raise Unavailable(topic, "it redirects to an unusable URL") from None
    if urlsplit(url).scheme == "https" and urlsplit(target).scheme != "https":
        raise Unavailable(topic, "it redirects from https to http")
    return target


def news_of(
    fetched: Fetched,
    limits: DocumentLimits,
    *,
    through: Instant | None,
    last: Sequence[LogEntry],
    received: Instant,
    max_bytes: int,
) -> Fragment | None:
    """Return the fragment to append to the log; None if a Change List has nothing new.

    `last` contains the entries that end at `through`, the end of the log.
    """
    body, content_type = fetched.body, fetched.content_type
    if not content_type:  # guess it, as RFC 9110 §8.3 allows
        is_document = body.startswith(b"<?xml")
        content_type = MERGED_CONTENT_TYPE if is_document else "application/octet-stream"
    if not (is_xml(content_type) and is_sitemap(body)):
        if len(body) > max_bytes:
            raise InvalidDocument(f"it is larger than {max_bytes} bytes")
        return whole_content(body, content_type, received)
    document = read_document(body, limits=limits)
    known: set[ChangeKey] = set()
    if through is not None:
        for entry in last:
            known |= keys_at(read_stored(entry.fragment.body).resources, through)
    news = new_part(document, through=through, known=known)
    if news is None:
        return None
    if news is not document:
        body, content_type = write_document(news), MERGED_CONTENT_TYPE
    if len(body) > max_bytes:
        fragment_from(news, body, content_type)  # refuses what would corrupt a copy
        body, content_type = write_document(gap_heartbeat(news)), MERGED_CONTENT_TYPE
    return read_fragment(body, content_type=content_type, limits=limits)


def keys_at(resources: Iterable[Resource], instant: Instant) -> set[ChangeKey]:
    return {_key(entry) for entry in resources if entry.changed_at == instant}


def _key(entry: Resource) -> ChangeKey:
    return entry.uri, entry.change, entry.hash


def new_part(
    document: Document, *, through: Instant | None, known: Set[ChangeKey]
) -> Document | None:
    """Return the part of a Change List that the log does not have.

    `through` is the end of the log, and `known` contains the log's changes at that instant. A
    Source whose datetimes have whole seconds may add another change in the same second.

    Returns:
        A Change Notification that begins at the last change before the new ones; the document
        itself if the new part cannot be determined; None if nothing is new.
    """
    dates = [entry.changed_at for entry in document.resources]
    ordered = [at for at in dates if at is not None]
    if through is None:
        return document if document.resources else None
    if len(ordered) < len(dates) or ordered != sorted(ordered):
        return document
    begins = document.from_ or (ordered[0] if ordered else None)
    if begins is not None and begins > through:
        return document
    late = keys_at(document.resources, through) - known
    cut = bisect_left(ordered, through) if late else bisect_right(ordered, through)
    if cut == len(ordered):
        return None
    news = document.resources[cut:]
    if late and ordered[-1] == through:
        # Begin where the log ends, so that Destinations that are up to date need no older changes.
        missing = tuple(entry for entry in news if _key(entry) in late)
        return _tail(document, missing, through, through)
    before = ordered[cut - 1] if cut else document.from_
    return document if before is None else _tail(document, news, before, ordered[-1])


def _tail(
    document: Document, news: tuple[Resource, ...], from_: Instant, last: Instant
) -> Document:
    return Document(
        capability=notification_capability(document),
        resources=news,
        from_=from_,
        until=document.until or last,
        links=up_links(document),
    )


def gap_heartbeat(document: Document) -> Document:
    """Return a heartbeat to push in place of a document that is too large.

    Its `from` is the instant of the last change, so every Destination detects a gap and reads the
    Change List.
    """
    last = document.resources[-1].changed_at
    if last is None:
        raise InvalidDocument("it is too large, and its last change has no datetime")
    return Document(
        capability=notification_capability(document),
        from_=last,
        until=last,
        links=up_links(document),
    )
