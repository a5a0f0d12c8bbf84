"""The surfaces of requests, responses and messages of every transport."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

from rsnotify.errors import ConfigurationError, FetchError
from rsnotify.format.datetimes import (
    format_datetime,
    parse_datetime,
    parse_http_date,
    to_microseconds,
)
from rsnotify.format.links import parse_links, resolve
from rsnotify.format.signatures import SigningKey, verify_signature
from rsnotify.runtime.http_client import ContentReader, NoReply, ResponseReader
from rsnotify.runtime.mqtt_broker import SelectionRequest, parse_broker, read_selection_request
from rsnotify.runtime.mqtt_streams import PacketLengths, PacketTooLong
from rsnotify.selection import PushSelection
from rsnotify.sync.retry import parse_retry_after
from rsnotify_hub.access.client_addresses import TrustedProxies, client_network
from rsnotify_hub.access.grants import JsonWebTokens
from rsnotify_hub.live.connections import Origins
from rsnotify_hub.refusals import Refusal, parse_since
from rsnotify_hub.urls import authority_of, check_url, has_dot_segments, host_of
from rsnotify_hub.websocket import websocket_connection as frames
from rsnotify_hub.websocket.websocket_connection import WebSocketConnection, WebSocketRole
from rsnotify_hub.websocket.websocket_handler import canonical_selection
from rsnotify_hub.websub.forms import SubscriptionRequest, denial_url, parse_form, verification_url
from rsnotify_publisher.hubs import Hub
from rsnotify_publisher.push.websocket import HubConnection, HubPublication
from rsnotify_publisher.web.responses import Representation, accepts_gzip, decide
from rsnotify_subscriber.fetching.responses import (
    check_transfer,
    content_validator,
    modified_at,
    retry_after,
)
from rsnotify_subscriber.fetching.small_requests import _response
from rsnotify_subscriber.push.websocket_transport import HubWebSocket, TopicReception
from rsnotify_xmpp.xmpp_connection import (
    ReceivedStream,
    error_in,
    items_in,
    payload_of,
    publish_element,
)
from rsnotify_xmpp.xmpp_service import parse_service
from tests.harnesses.fuzzing.documents import SITEMAPS
from tests.harnesses.fuzzing.surface import Surface

_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_FRAGMENT = SITEMAPS[0]
_LOOP = asyncio.new_event_loop()


def _text(data: bytes) -> str:
    return data.decode("latin-1")


def _links(data: bytes) -> None:
    for _, target in parse_links(_text(data).split("\n")):
        resolve("http://e.example/a", target)


def _form(data: bytes) -> None:
    request = parse_form(data)
    if isinstance(request, SubscriptionRequest):
        for url in (request.topic, request.callback):
            host_of(url)
            authority_of(url)
            has_dot_segments(url)
        verification_url(request, challenge="a", lease=request.lease or 1)
        denial_url(request.topic, request.callback, reason="a")


def _signature(data: bytes) -> None:
    header, _, body = data.partition(b"\n")
    method = verify_signature(_text(header), "secret", body)
    if method is not None:
        assert _text(header).strip().lower() == SigningKey("secret", method).sign(body)


def _datetimes(data: bytes) -> None:
    text = _text(data)
    for instant in (parse_http_date(text), _parsed(text)):
        if instant is not None:
            assert parse_datetime(format_datetime(instant)) == instant
            to_microseconds(instant)
    parse_retry_after(text, _NOW)
    with suppress(Refusal):
        parse_since(text)


def _parsed(text: str) -> datetime | None:
    try:
        return parse_datetime(text)
    except ValueError:
        return None


def _fields(data: bytes) -> dict[str, str]:
    lines = (line.partition(": ") for line in _text(data).split("\n"))
    return {name.lower(): value for name, _, value in lines}


def _request(data: bytes) -> None:
    headers = _fields(data)
    for has_ranges in (False, True):
        stored = Representation("tag", 1_000_000.5, 100, lambda *_: iter(()), has_ranges=has_ranges)
        decide(headers, stored, 1_000_001.0)
    accepts_gzip(headers)
    for header in ("X-Forwarded-For", "Forwarded"):
        proxies = TrustedProxies(["10.0.0.0/8", "::1/128"], header)
        client_network(proxies.client("10.0.0.1", headers.items()))
    origins = Origins("https://hub.example/", ["https://page.example"])
    origins.allows(headers.get("origin"), headers.get("host", ""))
    tokens = JsonWebTokens(["HS256"], "k" * 32, "hub", None)
    tokens.claims(headers.get("authorization", "").removeprefix("Bearer "))


def _http_response(data: bytes) -> None:
    for reader in (ResponseReader(), ContentReader()):
        with suppress(NoReply):
            for at in range(0, len(data), 997):
                reader.feed(data[at : at + 997])
        reply = reader.reply() or reader.rest()
        if isinstance(reader, ContentReader) and reply is not None:
            response: Any = _response(reply, {})
            content_validator(response)
            modified_at(response)
            retry_after(response)
            with suppress(FetchError):
                check_transfer("http://e.example/", response)


def _control(data: bytes) -> None:
    data = data.decode(errors="replace").encode()
    for decode in (frames.decode, frames.decode_of_topics):
        with suppress(Refusal):
            frame = decode(data)
            check_url(frame.topic, "topic")
            if isinstance(frame, frames.SubscribeFrame):
                parse_since(frame.since)
                canonical_selection(frame)


class _Ignored:
    """Has every method; none of them does anything."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


