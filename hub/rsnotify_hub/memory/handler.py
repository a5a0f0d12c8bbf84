"""`GET /topics`: the list of topics; with `topic`, the change memory of one."""

from __future__ import annotations

import asyncio
from hashlib import blake2b
from urllib.parse import urlencode

import msgspec
from aiohttp import web

from rsnotify.format.datetimes import Instant, format_datetime
from rsnotify.format.model import Document, Link
from rsnotify.format.vocabulary import Capability, Rel
from rsnotify.format.writer import write_document
from rsnotify.runtime.mqtt.topics import Broker
from rsnotify_hub.log.fragments import read_kept
from rsnotify_hub.log.store import LogState
from rsnotify_hub.log.topics import Topics
from rsnotify_hub.memory import listing
from rsnotify_hub.memory.pages import NotKnown, Page, make_page, up_of
from rsnotify_hub.memory.questions import (
    MOST_TOPICS,
    USUAL_CHANGES,
    USUAL_TOPICS,
    Question,
    read_limit,
    read_question,
)

#: How many pages are made at once: each is held in memory, and takes time of the processor.
_AT_ONCE = 2

_HEADERS = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}


class ChangeMemory:
    """The handler of `GET /topics`.

    Args:
        topics: The logs.
        url: Where others reach this, for links.
        broker: The MQTT broker that others reach, if there is one.
    """

    def __init__(self, topics: Topics, url: str, broker: Broker | None = None) -> None:
        self._broker = broker
        self._topics = topics
        self._url = url
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def handle(self, request: web.Request) -> web.Response:
        """Answer with the list of topics, or with a page of changes."""
        if "topic" not in request.query:
            return await self._list(request)
        question = read_question(request.query)
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
        limit = read_limit(request.query, usual=USUAL_TOPICS, most=MOST_TOPICS)
        begins = listing.read_place(request.query.get("after"))
        found = await self._topics.newest(after=begins, limit=limit + 1)
        page = found[:limit]
        after = listing.place_of(page[-1]) if len(found) > limit else None
        answer = {
            "topics": [
                listing.row(state, self._link(topic=state.topic), self._broker) for state in page
            ],
            "next": None if after is None else self._link(after=after, limit=limit),
        }
        body = msgspec.json.encode(answer)
        return web.Response(body=body, content_type="application/json", headers=_HEADERS)

    async def _page(self, question: Question, state: LogState) -> bytes:
        async with self._room:
            entries = await self._topics.changes(question.topic, since=question.since)
            if not entries:
                return await self._end(question, state)
            fragments = [entry.fragment for entry in entries]
            try:
                page = await asyncio.to_thread(
                    make_page, fragments, since=question.since, limit=question.limit
                )
            except NotKnown as error:
                raise self._gone(question, error) from None
            return await asyncio.to_thread(write_document, self._document(page, question))

    async def _end(self, question: Question, state: LogState) -> bytes:
        """Write the page after the last: empty until something changes."""
        since = question.since
        if since is None or (not state.kept and since < state.through):
            raise self._gone(question, NotKnown(since, state.through))
        last = await self._topics.read(question.topic, after=state.position - 1)
        up = up_of(await asyncio.to_thread(read_kept, last[-1].fragment.body)) if last else ()
        return write_document(self._document(Page(since, since, (), up), question))

    def _gone(self, question: Question, error: NotKnown) -> web.HTTPGone:
        text = str(error)
        if error.begins is not None:
            text += f" {format_datetime(error.begins)}: {self._changes(question, error.begins)}"
        return web.HTTPGone(text=text + "\n")

    def _document(self, page: Page, question: Question) -> Document:
        more = page.until > page.since
        following = Link(Rel.NEXT, self._changes(question, page.until))
        return Document(
            Capability.CHANGE_LIST,
            page.entries,
            from_=page.since,
            until=page.until if more else None,
            links=page.up + ((following,) if more else ()),
        )

    def _changes(self, question: Question, since: Instant) -> str:
        limit = {} if question.limit == USUAL_CHANGES else {"limit": question.limit}
        return self._link(topic=question.topic, since=format_datetime(since), **limit)

    def _link(self, **query: str | int) -> str:
        return f"{self._url}?{urlencode(query, safe=':')}"


def _tag(state: LogState, question: Question) -> str:
    """Return what tells one answer from another, without reading the log for it."""
    log = (state.first, state.position, state.through, state.received)
    return blake2b(repr((log, question)).encode(), digest_size=12).hexdigest()
