"""A connection to an XMPP server, and the stanzas of PubSub (XEP-0060), based on slixmpp.

slixmpp handles DNS, TLS, SASL and the XML stream. This module writes the stanzas itself, because
slixmpp drops attributes in unknown namespaces, which fragments have. `ReceivedStream` checks
everything that a server sends, because slixmpp would build elements from it without a limit.

An `XmppConnection` does not reconnect: its user opens a new connection, and continues from a log or
list. The connection pings the server regularly, and counts as lost if an answer is overdue.

A fragment is the payload of an item, and so becomes part of the XML stream, which must not contain
XML declarations, comments, processing instructions or a DOCTYPE (RFC 6120 §11.1).
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
MAX_LOGIN_BYTES = 65_536
#: Maximum size of a stanza after the login, in bytes: enough for the largest fragment that a hub
#: accepts by default.
MAX_STANZA_BYTES = 4_194_304 + 65_536
#: Maximum nesting depth of elements, around and within a fragment.
_MAX_LEVELS = 120

#: Maximum number of bytes that a request adds to a payload.
_OVERHEAD_BYTES = 8_192
#: The configuration of new nodes: keep the newest fragment, and let anyone subscribe.
_CONFIG = {"persist_items": "1", "max_items": "1", "access_model": "open", "notify_retract": "0"}


class PubSubItem(Struct, frozen=True):
    """An item of a node, with its payload as a document."""

    sender: str
    node: str
    payload: bytes


class ReceivedStream:
    """Checks an XML stream before slixmpp processes it."""

    def __init__(self) -> None:
        self._logged_in = False
        self._levels = 0
        self._received = 0
        self._ended = 0  # the end of the last complete stanza after the login
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
            raise ValueError(f"it sent XML that is not well-formed: {error}") from None
        self._received += len(data)
        self._check_size(self._received)

    def _start(self, *_: object) -> None:
        self._levels += 1
        if self._levels > _MAX_LEVELS:
            raise ValueError(f"it sent a stanza with more than {_MAX_LEVELS} levels of elements")

    def _end(self, _: str) -> None:
        self._levels -= 1
        if self._logged_in and self._levels <= 1:
            self._check_size(self._parser.CurrentByteIndex)
            self._ended = self._parser.CurrentByteIndex

    def _check_size(self, received: int) -> None:
        if not self._logged_in and received > MAX_LOGIN_BYTES:
            reason = f"it sent more than {MAX_LOGIN_BYTES} bytes before it accepted the login"
            raise ValueError(reason)
        if received - self._ended > MAX_STANZA_BYTES:
            raise ValueError(f"it sent a stanza of more than {MAX_STANZA_BYTES} bytes")

    def _refuse_doctype(self, *_: object) -> NoReturn:
        raise ValueError("it sent a DOCTYPE, which a stream must not contain")


def payload_of(body: bytes, max_stanza: int) -> str:
    """Return a fragment in the form that an XML stream can contain.

    Raises:
        ValueError: The fragment is invalid or too large.
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
        raise ValueError("it is not a ResourceSync document")
    payload = str(etree.tostring(root, encoding="unicode", with_tail=False))
    if len(payload.encode()) + _OVERHEAD_BYTES > max_stanza:
        raise ValueError(f"it is too large for a stanza of at most {max_stanza} bytes")
    return payload


def publish_element(node: str, payload: str) -> str:
    return _pubsub(f"<publish node={quoteattr(node)}><item>{payload}</item></publish>")


def create_element(node: str, title: str) -> str:
    fields = {"FORM_TYPE": PUBSUB + "#node_config"}
    fields |= {f"pubsub#{name}": value for name, value in (_CONFIG | {"title": title}).items()}
    form = "".join(
        f"<field var={quoteattr(name)}><value>{escape(value)}</value></field>"
        for name, value in fields.items()
    )
    form = f'<x xmlns="jabber:x:data" type="submit">{form}</x>'
    return _pubsub(f"<create node={quoteattr(node)}/><configure>{form}</configure>")


def subscribe_element(node: str, jid: str) -> str:
    return _pubsub(f"<subscribe node={quoteattr(node)} jid={quoteattr(jid)}/>")


