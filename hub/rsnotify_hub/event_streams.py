"""`GET /events`: a topic's fragments as Server-Sent Events (WHATWG HTML §9.2.5), in XML or JSON.

The id of each event is the `until` of its fragment, so that a browser resumes after it. Clients
ignore an incomplete event, so the stream needs no HTTP framing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from functools import cached_property, lru_cache
from random import randrange
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec
from aiohttp import web
from msgspec import Meta, Struct, field

from rsnotify.format.datetimes import Instant, format_datetime
from rsnotify.format.model import ChangeType, Link, Resource
from rsnotify.runtime.serving import SECURITY_HEADERS
from rsnotify_hub.fragments import Fragment, FragmentKind, read_stored
from rsnotify_hub.live.connections import CLOSE_SECONDS, LiveConnection, LiveConnections
from rsnotify_hub.live.subscribers import Encoding, LiveChannel, LiveSubscriber, Opening, Replays
from rsnotify_hub.refusals import Code, Refusal, parse_since
from rsnotify_hub.statistics import DeliveryTransport
from rsnotify_hub.urls import check_url

#: A comment, which shows that the hub is alive.
HEARTBEAT = b":\n\n"

#: The delay before a browser reconnects, in milliseconds. It is random, so that not all clients of
#: a stopped node reconnect to another node at once.
_RETRY_MS = range(1_000, 5_000)

#: Maximum number of bytes that a client may send after its request. The hub ignores them.
_MAX_INPUT_BYTES = 16 * 1024

#: Maximum size of fragments parsed on the event loop, in bytes. Larger ones are parsed in a thread,
#: so as not to block the loop.
_MAX_INLINE_BYTES = 64 * 1024

S = TypeVar("S", bound=Struct)

_BOM = b"\xef\xbb\xbf"

_When = Annotated[
    str, Meta(extra_json_schema={"format": "date-time"}, examples=["2026-11-20T16:00:00.000000Z"])
]


@dataclass(eq=False, repr=False)
class EventStreamHandler:
    """The handler of `GET /events`. `url` is its URL."""

    channel: LiveChannel
    connections: LiveConnections
    replays: Replays
    url: str

    def __post_init__(self) -> None:
        transport = DeliveryTransport.SSE
        self._encodings: dict[str, Encoding] = {
            "xml": XmlEvents(transport),
            "json": JsonEvents(transport),
        }

    @cached_property
    def _schema(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(schema(self.url + "/schema")))

    async def handle(self, request: web.Request) -> web.StreamResponse:
        topic = check_url(request.query.get("topic", ""), "topic")
        encoding = self._encodings.get(request.query.get("format", "xml"))
        if encoding is None:
            raise Refusal(Code.BAD_REQUEST, f"format must be one of {', '.join(self._encodings)}")
        # A browser that reconnects sends this header with the original query.
        since = parse_since(
            request.headers.get("Last-Event-ID") or request.query.get("since") or None
        )
        self.connections.check_admission(request)

        def connect(
            transport: asyncio.Transport, lost: Callable[[LiveConnection], None]
        ) -> EventStream:
            stream = EventStream(transport, lost)
            subscriber = EventSubscriber(stream, topic, self.channel, encoding)
            stream.role = subscriber
            self.replays.start(subscriber, since)
            return stream

        return self.connections.accept(request, _head(request.headers.get("Origin")), connect)

    async def handle_schema(self, request: web.Request) -> web.Response:
        headers = {
            "Access-Control-Allow-Origin": "*",
            "Cross-Origin-Resource-Policy": "cross-origin",
        }
        return web.Response(
            body=self._schema, content_type="application/schema+json", headers=headers
        )


def _head(origin: str | None) -> bytes:
    """Return the head of the response, and the `retry` field, which begins the event stream.

    Pages from `origin` may read the response. It ends when its connection closes (RFC 9112 §6.3).
    """
    headers = {
        "Content-Type": "text/event-stream",
        "Cache-Control": "no-store",
        "Connection": "close",
        "Date": formatdate(usegmt=True),
        "Server": "rsnotify",
        "X-Accel-Buffering": "no",  # nginx then forwards each event at once
        "Vary": "Origin",
        **SECURITY_HEADERS,
    }
    if origin is not None:
        headers["Access-Control-Allow-Origin"] = origin
    lines = [f"{name}: {value}" for name, value in headers.items()]
    retry = randrange(_RETRY_MS.start, _RETRY_MS.stop)
    return "\r\n".join(["HTTP/1.1 200 OK", *lines, "", f"retry: {retry}\n\n"]).encode()


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
        # A client without `since` resumes here, even if it never receives a fragment.
        data = json_event(subscribed, id=through if opening.since is None else None)
        if opening.begins is not None:
            data += json_event(GapEvent(self.topic, format_datetime(opening.begins)))
        self.connection.send(data)

    def refused(self, refusal: Refusal) -> None:
        self.connection.close()

    def failed(self) -> None:
        self.connection.close()


@dataclass(slots=True, eq=False, repr=False)
class EventStream(LiveConnection):
    """The response of `GET /events` after its head. It ends when the connection closes."""

    kind: ClassVar[DeliveryTransport] = DeliveryTransport.SSE

    _received: int = 0

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        if self._received > _MAX_INPUT_BYTES:
            self.transport.abort()

    def eof_received(self) -> None:
        # The transport closes itself after this.
        self._end(CLOSE_SECONDS)

    def close(self, *, seconds: float = CLOSE_SECONDS) -> None:
        """Close after sending everything. Abort if the client does not read it in time."""
        if not self.has_ended:
            self._end(seconds)
            self.transport.close()

    def cut_off(self, *, seconds: float) -> None:
        self.close(seconds=seconds)

    def go_away(self, reason: str = "") -> None:
        self.close()

    def check(self) -> None:
        """Send a keep-alive comment, unless data is already waiting.

        Abort if the client has not read any of the waiting data since the last check.
        """
        if self._has_stalled():
            self.transport.abort()
        elif not self.is_paused:
            self.send(HEARTBEAT)


class XmlEvents(Encoding):
    """Encodes each fragment as the Source's XML, unchanged."""

    def encode(self, fragments: Sequence[Fragment]) -> bytes:
        return b"".join(
            _content_event(each)
            if each.kind is FragmentKind.WHOLE
            else event(each.body.removeprefix(_BOM), id=each.until)
            for each in fragments
        )


