"""What is sent to a PubSub service, and what it sends (XEP-0060).

A fragment is the payload of an item, so it travels as a part of the XML stream, which has no
declarations, comments, processing instructions or DOCTYPE (RFC 6120 §11.1).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn
from xml.etree import ElementTree
from xml.parsers import expat
from xml.sax.saxutils import quoteattr

from lxml import etree
from msgspec import Struct

from rsnotify.format.vocabulary import SITEMAP_NS

PUBSUB = "http://jabber.org/protocol/pubsub"
EVENT = PUBSUB + "#event"
ERRORS = PUBSUB + "#errors"
STANZAS = "urn:ietf:params:xml:ns:xmpp-stanzas"

#: The most that a server may send before it accepts the login, in bytes.
MAX_LOGIN = 65_536
#: The most bytes of a stanza after that: a fragment of the largest size that a hub usually accepts.
MAX_STANZA = 4_194_304 + 65_536
#: Levels of elements: those around a fragment, and those that its reader ignores.
_MAX_LEVELS = 120

#: The most that a request adds to a payload, in bytes.
_OVERHEAD = 8_192
#: What a node is: it keeps the newest fragment, and everybody may subscribe.
_NODE = {"persist_items": "1", "max_items": "1", "access_model": "open", "notify_retract": "0"}


class PubSubItem(Struct, frozen=True):
    """The payload of an item of a node, as a document."""

    sender: str
    node: str
    payload: bytes


class ReceivedStream:
    """Checks an XML stream before anything is kept of it."""

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
        """Check the next bytes; raise ValueError if the stream must not continue."""
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
    """Return a fragment as a part of an XML stream; ValueError if it cannot be one."""
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
        f"<field var={quoteattr(name)}><value>{_text(value)}</value></field>"
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
    """Yield the items with a payload in a message of a service, or in an answer of it."""
    for namespace in (PUBSUB, EVENT):
        for items in stanza.iterfind(f"{{{namespace}}}*/{{{namespace}}}items"):
            for payload in items.iterfind(f"{{{namespace}}}item/*"):
                payload.tail = None
                body = ElementTree.tostring(payload, encoding="utf-8")
                yield PubSubItem(sender, items.get("node", ""), body)


def error_in(stanza: ElementTree.Element) -> tuple[str, str]:
    """Return the condition of an error, and its text or more specific condition, if any."""
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


def _text(value: str) -> str:
    return value.replace("&", "&amp;").replace("<", "&lt;")