class _Received(WebSocketRole):
    def received(self, payload: bytes, *, is_text: bool) -> None:
        if is_text:
            payload.decode()

    def lost(self) -> None:
        pass


def _in_loop(read: Callable[[bytes], None]) -> Callable[[bytes], None]:
    async def run(data: bytes) -> None:
        read(data)

    return lambda data: _LOOP.run_until_complete(run(data))


def _websocket(data: bytes) -> None:
    transport: Any = _Ignored()
    connection = WebSocketConnection(transport, lambda _: None, max_bytes=100_000)
    connection.role = _Received()
    try:
        connection.data_received(data)
        assert sum(map(len, connection._parts)) <= 100_000
    finally:
        connection.connection_lost(None)


def _from_hub(data: bytes) -> None:
    """Read a message of a hub as a Destination and a Source do."""
    hub = "wss://e.example/ws"
    ignored: Any = _Ignored()
    for kind, user in (
        (HubWebSocket, TopicReception(hub, ignored)),
        (HubConnection, HubPublication(Hub(hub, ()), "a", ignored)),
    ):
        for is_for_many in (True, False):
            connection: Any = SimpleNamespace(
                topics={"a": user}, is_for_many=is_for_many, _current=user, is_ending=False
            )
            connection.transport = connection.loop = ignored
            for name in ("named", "end_all", "_process_other"):
                if hasattr(kind, name):
                    setattr(connection, name, getattr(kind, name).__get__(connection))
            kind.process_message(connection, data)


def _packets(data: bytes) -> None:
    lengths = PacketLengths(1_000_000)
    for at in range(0, len(data), 997):
        lengths.feed(data[at : at + 997])


def _stanza(data: bytes) -> None:
    """Read a stanza, which slixmpp parses with Expat once it is checked."""
    try:
        ReceivedStream().feed(data, logged_in=True)
        stanza = ElementTree.fromstring(data)
    except (ElementTree.ParseError, ValueError, LookupError):
        return
    list(items_in(stanza, "pubsub.e.example"))
    error_in(stanza)