class JsonEvents(Encoding):
    """Encodes each fragment as JSON (`FragmentEvent`)."""

    def __init__(self, transport: DeliveryTransport) -> None:
        super().__init__(transport)
        self._in_thread = asyncio.Lock()

    def encode(self, fragments: Sequence[Fragment]) -> bytes:
        return b"".join(map(_as_json, fragments))

    def needs_thread(self, fragments: Sequence[Fragment]) -> bool:
        return sum(len(each.body) for each in fragments) > _MAX_INLINE_BYTES

    async def encode_page(self, fragments: Sequence[Fragment]) -> bytes:
        if not self.needs_thread(fragments):
            return self.encode(fragments)
        # One at a time, because many subscribers may need the same page, which is then cached.
        async with self._in_thread:
            return await asyncio.to_thread(self.encode, fragments)


class EventLink(Struct, frozen=True, omit_defaults=True):
    """A related resource (`rs:ln`).

    Args:
        rel: A registered relation type, or a URI.
        href: The related resource; a `data:` URI holds the content itself.
        modified: When the related resource was last modified.
        pri: The priority among links with the same relation; 1 is the highest.
    """

    rel: str
    href: str
    encoding: str | None = None
    hash: str | None = None
    length: int | None = None
    modified: _When | None = None
    path: str | None = None
    pri: int | None = None
    type: str | None = None


class EventChange(Struct, frozen=True, omit_defaults=True):
    """A change to one resource.

    Args:
        uri: The resource.
        change: The type of change.
        datetime: When the change happened.
        hash: `algorithm:digest` pairs, separated by whitespace.
    """

    uri: str
    change: ChangeType | None = None
    datetime: _When | None = None
    encoding: str | None = None
    hash: str | None = None
    length: int | None = None
    type: str | None = None
    links: tuple[EventLink, ...] = ()


