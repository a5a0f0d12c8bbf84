"""`GET /topics`: the topics, most recently changed first, or with `topic`, a page of its changes.

Theory of operation. A page of changes covers (since, until]. It begins at the requested instant,
and ends at the first gap in the log, at the end of the log, or when the page is full. Fragments may
overlap or be out of order, so their entries are sorted, and each change is on the page only once.
The next page begins where this one ends. A page at the end of the log covers nothing: it has no
`until` and no next page, and the client polls it. If there is a gap at the requested instant, the
error names the end of the gap, and the client gets the missing changes from the Source.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from heapq import merge
from typing import Any
from urllib.parse import urlencode

import msgspec
from aiohttp import web
from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import RsnotifyError
from rsnotify.format.coverage import Change, change_key, fragment_coverage
from rsnotify.format.datetimes import Instant, format_datetime, parse_datetime
from rsnotify.format.model import Capability, Document, Link, Rel, Resource
from rsnotify.format.writer import write_document
from rsnotify.runtime.transport_extensions import ChannelPlace
from rsnotify_hub.fragments import Fragment, read_stored, up_links
from rsnotify_hub.refusals import Code, Refusal, parse_since
from rsnotify_hub.store.interface import LogState
from rsnotify_hub.topic_log import TopicLogs

#: Maximum number of pages built at the same time, because each takes memory and CPU time.
_MAX_CONCURRENT_PAGES = 2
#: Default and maximum number of changes on a page, and of topics on a page of the list.
DEFAULT_CHANGES, MAX_CHANGES = 1_000, 10_000
DEFAULT_TOPICS, MAX_TOPICS = 100, 1_000

_HEADERS = {"Cache-Control": "no-cache"}


class ChangeMemoryQuery(Struct, frozen=True):
    """A request for at most `limit` changes of a topic, after an instant or from the beginning."""

    topic: str
    since: Instant | None
    limit: int


@dataclass(eq=False, repr=False)
class HubChangeMemory:
    """The handler of `GET /topics`, at `url`.

    `brokers` contains the brokers to which the hub publishes, by transport.
    """

    topics: TopicLogs
    url: str
    brokers: Mapping[str, ChannelPlace | None]

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT_PAGES)

    async def handle(self, request: web.Request) -> web.Response:
        if "topic" not in request.query:
            return await self._list(request)
        question = _read_query(request.query)
        state = self.topics.state(question.topic)
        if state is None:
            raise web.HTTPNotFound(text="this hub has no log of that topic\n")
        if state.whole:
            raise web.HTTPNotFound(text="that topic is not about changes; GET the topic itself\n")
        tag = _tag(state, question)
        headers = {**_HEADERS, "ETag": f'"{tag}"'}
        if any(each.value in (tag, "*") for each in request.if_none_match or ()):
            return web.Response(status=304, headers=headers)
        body = await self._page(question, state)
        return web.Response(body=body, content_type="application/xml", headers=headers)

    async def _list(self, request: web.Request) -> web.Response:
        limit = _read_limit(request.query, default=DEFAULT_TOPICS, maximum=MAX_TOPICS)
        begins = read_cursor(request.query.get("after"))
        found = await self.topics.store.newest(after=begins, limit=limit + 1)
        page = found[:limit]
        after = cursor_after(page[-1]) if len(found) > limit else None
        answer = {
            "topics": [self._row(state) for state in page],
            "next": None if after is None else self._link(after=after, limit=limit),
        }
        body = msgspec.json.encode(answer)
        return web.Response(body=body, content_type="application/json", headers=_HEADERS)

    def _row(self, state: LogState) -> dict[str, Any]:
        return {
            "topic": state.topic,
            "begins": format_datetime(state.begins),
            "through": format_datetime(state.through),
            "received": format_datetime(state.received),
            "kept": state.kept,
            "size": state.size,
            "whole": state.whole,
            "changes": None if state.whole else self._link(topic=state.topic),
            **{
                name: None if place is None else place.url_for(state.topic)
                for name, place in self.brokers.items()
            },
        }

    async def _page(self, question: ChangeMemoryQuery, state: LogState) -> bytes:
        async with self._slots:
            entries = await self.topics.store.changes(question.topic, since=question.since)
            if not entries:
                return await self._end(question, state)
            fragments = [entry.fragment for entry in entries]
            try:
                page = await asyncio.to_thread(
                    make_page, fragments, since=question.since, limit=question.limit
                )
            except UnknownChanges as error:
                raise self._gone(question, error) from None
            return await asyncio.to_thread(write_document, self._document(page, question))

    async def _end(self, question: ChangeMemoryQuery, state: LogState) -> bytes:
        """Write the page at the end of the log. It is empty until something changes."""
        since = question.since
        if since is None or (not state.kept and since < state.through):
            raise self._gone(question, UnknownChanges(since, state.through))
        last = await self.topics.read(question.topic, after=state.position - 1)
        up = up_links(await asyncio.to_thread(read_stored, last[-1].fragment.body)) if last else ()
        return write_document(self._document(ChangeMemoryPage(since, since, (), up), question))

    def _gone(self, question: ChangeMemoryQuery, error: UnknownChanges) -> web.HTTPGone:
        text = str(error)
        if error.begins is not None:
            text += f" {format_datetime(error.begins)}: {self._changes(question, error.begins)}"
        return web.HTTPGone(text=text + "\n")

    def _document(self, page: ChangeMemoryPage, question: ChangeMemoryQuery) -> Document:
        more = page.until > page.since
        following = Link(Rel.NEXT, self._changes(question, page.until))
        return Document(
            Capability.CHANGE_LIST,
            page.entries,
            from_=page.since,
            until=page.until if more else None,
            links=page.up + ((following,) if more else ()),
        )

    def _changes(self, question: ChangeMemoryQuery, since: Instant) -> str:
        limit = {} if question.limit == DEFAULT_CHANGES else {"limit": question.limit}
        return self._link(topic=question.topic, since=format_datetime(since), **limit)

    def _link(self, **query: str | int) -> str:
        return f"{self.url}?{urlencode(query, safe=':')}"


def _tag(state: LogState, question: ChangeMemoryQuery) -> str:
    """Return the entity tag of an answer, without reading the log."""
    log = (state.first, state.position, state.through, state.received)
    return blake2b(repr((log, question)).encode(), digest_size=12).hexdigest()


def _read_query(query: Mapping[str, str]) -> ChangeMemoryQuery:
    since = query.get("since")
    if since is not None and "T" in since:
        # An unescaped + in a time zone arrives as a space.
        since = since.replace(" ", "+")
    return ChangeMemoryQuery(
        topic=query["topic"],
        since=parse_since(since),
        limit=_read_limit(query, default=DEFAULT_CHANGES, maximum=MAX_CHANGES),
    )


def _read_limit(query: Mapping[str, str], *, default: int, maximum: int) -> int:
    limit = query.get("limit", str(default))
    if not re.fullmatch(r"0*[1-9]\d{0,17}", limit, re.ASCII):
        raise Refusal(Code.BAD_REQUEST, "limit: it must be a positive whole number")
    return min(int(limit), maximum)


def read_cursor(after: str | None) -> tuple[Instant, str] | None:
    """Parse the cursor of a page: the `received` and topic of the last row before it."""
    if after is None:
        return None
    received, _, topic = after.partition(" ")
    try:
        return parse_datetime(received), topic
    except ValueError:
        raise Refusal(Code.BAD_REQUEST, "after: use the URL in a page's `next`") from None


def cursor_after(state: LogState) -> str:
    return f"{format_datetime(state.received)} {state.topic}"


class UnknownChanges(RsnotifyError):
    """The log does not have all changes since an instant. It continues at `begins`, if at all."""

    def __init__(self, since: Instant | None, begins: Instant | None) -> None:
        self.since = since
        self.begins = begins
        super().__init__(since, begins)

    def __str__(self) -> str:
        missing = "the log is empty"
        if self.begins is not None and self.since is not None:
            missing = (
                f"the log does not have the changes between {format_datetime(self.since)} and "
                f"{format_datetime(self.begins)}"
            )
        return f"{missing}; get them from the Source, then request the changes since"


class ChangeMemoryPage(Struct, frozen=True):
    """The changes after `since`, in order. `until` equals `since` at the end of the log."""

    since: Instant
    until: Instant
    entries: tuple[Resource, ...]
    up: tuple[Link, ...]


def make_page(
    fragments: Sequence[Fragment], *, since: Instant | None, limit: int
) -> ChangeMemoryPage:
    """Return the page of changes since an instant, or since the start of the log.

    The fragments are those from `LogStore.changes`, at least one. The page has more entries than
    `limit` only if all of them have the same instant.

    Raises:
        UnknownChanges: There is a gap in the log at the instant.
    """
    ordered = sorted(fragments, key=lambda fragment: fragment.begins)
    since = ordered[0].begins if since is None else since
    chain, until = _chain(ordered, since)
    if not chain:
        raise UnknownChanges(since, ordered[0].begins)
    documents = [read_stored(fragment.body) for fragment in chain]
    changes = _joined(
        [
            _later(document, fragment, since)
            for document, fragment in zip(documents, chain, strict=True)
        ]
    )
    count = _cut([change.at for change in changes], since, limit)
    if count < len(changes):
        until = changes[count - 1].at
    return ChangeMemoryPage(
        since=since,
        until=max(since, until),
        entries=tuple(_entry(change) for change in changes[:count]),
        up=up_links(documents[-1]),
    )


def _chain(ordered: Sequence[Fragment], since: Instant) -> tuple[list[Fragment], Instant]:
    until = since
    chain = []
    for fragment in ordered:
        if fragment.begins > until:
            break
        chain.append(fragment)
        until = max(until, fragment.until)
    return chain, until


def _later(document: Document, fragment: Fragment, since: Instant) -> list[Change]:
    """Return the changes of a fragment that are later than an instant.

    If the fragment begins at the instant, it also includes changes at that instant. A Source whose
    datetimes have whole seconds may record another change in a second that it has already
    published.
    """
    at_it = fragment.from_ is not None and fragment.from_ >= since
    changes = fragment_coverage(document, allow_framework=True).changes
    return [change for change in changes if change.at > since or (at_it and change.at == since)]


def _joined(parts: Sequence[Sequence[Change]]) -> list[Change]:
    seen = set()
    joined = []
    for change in merge(*parts, key=lambda change: change.at):
        same = (change.at, change_key(change))
        if same not in seen:
            seen.add(same)
            joined.append(change)
    return joined


def _cut(instants: Sequence[Instant], since: Instant, limit: int) -> int:
    """Return the number of changes that fit on a page.

    A page never splits the changes of one instant, and has at least one instant later than `since`.
    """
    if len(instants) <= limit:
        return len(instants)
    before = bisect_left(instants, instants[limit])
    if before > bisect_right(instants, since):
        return before
    later = bisect_right(instants, since)
    return bisect_right(instants, instants[min(later, len(instants) - 1)])


def _entry(change: Change) -> Resource:
    if change.resource.changed_at is not None:
        return change.resource
    return replace(change.resource, datetime=change.at)