def newest_item_element(node: str) -> str:
    return _pubsub(f'<items node={quoteattr(node)} max_items="1"/>')


def iq_stanza(kind: str, to: str, id: str, child: str) -> str:
    return f"<iq type={quoteattr(kind)} to={quoteattr(to)} id={quoteattr(id)}>{child}</iq>"


def items_in(stanza: ElementTree.Element, sender: str) -> Iterator[PubSubItem]:
    """Yield the items that have a payload in a message or response from a service."""
    for namespace in (PUBSUB, EVENT):
        for items in stanza.iterfind(f"{{{namespace}}}*/{{{namespace}}}items"):
            for payload in items.iterfind(f"{{{namespace}}}item/*"):
                payload.tail = None
                body = ElementTree.tostring(payload, encoding="utf-8")
                yield PubSubItem(sender, items.get("node", ""), body)


def error_in(stanza: ElementTree.Element) -> tuple[str, str]:
    """Return the condition of an error, and its text or a more specific condition if any."""
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


#: Seconds after which a request times out.
TIMEOUT = 10.0
#: Seconds between pings.
PING_INTERVAL = 10.0
_MAX_UNACKNOWLEDGED = 32
#: The assumed maximum size of a stanza, in bytes, if a server does not state one (XEP-0478). Most
#: servers allow 256 KiB.
_DEFAULT_STANZA_BYTES = 262_144

_PING = '<ping xmlns="urn:xmpp:ping"/>'
_NOT_ALLOWED = frozenset({"forbidden", "not-allowed", "not-authorized", "registration-required"})
#: Error conditions with which a service refuses an item for good, so retrying is pointless.
_FINAL = frozenset({"not-acceptable", "bad-request", "policy-violation"})


class StanzaError(RsnotifyError):
    """The server responded with an error, whose name is `condition`."""

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
        #: The pending answers, by the id of the request and the JID of its recipient.
        self._answers: dict[tuple[str, str], asyncio.Future[ElementTree.Element]] = {}
        self._nodes: set[str] = set()
        self._slots = asyncio.Semaphore(_MAX_UNACKNOWLEDGED)
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lost.add_done_callback(retrieve_exception)

    async def publish(
        self, service: PubSubService, channel: str, body: bytes
    ) -> asyncio.Future[None]:
        """Send a fragment as an item of a channel's node, and create the node if necessary.

        Returns:
            A task that ends once the service has acknowledged the item. It fails with
            `ConnectionRefused` if the service refuses the item, or with `Unavailable` if the
            connection is lost.

        Raises:
            ConnectionRefused: The fragment cannot be sent over XMPP.
            Unavailable: The connection is lost.
        """
        node = service.node(channel)
        try:
            limit = self._client.limits.max_bytes or _DEFAULT_STANZA_BYTES
            payload = payload_of(body, min(limit, MAX_STANZA_BYTES))
        except ValueError as error:
            raise ConnectionRefused(service.url, str(error), is_final=True) from None
        if node not in self._nodes:
            with suppress(StanzaError):  # the node exists, or publishing reveals the problem
                await self.request("set", service.jid, create_element(node, channel))
            self._nodes.add(node)
        await self._slots.acquire()
        answer = self._send("set", service.jid, publish_element(node, payload))
        published = asyncio.create_task(self._await_published(service, node, answer))
        published.add_done_callback(retrieve_exception)
        return published

    async def _await_published(
        self, service: PubSubService, node: str, answer: asyncio.Future[ElementTree.Element]
    ) -> None:
        try:
            await self._await_answer(answer)
        except StanzaError as error:
            self._nodes.discard(node)
            allow = f"allow {self.jid} to publish at the service"
            raise ConnectionRefused(
                service.url,
                f"it refused an item for {node}: {error}",
                is_final=error.condition in _FINAL,
                remedy=allow if error.condition in _NOT_ALLOWED else None,
            ) from None
        finally:
            self._slots.release()

    async def subscribe(self, service: PubSubService, channel: str) -> bytes | None:
        """Subscribe the account to a node, and return the newest fragment if the node keeps it.

        Raises:
            Unavailable: The service refuses the subscription, or the connection is lost.
        """
        node = service.node(channel)
        try:
            await self.request("set", service.jid, subscribe_element(node, self.jid))
            answer = await self.request("get", service.jid, newest_item_element(node))
        except StanzaError as error:
            refusal = f"it refused the subscription to {node}: {error}"
            if error.condition in _NOT_ALLOWED:
                allow = f"allow {self.jid} to subscribe at the service"
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
        return await self._await_answer(self._send(kind, to, child))

    async def lost(self) -> None:
        """Ping the server until the connection is lost, then raise `Unavailable`."""
        async with running(self._ping_forever()):
            await asyncio.shield(self._lost)

    async def _ping_forever(self) -> None:
        while True:
            await asyncio.sleep(PING_INTERVAL)
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
            self._client.send_raw(iq_stanza(kind, to, id, child))
        except NotConnectedError:
            raise Unavailable(self.url, "the connection was lost") from None
        key = id, to.lower()
        self._answers[key] = future
        future.add_done_callback(lambda _: self._answers.pop(key, None))
        return future

    async def _await_answer(
        self, answer: asyncio.Future[ElementTree.Element]
    ) -> ElementTree.Element:
        try:
            async with asyncio.timeout(TIMEOUT):
                found = await answer
        except TimeoutError:
            error = Unavailable(self.url, "a request timed out")
            self.lose(error)
            raise error from None
        if found.get("type") == "error":
            raise StanzaError(*error_in(found))
        return found

    def lose(self, error: Exception) -> None:
        """Mark the connection as lost, and fail all pending requests."""
        settle(self._lost, error)
        for answer in list(self._answers.values()):
            settle(answer, error)

    def receive_answer(self, stanza: Any) -> None:
        # Others may guess the id, so check the sender as well. Without a sender, the stanza is from
        # the account itself (RFC 6120 §8.1.2.1).
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
        on_foreign: Called for each message that contains no item.

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
        # The server delivers items only to available clients.
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
        # Otherwise this task would run until the client is garbage-collected.
        if client._run_out_filters is not None:
            client._run_out_filters.cancel()