class FragmentEvent(Struct, frozen=True, omit_defaults=True):
    """All changes of a set of resources in the interval from `from` (exclusive) to `until`.

    Args:
        until: The end of the interval; also the id of the event.
        changes: The changes, in order; empty in a heartbeat.
        from_: The start of the interval. If it is later than the `until` of the previous event,
            changes between the two are missing. Absent if the Source does not state it.
        links: Links of the document, such as `up` to the Capability List.
    """

    until: _When
    changes: tuple[EventChange, ...]
    from_: _When | None = field(name="from", default=None)
    links: tuple[EventLink, ...] = ()


class SubscribedEvent(Struct, frozen=True):
    """The stream is open.

    Args:
        topic: The topic.
        through: The end of the hub's log of the topic; null if there is no log.
        audience: The number of subscribers to the topic.
    """

    topic: str
    through: _When | None
    audience: int


class GapEvent(Struct, frozen=True):
    """The log begins at `from`, later than requested, so the hub may lack changes in between."""

    topic: str
    from_: _When = field(name="from")


class ContentEvent(Struct, frozen=True):
    """A topic that is not about changes has new content; GET the topic to retrieve it.

    Args:
        until: When the hub received the content.
        type: The media type of the content.
    """

    until: _When
    type: str


#: The data of each event type. Fragments have the default type, `message`.
EVENTS: dict[str, type[Struct]] = {
    "message": FragmentEvent,
    "subscribed": SubscribedEvent,
    "gap": GapEvent,
    "content": ContentEvent,
}

_encode_json = msgspec.json.Encoder().encode


def schema(url: str) -> dict[str, Any]:
    """Return the JSON Schema of the data of all events, with `FragmentEvent` as its root."""
    _, parts = msgspec.json.schema_components(EVENTS.values(), ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": url,
        "$ref": "#/$defs/FragmentEvent",
        "$defs": parts,
    }


def event(data: bytes, *, type: bytes = b"message", id: Instant | None = None) -> bytes:
    """Encode an event. Each line of the data becomes a field, regardless of its line ending."""
    head = b"" if type == b"message" else b"event: " + type + b"\n"
    if id is not None:
        head += b"id: " + format_datetime(id).encode() + b"\n"
    lines = b"\ndata: ".join(data.splitlines())
    return head + b"data: " + lines + b"\n\n"


def json_event(data: Struct, *, id: Instant | None = None) -> bytes:
    name = next(name for name, kind in EVENTS.items() if isinstance(data, kind))
    return event(_encode_json(data), type=name.encode(), id=id)


def _content_event(fragment: Fragment) -> bytes:
    content = ContentEvent(format_datetime(fragment.until), fragment.content_type)
    return json_event(content, id=fragment.until)


def _as_json(fragment: Fragment) -> bytes:
    if fragment.kind is FragmentKind.WHOLE:
        return _content_event(fragment)
    convert = _convert_small if len(fragment.body) <= _MAX_INLINE_BYTES else _convert_large
    return convert(fragment.body, fragment.until)


def _convert(body: bytes, until: Instant) -> bytes:
    document = read_stored(body)
    fragment = FragmentEvent(
        until=format_datetime(until),
        changes=tuple(map(_change, document.resources)),
        from_=_text(document.from_),
        links=tuple(map(_link, document.links)),
    )
    return json_event(fragment, id=until)


# Many subscribers may reconnect at the same time and need the same fragments.
_convert_small = lru_cache(maxsize=64)(_convert)
_convert_large = lru_cache(maxsize=2)(_convert)


def _text(instant: Instant | None) -> str | None:
    return None if instant is None else format_datetime(instant)


def _change(entry: Resource) -> EventChange:
    links = tuple(map(_link, entry.links))
    return _copy(EventChange, entry, datetime=_text(entry.changed_at), links=links)


def _link(link: Link) -> EventLink:
    return _copy(EventLink, link, modified=_text(link.modified))


def _copy(kind: type[S], source: Struct, **given: object) -> S:
    """Build a struct from the given fields, with all other fields from `source`."""
    others = {name: getattr(source, name) for name in kind.__struct_fields__ if name not in given}
    return kind(**others, **given)
