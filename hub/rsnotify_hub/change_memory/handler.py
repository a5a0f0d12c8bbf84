"""The handler of `GET /topics`: the list of topics, or with `topic` a page of its changes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from hashlib import blake2b
from urllib.parse import urlencode

import msgspec
from aiohttp import web
from msgspec import Struct

from rsnotify.format.datetimes import Instant, format_datetime
from rsnotify.format.model import Document, Link
from rsnotify.format.vocabulary import Capability, Rel
from rsnotify.format.writer import write_document
from rsnotify_hub.change_memory import topic_list
from rsnotify_hub.change_memory.pages import (
    ChangeMemoryPage,
    UnknownChanges,
    capability_list_links,
    make_page,
)
from rsnotify_hub.fragments.fragment import read_stored
from rsnotify_hub.log.topic_logs import TopicLogs
from rsnotify_hub.refusals import Code, Refusal, parse_since
from rsnotify_hub.store.interface import LogState

#: How many pages are made at the same time, since each takes memory and CPU time.
_CONCURRENCY = 2
#: The default and the largest number of changes on a page, and of topics on a page of the list.
DEFAULT_CHANGES, MAX_CHANGES = 1_000, 10_000
DEFAULT_TOPICS, MAX_TOPICS = 100, 1_000

_HEADERS = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}


class ChangeMemoryQuestion(Struct, frozen=True):
    """A request for the changes of a topic after an instant, or for all, at most `limit`."""

    topic: str
    since: Instant | None
    limit: int


class HubChangeMemory:
    """The handler of `GET /topics`, whose own URL is `url`."""

    def __init__(self, topics: TopicLogs, url: str, brokers: topic_list.Brokers) -> None:
        self._brokers = brokers
        self._topics = topics
        self._url = url
        self._slots = asyncio.Semaphore(_CONCURRENCY)

    async def handle(self, request: web.Request) -> web.Response:
        if "topic" not in request.query:
            return await self._list(request)
        question = _read_question(request.query)
        state = self._topics.state(question.topic)
        if state is None:
            raise web.HTTPNotFound(text="this hub has nothing of that topic\n")
        if state.whole:
            raise web.HTTPNotFound(text="that topic has no changes; GET the topic itself\n")
        tag = _tag(state, question)
        headers = {**_HEADERS, "ETag": f'"{tag}"'}
        if any(each.value in (tag, "*") for each in request.if_none_match or ()):
            return web.Response(status=304, headers=headers)
        body = await self._page(question, state)
        return web.Response(body=body, content_type="application/xml", headers=headers)

    async def _list(self, request: web.Request) -> web.Response:
        limit = _read_limit(request.query, default=DEFAULT_TOPICS, maximum=MAX_TOPICS)
        begins = topic_list.read_cursor(request.query.get("after"))
        found = await self._topics.newest(after=begins, limit=limit + 1)
        page = found[:limit]
        after = topic_list.cursor_after(page[-1]) if len(found) > limit else None
        answer = {
            "topics": [
                topic_list.row(state, self._link(topic=state.topic), self._brokers)
                for state in page
            ],
            "next": None if after is None else self._link(after=after, limit=limit),
        }
        body = msgspec.json.encode(answer)
        return web.Response(body=body, content_type="application/json", headers=_HEADERS)

    async def _page(self, question: ChangeMemoryQuestion, state: LogState) -> bytes:
        async with self._slots:
            entries = await self._topics.changes(question.topic, since=question.since)
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

    async def _end(self, question: ChangeMemoryQuestion, state: LogState) -> bytes:
        """Write the page at the end of the log, which is empty until something changes."""
        since = question.since
        if since is None or (not state.kept and since < state.through):
            raise self._gone(question, UnknownChanges(since, state.through))
        last = await self._topics.read(question.topic, after=state.position - 1)
        up = (
            capability_list_links(await asyncio.to_thread(read_stored, last[-1].fragment.body))
            if last
            else ()
        )
        return write_document(self._document(ChangeMemoryPage(since, since, (), up), question))

    def _gone(self, question: ChangeMemoryQuestion, error: UnknownChanges) -> web.HTTPGone:
        text = str(error)
        if error.begins is not None:
            text += f" {format_datetime(error.begins)}: {self._changes(question, error.begins)}"
        return web.HTTPGone(text=text + "\n")

    def _document(self, page: ChangeMemoryPage, question: ChangeMemoryQuestion) -> Document:
        more = page.until > page.since
        following = Link(Rel.NEXT, self._changes(question, page.until))
        return Document(
            Capability.CHANGE_LIST,
            page.entries,
            from_=page.since,
            until=page.until if more else None,
            links=page.up + ((following,) if more else ()),
        )

    def _changes(self, question: ChangeMemoryQuestion, since: Instant) -> str:
        limit = {} if question.limit == DEFAULT_CHANGES else {"limit": question.limit}
        return self._link(topic=question.topic, since=format_datetime(since), **limit)

    def _link(self, **query: str | int) -> str:
        return f"{self._url}?{urlencode(query, safe=':')}"


def _tag(state: LogState, question: ChangeMemoryQuestion) -> str:
    """Return the entity tag of an answer, without reading the log."""
    log = (state.first, state.position, state.through, state.received)
    return blake2b(repr((log, question)).encode(), digest_size=12).hexdigest()


def _read_question(query: Mapping[str, str]) -> ChangeMemoryQuestion:
    since = query.get("since")
    if since is not None and "T" in since:
        # The + of a time zone that was not escaped arrives as a space.
        since = since.replace(" ", "+")
    return ChangeMemoryQuestion(
        topic=query["topic"],
        since=parse_since(since),
        limit=_read_limit(query, default=DEFAULT_CHANGES, maximum=MAX_CHANGES),
    )


def _read_limit(query: Mapping[str, str], *, default: int, maximum: int) -> int:
    limit = query.get("limit", str(default))
    if not re.fullmatch(r"0*[1-9]\d{0,17}", limit, re.ASCII):
        raise Refusal(Code.BAD_REQUEST, "limit: it is not a whole number above 0")
    return min(int(limit), maximum)
