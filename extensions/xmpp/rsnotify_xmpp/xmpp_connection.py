"""A connection to an XMPP server, and the stanzas of PubSub (XEP-0060), based on slixmpp.

Theory of operation. slixmpp handles DNS, TLS, SASL and the XML stream. The functions of this module
write the stanzas, because slixmpp drops attributes in namespaces that it does not know, and
fragments have such attributes. `ReceivedStream` checks everything that a server sends, because
slixmpp would build elements from it without a limit.

An `XmppConnection` never reconnects: its user has a log or a list to continue from, and opens a new
connection. The connection pings the server regularly, and counts as lost if any answer is overdue.

A fragment is the payload of an item, so it is sent as a part of the XML stream, which has no
declarations, comments, processing instructions or DOCTYPE (RFC 6120 §11.1).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, Any, NoReturn
from xml.etree import ElementTree
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from lxml import etree
from msgspec import Struct

from rsnotify.errors import ConnectionRefused, NotPermitted, RsnotifyError, Unavailable
from rsnotify.format.model import SITEMAP_NS
from rsnotify.runtime.mqtt_broker import trusted_context
from rsnotify.runtime.tasks import retrieve_exception, running, settle
from rsnotify_xmpp.xmpp_service import SCHEME, PubSubService, XmppLogin, check_installed

if TYPE_CHECKING:
    from slixmpp import ClientXMPP

PUBSUB = "http://jabber.org/protocol/pubsub"
EVENT = PUBSUB + "#event"
STANZAS = "urn:ietf:params:xml:ns:xmpp-stanzas"

#: Maximum number of bytes that a server may send before it accepts the login.
MAX_LOGIN = 65_536
#: Maximum size of a stanza after the login, in bytes. It has room for the largest fragment that a
#: hub accepts by default.
MAX_STANZA = 4_194_304 + 65_536
#: Maximum nesting depth: the elements around a fragment, and those that its reader ignores.
_MAX_LEVELS = 120

#: Maximum number of bytes that a request adds to a payload.
_OVERHEAD = 8_192
#: The configuration of a node: it keeps the newest fragment, and anybody may subscribe.
_NODE = {"persist_items": "1", "max_items": "1", "access_model": "open", "notify_retract": "0"}


class PubSubItem(Struct, frozen=True):
    """An item of a node, with its payload as a document."""

    sender: str
    node: str
    payload: bytes


class ReceivedStream:
    """Checks an XML stream before any part of it is kept."""

    def __init__(self) -> None:
        self._logged_in = False
        self._levels = 0
        self._received = 0
        self._ended = 0  # where the last complete stanza ends, after the login
        self._parser = parser = expat.ParserCreate()
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.StartDoctypeDeclHandler = self._refuse_doctype

    def feed(self, data: bytes, *, logged_in: bool) -> None:
        """Check the next bytes of the stream.

        Raises:
            ValueError: The stream must not continue.
        """
        self._logged_in = logged_in
        try:
            self._parser.Parse(data, False)
        except expat.ExpatError as error:
            raise ValueError(f"it sends no well-formed XML: {error}") from None
        self._received += len(data)
        self._check_size(self._received)

    def _start(self, *_: object) -> None:
        self._levels += 1
        if self._levels > _MAX_LEVELS:
            raise ValueError(f"it sends a stanza of more than {_MAX_LEVELS} levels of elements")

    def _end(self, _: str) -> None:
        self._levels -= 1
        if self._logged_in and self._levels <= 1:
            self._check_size(self._parser.CurrentByteIndex)
            self._ended = self._parser.CurrentByteIndex

    def _check_size(self, received: int) -> None:
        if not self._logged_in and received > MAX_LOGIN:
            raise ValueError(f"it sends more than {MAX_LOGIN} bytes before it accepts the login")
        if received - self._ended > MAX_STANZA:
            raise ValueError(f"it sends a stanza of more than {MAX_STANZA} bytes")

    def _refuse_doctype(self, *_: object) -> NoReturn:
        raise ValueError("it sends a DOCTYPE, which a stream may not have")


def payload_of(body: bytes, max_stanza: int) -> str:
    """Return a fragment as a part of an XML stream.

    Raises:
        ValueError: The fragment cannot be part of a stream, or is too large.
    """
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, remove_comments=True, remove_pis=True
    )
    try:
        root = etree.fromstring(body, parser)
    except etree.XMLSyntaxError as error:
        raise ValueError(f"it is not well-formed: {error}") from None
    if root.getroottree().docinfo.doctype:
        raise ValueError("it has a DOCTYPE")
    if etree.QName(root).namespace != SITEMAP_NS:
        raise ValueError("it is no ResourceSync document")
    payload = str(etree.tostring(root, encoding="unicode", with_tail=False))
    if len(payload.encode()) + _OVERHEAD > max_stanza:
        raise ValueError(f"it is too large for a stanza of at most {max_stanza} bytes")
    return payload


def publish(node: str, payload: str) -> str:
    return _pubsub(f"<publish node={quoteattr(node)}><item>{payload}</item></publish>")


def create(node: str, title: str) -> str:
    fields = {"FORM_TYPE": PUBSUB + "#node_config"}
    fields |= {f"pubsub#{name}": value for name, value in (_NODE | {"title": title}).items()}
    form = "".join(
        f"<field var={quoteattr(name)}><value>{escape(value)}</value></field>"
        for name, value in fields.items()
    )
    form = f'<x xmlns="jabber:x:data" type="submit">{form}</x>'
    return _pubsub(f"<create node={quoteattr(node)}/><configure>{form}</configure>")


def subscribe(node: str, jid: str) -> str:
    return _pubsub(f"<subscribe node={quoteattr(node)} jid={quoteattr(jid)}/>")


def newest(node: str) -> str:
    return _pubsub(f'<items node={quoteattr(node)} max_items="1"/>')


def request(kind: str, to: str, id: str, child: str) -> str:
    return f"<iq type={quoteattr(kind)} to={quoteattr(to)} id={quoteattr(id)}>{child}</iq>"


def items_in(stanza: ElementTree.Element, sender: str) -> Iterator[PubSubItem]:
    """Yield the items with a payload in a message or an answer from a service."""
    for namespace in (PUBSUB, EVENT):
        for items in stanza.iterfind(f"{{{namespace}}}*/{{{namespace}}}items"):
            for payload in items.iterfind(f"{{{namespace}}}item/*"):
                payload.tail = None
                body = ElementTree.tostring(payload, encoding="utf-8")
                yield PubSubItem(sender, items.get("node", ""), body)


def error_in(stanza: ElementTree.Element) -> tuple[str, str]:
    """Return the condition of an error, and its text or a more specific condition, if any."""
    condition, detail = "undefined-condition", ""
    for part in stanza.iterfind("{jabber:client}error/*"):
        namespace, _, name = part.tag.removeprefix("{").partition("}")
        if name == "text":
            detail = part.text or ""
        elif namespace == STANZAS:
            condition = name
        elif not detail:
            detail = name
    return condition, detail


def _pubsub(inner: str) -> str:
    return f'<pubsub xmlns="{PUBSUB}">{inner}</pubsub>'


#: Seconds that a server may take to answer, and seconds between two pings.
TIMEOUT = 10.0
PING_SECONDS = 10.0
#: Maximum number of unacknowledged fragments.
IN_FLIGHT = 32
#: Maximum size of a stanza, in bytes, for servers that do not state a limit (XEP-0478). Most allow
#: 256 KiB.
MAX_BYTES = 262_144

_PING = '<ping xmlns="urn:xmpp:ping"/>'
_NOT_ALLOWED = frozenset({"forbidden", "not-allowed", "not-authorized", "registration-required"})
#: Error conditions that are final: the service refuses the item no matter how often it is sent.
_FINAL = frozenset({"not-acceptable", "bad-request", "policy-violation"})


class StanzaError(RsnotifyError):
    """The server answered a request with an error, whose name is `condition`."""

    def __init__(self, condition: str, detail: str) -> None:
        self.condition = condition
        super().__init__(f"{condition} ({detail})" if detail else condition)


class XmppConnection:
    """A connection to the server of an account, opened by `connect`."""

    def __init__(
        self,
        client: ClientXMPP,
        login: XmppLogin,
        on_item: Callable[[PubSubItem], None],
        on_foreign: Callable[[], None],
    ) -> None:
        self._client = client
        self._on_item = on_item
        self._on_foreign = on_foreign
        self.jid = login.jid or ""
        self.url = f"{SCHEME}:{self.jid.partition('@')[2]}"
        self._ids = count()
        #: The pending answers, by the identifier of the request and the JID of its recipient.
        self._answers: dict[tuple[str, str], asyncio.Future[ElementTree.Element]] = {}
        self._nodes: set[str] = set()
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lost.add_done_callback(retrieve_exception)

    # Public methods

    async def publish(
        self, service: PubSubService, channel: str, body: bytes
    ) -> asyncio.Future[None]:
        """Send a fragment as an item of a channel's node, and create the node if necessary.

        Returns:
            A task that finishes when the service has acknowledged the item. It fails with
            `ConnectionRefused` if the service refuses the item, or with `Unavailable` if the
            connection is lost.

        Raises:
            ConnectionRefused: The fragment cannot be sent over XMPP.
            Unavailable: The connection is lost.
        """
        node = service.node(channel)
        try:
            stated = self._client.limits.max_bytes or MAX_BYTES
            payload = payload_of(body, min(stated, MAX_STANZA))
        except ValueError as error:
            raise ConnectionRefused(service.url, str(error), is_final=True) from None
        if node not in self._nodes:
            with suppress(StanzaError):  # the node exists, or publishing reveals the problem
                await self.request("set", service.jid, create(node, channel))
            self._nodes.add(node)
        await self._slots.acquire()
        answer = self._send("set", service.jid, publish(node, payload))
        published = asyncio.create_task(self._published(service, node, answer))
        published.add_done_callback(retrieve_exception)
        return published

    async def _published(
        self, service: PubSubService, node: str, answer: asyncio.Future[ElementTree.Element]
    ) -> None:
        try:
            await self._answered(answer)
        except StanzaError as error:
            self._nodes.discard(node)
            allow = f"let the service allow {self.jid} to publish"
            raise ConnectionRefused(
                service.url,
                f"it refuses an item of {node}: {error}",
                is_final=error.condition in _FINAL,
                remedy=allow if error.condition in _NOT_ALLOWED else None,
            ) from None
        finally:
            self._slots.release()

    async def subscribe(self, service: PubSubService, channel: str) -> bytes | None:
        """Subscribe the account to a node, and return the newest fragment that it keeps.

        Raises:
            Unavailable: The service refuses the subscription, or the connection is lost.
        """
        node = service.node(channel)
        try:
            await self.request("set", service.jid, subscribe(node, self.jid))
            answer = await self.request("get", service.jid, newest(node))
        except StanzaError as error:
            refusal = f"it refuses to subscribe to {node}: {error}"
            if error.condition in _NOT_ALLOWED:
                allow = f"let the service allow {self.jid} to subscribe"
                raise NotPermitted(service.url, refusal, allow) from None
            raise Unavailable(service.url, refusal) from None
        items = list(items_in(answer, service.jid))
        return items[-1].payload if items else None

    async def request(self, kind: str, to: str, child: str) -> ElementTree.Element:
        """Send a request, and return the answer.

        Raises:
            StanzaError: The answer is an error.
            Unavailable: The connection is lost.
        """
        return await self._answered(self._send(kind, to, child))

    async def lost(self) -> None:
        """Ping the server until the connection is lost, then raise `Unavailable`."""
        async with running(self._ping_forever()):
            await asyncio.shield(self._lost)

    # Internal methods

    async def _ping_forever(self) -> None:
        while True:
            await asyncio.sleep(PING_SECONDS)
            with suppress(StanzaError, Unavailable):
                await self.request("get", self.jid.partition("@")[2], _PING)

    def _send(self, kind: str, to: str, child: str) -> asyncio.Future[ElementTree.Element]:
        from slixmpp.xmlstream.xmlstream import NotConnectedError

        id = f"rsnotify-{next(self._ids)}"
        future: asyncio.Future[ElementTree.Element] = asyncio.get_running_loop().create_future()
        future.add_done_callback(retrieve_exception)
        if self._lost.done():
            self._lost.result()
        try:
            self._client.send_raw(request(kind, to, id, child))
        except NotConnectedError:
            raise Unavailable(self.url, "the connection is lost") from None
        asked = id, to.lower()
        self._answers[asked] = future
        future.add_done_callback(lambda _: self._answers.pop(asked, None))
        return future

    async def _answered(self, answer: asyncio.Future[ElementTree.Element]) -> ElementTree.Element:
        try:
            async with asyncio.timeout(TIMEOUT):
                found = await answer
        except TimeoutError:
            error = Unavailable(self.url, "a request is not answered in time")
            self.lose(error)
            raise error from None
        if found.get("type") == "error":
            raise StanzaError(*error_in(found))
        return found

    def lose(self, error: Exception) -> None:
        """Record that the connection is lost, and fail all pending requests."""
        settle(self._lost, error)
        for answer in list(self._answers.values()):
            settle(answer, error)

    def receive_answer(self, stanza: Any) -> None:
        # Others may guess the identifier, so check the sender as well. Without a sender, the stanza
        # is from the account itself (RFC 6120 §8.1.2.1).
        sender = stanza["from"].full or self.jid
        answer = self._answers.get((stanza["id"], sender.lower()))
        if answer is not None and stanza["type"] in ("result", "error"):
            settle(answer, stanza.xml)

    def receive_message(self, stanza: Any) -> None:
        items = list(items_in(stanza.xml, stanza["from"].bare))
        try:
            if not items:
                self._on_foreign()
            for item in items:
                self._on_item(item)
        except Exception as error:  # slixmpp would only log it
            self.lose(error)


@asynccontextmanager
async def connect(
    login: XmppLogin,
    on_item: Callable[[PubSubItem], None] = lambda _: None,
    on_foreign: Callable[[], None] = lambda: None,
) -> AsyncIterator[XmppConnection]:
    """Open a connection to the server of an account, and close it at the end of the context.

    Args:
        login: The account.
        on_item: Called with each item that arrives, from any node.
        on_foreign: Called for each message that is not an item of a node.

    Raises:
        Unavailable: The server cannot be reached, or refuses the connection.
        ConfigurationError: slixmpp or a file is missing.
    """
    client = _client(login)
    connection = XmppConnection(client, login, on_item, on_foreign)
    ready = _handle_events(client, connection, login)
    client.connect(*login.address)
    try:
        try:
            async with asyncio.timeout(TIMEOUT):
                await ready
        except TimeoutError:
            raise Unavailable(connection.url, "no answer in time") from None
        # Items reach the account only while it is available.
        client.send_raw("<presence/>")
        yield connection
    finally:
        ready.cancel()
        connection.lose(Unavailable(connection.url, "the connection was closed"))
        client.cancel_connection_attempt()
        if client.is_connected():
            with suppress(Exception):
                client.send_raw(client.stream_footer)
        client.abort()
        # Nothing else ends this task before the client is garbage-collected.
        if client._run_out_filters is not None:
            client._run_out_filters.cancel()


def _client(login: XmppLogin) -> ClientXMPP:
    check_installed()
    from slixmpp import ClientXMPP

    class CheckedClient(ClientXMPP):
        """Checks received data before processing it; a refusal triggers `connection_failed`."""

        def init_parser(self) -> None:
            super().init_parser()
            self._received = ReceivedStream()

        def data_received(self, data: Any) -> None:
            try:
                self._received.feed(data, logged_in=self._session_started)
            except ValueError as error:
                self.event("connection_failed", error)
                self.abort()
            else:
                super().data_received(data)

        async def start_tls(self) -> bool:
            # A handshake on a closed transport would never end.
            if self.transport is None or self.transport.is_closing():
                return False
            return await super().start_tls()

    # slixmpp's log lines may contain secrets, and its errors are raised here.
    logging.getLogger("slixmpp").setLevel(logging.CRITICAL)
    client = CheckedClient(
        login.jid or "", login.password or "", ssl_context=trusted_context(login.ca)
    )
    client.enable_direct_tls = login.server is None
    client.auto_authorize = client.auto_subscribe = False
    client.whitespace_keepalive = False
    # These handlers would keep an entry for each sender.
    for handler in ("Presence", "Roster Update"):
        client.remove_handler(handler)
    return client


def _handle_events(
    client: ClientXMPP, connection: XmppConnection, login: XmppLogin
) -> asyncio.Future[None]:
    """Return a future that is done when the session begins, or fails if it cannot begin."""
    from slixmpp.xmlstream.handler import Callback
    from slixmpp.xmlstream.matcher import MatchXPath

    url = connection.url
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    ready.add_done_callback(retrieve_exception)

    def fail(error: Exception) -> None:
        settle(ready, error)
        connection.lose(error)

    def refused(_: Any) -> None:
        remedy = "correct the XMPP account and its password"
        fail(NotPermitted(url, f"it refuses the login of {login.jid!r}", remedy))

    def mistrusted(error: Any) -> None:
        why = getattr(error, "verify_message", None) or error
        fail(Unavailable(url, f"its certificate is not to be trusted: {why}"))

    def failed(error: Any) -> None:
        fail(Unavailable(url, f"the connection fails: {error}"))

    def disconnected(_: Any) -> None:
        lost = Unavailable(url, "the connection is lost")
        attempt = client._current_connection_attempt
        if attempt is None:
            fail(lost)
        else:  # a TLS handshake may have failed, and `mistrusted` reports the reason first
            loop = asyncio.get_running_loop()
            attempt.add_done_callback(lambda _: loop.call_soon(fail, lost))

    def stream_error(error: Any) -> None:
        text = f": {error['text']}" if error["text"] else ""
        fail(Unavailable(url, f"it ends the stream: {error['condition']}{text}"))

    client.add_event_handler("session_start", lambda _: settle(ready, None))
    client.add_event_handler("failed_all_auth", refused)
    client.add_event_handler("ssl_invalid_chain", mistrusted)
    client.add_event_handler("connection_failed", failed)
    client.add_event_handler("stream_error", stream_error)
    client.add_event_handler("disconnected", disconnected)
    receivers = {"iq": connection.receive_answer, "message": connection.receive_message}
    for name, receive in receivers.items():
        path = MatchXPath(f"{{jabber:client}}{name}")
        client.register_handler(Callback(f"rsnotify {name}", path, receive))
    return ready