def _client(login: XmppLogin) -> ClientXMPP:
    check_installed()
    from slixmpp import ClientXMPP

    class CheckedClient(ClientXMPP):
        """Checks received data before processing it, and triggers `connection_failed`."""

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

        def abort(self) -> None:
            # After a second `close`, asyncio's TLS transport could not be aborted.
            if self.transport is not None and self.transport.is_closing():
                self.transport.abort()
            else:
                super().abort()

        async def start_tls(self) -> bool:
            # A handshake on a closed transport never ends.
            if self.transport is None or self.transport.is_closing():
                return False
            return await super().start_tls()

    # The log of slixmpp may contain secrets. `_handle_events` raises its errors.
    logging.getLogger("slixmpp").setLevel(logging.CRITICAL)
    client = CheckedClient(
        login.jid or "", login.password or "", ssl_context=trusted_context(login.ca)
    )
    client.enable_direct_tls = login.server is None
    client.auto_authorize = client.auto_subscribe = False
    client.whitespace_keepalive = False
    # These handlers would store an entry for each sender.
    for handler in ("Presence", "Roster Update"):
        client.remove_handler(handler)
    return client


def _handle_events(
    client: ClientXMPP, connection: XmppConnection, login: XmppLogin
) -> asyncio.Future[None]:
    """Return a future that is done once the session has begun, and fails if it cannot begin."""
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
        fail(NotPermitted(url, f"it refused the login of {login.jid!r}", remedy))

    def mistrusted(error: Any) -> None:
        why = getattr(error, "verify_message", None) or error
        fail(Unavailable(url, f"its certificate is not trusted: {why}"))

    def failed(error: Any) -> None:
        fail(Unavailable(url, f"the connection failed: {error}"))

    def disconnected(_: Any) -> None:
        lost = Unavailable(url, "the connection was lost")
        attempt = client._current_connection_attempt
        if attempt is None:
            fail(lost)
        else:  # after a failed TLS handshake, let `mistrusted` report the reason first
            loop = asyncio.get_running_loop()
            attempt.add_done_callback(lambda _: loop.call_soon(fail, lost))

    def stream_error(error: Any) -> None:
        text = f": {error['text']}" if error["text"] else ""
        fail(Unavailable(url, f"it closed the stream: {error['condition']}{text}"))

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
