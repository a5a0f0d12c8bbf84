"""The handlers of `GET /events` and of the schema of its JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from functools import cached_property
from random import randrange

import msgspec
from aiohttp import web

from rsnotify.format.datetimes import format_datetime
from rsnotify_hub.events.connection import EventStream
from rsnotify_hub.events.encoding import (
    GapEvent,
    JsonEvents,
    SubscribedEvent,
    XmlEvents,
    json_event,
    schema,
)
from rsnotify_hub.http.middleware import SECURITY_HEADERS
from rsnotify_hub.live.connection import LiveConnection
from rsnotify_hub.live.connections import LiveConnections
from rsnotify_hub.live.encoding import Encoding
from rsnotify_hub.live.replay import Replays
from rsnotify_hub.live.subscribers import LiveChannel, LiveSubscriber, Opening
from rsnotify_hub.refusals import Code, Refusal, parse_since
from rsnotify_hub.statistics import DeliveryTransport
from rsnotify_hub.urls import check_url

#: How long a browser waits before it connects again, in milliseconds; at random, so that those of a
#: node that stops do not all reach another one at once.
_RETRY = range(1_000, 5_000)


@dataclass(slots=True, eq=False, repr=False)
class EventSubscriber(LiveSubscriber):
    """An event stream that receives a topic."""

    connection: EventStream

    def opened(self, opening: Opening) -> None:
        through = opening.through
        subscribed = SubscribedEvent(
            topic=self.topic,
            through=None if through is None else format_datetime(through),
            audience=opening.audience,
        )
        # A client that requested no instant resumes here, even if it receives nothing before that.
        data = json_event(subscribed, id=through if opening.since is None else None)
        if opening.begins is not None:
            data += json_event(GapEvent(self.topic, format_datetime(opening.begins)))
        self.connection.send(data)

    def refused(self, refusal: Refusal) -> None:
        self.connection.close()

    def failed(self) -> None:
        self.connection.close()


class EventsHandler:
    """The handler of `GET /events`; `url` is its URL."""

    def __init__(
        self,
        channel: LiveChannel,
        connections: LiveConnections,
        replays: Replays,
        url: str,
    ) -> None:
        self._channel = channel
        self._connections = connections
        self._replays = replays
        transport = DeliveryTransport.SSE
        self._encodings: dict[str, Encoding] = {
            "xml": XmlEvents(transport),
            "json": JsonEvents(transport),
        }
        self._url = url

    @cached_property
    def _schema(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(schema(self._url + "/schema")))

    async def handle(self, request: web.Request) -> web.StreamResponse:
        topic = check_url(request.query.get("topic", ""), "topic")
        encoding = self._encodings.get(request.query.get("format", "xml"))
        if encoding is None:
            raise Refusal(Code.BAD_REQUEST, f"format is one of {', '.join(self._encodings)}")
        # A browser that connects again sends the header with the first request's query.
        since = parse_since(
            request.headers.get("Last-Event-ID") or request.query.get("since") or None
        )
        self._connections.check(request)

        def connect(
            transport: asyncio.Transport, lost: Callable[[LiveConnection], None]
        ) -> EventStream:
            stream = EventStream(transport, lost)
            subscriber = EventSubscriber(stream, topic, self._channel, encoding)
            stream.handler = subscriber
            self._replays.start(subscriber, since)
            return stream

        return self._connections.accept(request, _head(request.headers.get("Origin")), connect)

    async def handle_schema(self, request: web.Request) -> web.Response:
        headers = {
            "Access-Control-Allow-Origin": "*",
            "Cross-Origin-Resource-Policy": "cross-origin",
        }
        return web.Response(
            body=self._schema, content_type="application/schema+json", headers=headers
        )


def _head(origin: str | None) -> bytes:
    """Return the head of the response, for a page of an origin that may read it, and `retry`.

    The response ends with its connection (RFC 9112 §6.3).
    """
    headers = {
        "Content-Type": "text/event-stream",
        "Cache-Control": "no-store",
        "Connection": "close",
        "Date": formatdate(usegmt=True),
        "Server": "rsnotify",
        "X-Accel-Buffering": "no",  # nginx passes each event on at once
        "Vary": "Origin",
        **SECURITY_HEADERS,
    }
    if origin is not None:
        headers["Access-Control-Allow-Origin"] = origin
    lines = [f"{name}: {value}" for name, value in headers.items()]
    retry = randrange(_RETRY.start, _RETRY.stop)
    return "\r\n".join(["HTTP/1.1 200 OK", *lines, "", f"retry: {retry}\n\n"]).encode()