_MESSAGE = (
    b"<message xmlns='jabber:client' from='pubsub.e.example'><event xmlns='"
    b"http://jabber.org/protocol/pubsub#event'><items node='a'><item id='1'>"
    b"<urlset xmlns='urn:s' xmlns:r='urn:r'><r:md r:a='b'/>t</urlset></item></items></event>"
    b"<error><conflict xmlns='urn:ietf:params:xml:ns:xmpp-stanzas'/><text>a</text></error>"
    b"</message>"
)
_SELECT = PushSelection(prefixes=("http://e.example/a",), types=("text/*",))
MESSAGES = {
    "link-header": Surface(
        _links, (b'<http://e.example/a>; rel="hub self"; title="a\\"b", </b>;rel=up',), ()
    ),
    "form": Surface(
        _form,
        (
            b"hub.mode=subscribe&hub.topic=http%3A%2F%2Fe.example%2Fa&hub.callback=https://e.example"
            b"/c%3Fd&hub.lease_seconds=3600&hub.secret=s",
            b"hub.mode=publish&hub.url=http://e.example/a&hub.topic=http://[::1]:80/b",
        ),
        (Refusal,),
    ),
    "url": Surface(
        lambda data: authority_of(check_url(_text(data), "topic")),
        (b"https://e.example:8080/a/%2e%2e/b?c=d", b"http://[::ffff:1.2.3.4%25a]/"),
        (Refusal,),
    ),
    "signature": Surface(
        _signature, (b"sha256=" + b"0a" * 32 + b"\nbody", b"sha1=" + b"F" * 40 + b"\n"), ()
    ),
    "datetime": Surface(
        _datetimes,
        (
            b"2013-01-03T09:00:00.123456Z",
            b"2013-01-03T09:00:00+01:00",
            b"Thu, 03 Jan 2013 09:00:00 GMT",
            b"Thu, 03 Jan 2013 09:00 -2359",
            b"0001-01-01T00:00:00Z",
            b"9999-12-31",
            b"120",
        ),
        (),
    ),
    "request-header": Surface(
        _request,
        (
            b'if-none-match: W/"a", "tag"\nif-modified-since: Thu, 03 Jan 2013 09:00:00 GMT\n'
            b'range: bytes=0-9\nif-range: "tag"\naccept-encoding: gzip;q=0.5, *',
            b'forwarded: for=10.0.0.2, for="[2001:db8::1]:4711";proto=http\norigin: http://[::1]:8\n'
            b"host: [::1]:8\nx-forwarded-for: 10.0.0.2, 1.2.3.4\nauthorization: Bearer e30.e30.a",
            b"if-match: *\nif-unmodified-since: Thu, 03 Jan 2013 09:00 +0000\nrange: bytes=-5",
        ),
        (),
    ),
    "http-response": Surface(
        _http_response,
        (
            b"HTTP/1.1 200 OK\r\nDate: Thu, 03 Jan 2013 09:00:00 GMT\r\nLast-Modified: Thu, 03 Jan "
            b'2013 08:00:00 GMT\r\nETag: "a"\r\nContent-Length: 3\r\nAge: 1\r\n\r\nabc',
            b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 503 No\r\nRetry-After: 5\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\nTrailer: a\r\n\r\n",
        ),
        (),
    ),
    "websocket-control": Surface(
        _control,
        (
            b'{"type":"subscribe","topic":"http://e.example/a","since":"2013-01-03T09:00:00Z",'
            b'"select":{"prefixes":["http://e.example/b"],"types":["text/*"],"changes":["created"]}}',
            b'{"type":"documents","topic":"http://e.example/a","more":[{"a":1}]}',
        ),
        (),
    ),
    "websocket": Surface(
        _in_loop(_websocket),
        (
            b"\x81\x83\x01\x02\x03\x04`\x60\x60",
            b"\x01\x81\0\0\0\0a\x80\x81\0\0\0\0b\x89\x80\0\0\0\0\x88\x82\0\0\0\0\x03\xe8",
            b"\x82\xfe\0\x80\0\0\0\0" + b"x" * 128,
        ),
        (),
    ),
    "from-hub": Surface(
        _in_loop(_from_hub),
        (
            b'{"type":"subscribed","topic":"a","through":null,"audience":1}',
            b'{"type":"accepted","topic":"a","until":"2013-01-03T09:00:00Z"}',
            b'{"type":"error","code":"unavailable","message":"b","topic":"a"}',
            b'{"type":"publishing","topic":"a","through":"2013-01-03T09:00:00.5Z"}',
            b'{"type":"gap","topic":"a","from":"2013-01-03"}',
            b'{"type":"documents","topic":"a"}',
            _FRAGMENT,
        ),
        (),
    ),
    "mqtt-packets": Surface(
        _packets,
        (b"\x30\x05\0\x01ab\x20\x02\0\0\xd0\0", b"\x30\x80\x01" + b"a" * 128),
        (PacketTooLong,),
    ),
    "mqtt-request": Surface(
        read_selection_request,
        (SelectionRequest("http://e.example/a", _SELECT).encode(),),
        (ConfigurationError,),
    ),
    "broker-url": Surface(
        lambda data: parse_broker(_text(data)).url_for("http://e.example/a"),
        (b"mqtts://e.example/a/b/", b"ws+mqtt://[::1]:80/a%20b?path=/c"),
        (ConfigurationError,),
    ),
    "xmpp-uri": Surface(
        lambda data: parse_service(_text(data)).url_for("http://e.example/a"),
        (b"xmpp:pubsub.e.example?;node=a/b/", b"xmpp:a@b.example/?;x=y;node=%41"),
        (ConfigurationError,),
    ),
    "xmpp-stanza": Surface(_stanza, (_MESSAGE,), ()),
    "xmpp-payload": Surface(
        lambda data: ElementTree.fromstring(publish_element("a", payload_of(data, 262_144))),
        (_FRAGMENT, SITEMAPS[-1]),
        (ValueError,),
    ),
}
