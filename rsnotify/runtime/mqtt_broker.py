"""MQTT brokers without I/O: URLs, logins, topics of channels, and messages.

The scheme of a broker's URL determines the connection, and the path determines the MQTT topic:

    mqtts://broker.example                   rsnotify/<digest of the channel>
    mqtts://broker.example/deep/down/        deep/down/<digest of the channel>
    mqtts://broker.example/any/name          any/name, for every channel

The digest is the first 32 hex digits of the SHA-256 of the channel's URI, so topic names contain no
MQTT wildcards and have a fixed length.

MQTT 5 has properties for the metadata of a message; MQTT 3.1.1 has no equivalent.

A broker cannot filter by content. To receive only part of a channel, a Destination sends the hub a
request through the broker. The hub publishes each requested selection to a separate MQTT topic,
whose name is derived from the channel and the selection (`Broker.filtered_topic`), as long as
Destinations renew the request.
"""

from __future__ import annotations

import ssl
from hashlib import sha256
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import msgspec
from msgspec import Struct
from paho.mqtt.client import MQTTMessage
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.reasons import reason_of
from rsnotify.selection import PushSelection

#: The default prefix of topic names.
DEFAULT_PREFIX = "rsnotify/"

_WEBSOCKET_PATH = "/mqtt"
_DIGEST_LENGTH = 32
#: Maximum length of a topic name, because strings have a two-byte length (MQTT 5 §1.5.4).
_MAX_TOPIC_BYTES = 65_535


#: The default port of each scheme.
_PORTS = {"mqtt": 1883, "mqtts": 8883, "ws+mqtt": 80, "wss+mqtt": 443}
SCHEMES = tuple(_PORTS)


class Broker(Struct, frozen=True):
    """A broker, and its MQTT topics for fragments.

    Args:
        url: The broker's URL in messages and documents, without the topic.
        path: The path of the HTTP request if MQTT runs over a WebSocket, else None.
        topic_or_prefix: The MQTT topic of all channels, or a prefix of topics, ending in `/`.
    """

    url: str
    host: str
    port: int
    tls: bool
    path: str | None
    topic_or_prefix: str

    @property
    def has_prefix(self) -> bool:
        return self.topic_or_prefix.endswith("/")

    def topic(self, channel: str) -> str:
        name = self.topic_or_prefix
        return channel_topic(channel, name) if self.has_prefix else name

    def filtered_topic(self, channel: str, select: PushSelection) -> str | None:
        """Return the MQTT topic for a selection; None if all channels have the same topic."""
        name = self.topic_or_prefix
        return name + select.digest(channel) if self.has_prefix else None

    def url_for(self, channel: str) -> str:
        """Return a URL with the complete MQTT topic, for clients that cannot derive it."""
        query = "" if self.path in (None, _WEBSOCKET_PATH) else f"?path={quote(self.path or '')}"
        return f"{self.url}/{quote(self.topic(channel))}{query}"


def inbox_prefix(prefix: str) -> str:
    """Return the prefix of topics to which Sources publish, derived from the hub's prefix."""
    return prefix.removesuffix("/") + "-in/"


def request_prefix(prefix: str) -> str:
    """Return the prefix of topics for selection requests, derived from the hub's prefix."""
    return prefix.removesuffix("/") + "-ask/"


def is_broker_url(url: str) -> bool:
    return url.partition(":")[0].lower() in SCHEMES


def channel_topic(channel: str, prefix: str = DEFAULT_PREFIX) -> str:
    return prefix + sha256(channel.encode()).hexdigest()[:_DIGEST_LENGTH]


def parse_broker(url: str) -> Broker:
    """Parse the URL of a broker.

    Raises:
        ConfigurationError: This is not the URL of a broker. The message omits any password.
    """
    try:
        parts = urlsplit(url)
        default, host, port = _PORTS.get(parts.scheme), parts.hostname, parts.port
    except ValueError:
        default = host = port = None
    if default is None or not host or port == 0:
        raise ConfigurationError("this is not a broker; write mqtts://host or mqtts://host/topic")
    if parts.username is not None or parts.password is not None:
        raise ConfigurationError("a broker's URL contains a login; set user and password instead")
    path = _websocket_path(parts.query) if parts.scheme.startswith("ws") else None
    if parts.fragment or (parts.query and path is None):
        raise ConfigurationError(f"{url!r} has a query or fragment; remove it")
    return Broker(
        url=f"{parts.scheme}://{parts.netloc}",
        host=host,
        port=port or default,
        tls=parts.scheme in ("mqtts", "wss+mqtt"),
        path=path,
        topic_or_prefix=_topic_or_prefix(parts.path),
    )


def _websocket_path(query: str) -> str:
    if not query:
        return _WEBSOCKET_PATH
    given = parse_qsl(query, keep_blank_values=True)
    if len(given) != 1 or given[0][0] != "path" or not given[0][1].startswith("/"):
        raise ConfigurationError("the query of a broker's URL must be path=/path/of/the/WebSocket")
    return given[0][1]


def _topic_or_prefix(path: str) -> str:
    """Return the topic or prefix that a path names, after checking it (MQTT 5 §4.7)."""
    name = unquote(path.removeprefix("/")) or DEFAULT_PREFIX
    if any(char in "+#" or not char.isprintable() for char in name) or name.startswith("$"):
        raise ConfigurationError("the topic in a broker's URL has a +, #, $ or control character")
    if len(name.encode(errors="replace")) > _MAX_TOPIC_BYTES - _DIGEST_LENGTH:
        raise ConfigurationError("the topic in a broker's URL is too long for MQTT")
    return name


class BrokerLogin(Struct, frozen=True, kw_only=True):
    """The credentials of a client, and the certificates that it trusts.

    Args:
        user: The user name, if the broker requires one.
        password: The password, which is a secret.
        ca: A PEM file with the trusted root certificates; None for the system's.
        certificate: A PEM file with the client's certificate and the intermediate certificates.
        key: A PEM file with the private key, if it is not in the certificate file.
    """

    user: str | None = None
    password: str | None = None
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None

    def __repr__(self) -> str:
        """Return a representation without the password, for logs."""
        return f"BrokerLogin(user={self.user!r})"

    def check(self) -> None:
        """Check the settings and files without a connection, or raise ConfigurationError."""
        if self.password is not None and self.user is None:
            raise ConfigurationError("a password for the broker also needs a user")
        if self.key is not None and self.certificate is None:
            raise ConfigurationError("a key for the broker also needs its certificate")
        # The system's certificates need no check, and are slow to load.
        if self.ca is not None or self.certificate is not None:
            self.context()

    def context(self) -> ssl.SSLContext:
        """Return the TLS context for connections to the broker."""
        context = trusted_context(self.ca)
        if self.certificate is not None:
            try:
                # Without `password`, OpenSSL would prompt for a passphrase in the terminal.
                context.load_cert_chain(self.certificate, self.key, password=_no_passphrase)
            except (OSError, ValueError) as error:
                where = self.key or self.certificate
                reason = reason_of(error) if isinstance(error, OSError) else error
                raise ConfigurationError(f"cannot use the key of {where}: {reason}") from None
        return context


#: A client without credentials.
ANONYMOUS = BrokerLogin()


def login_of(settings: object, prefix: str = "mqtt_") -> BrokerLogin:
    """Return the login from the settings `mqtt_user`, `mqtt_password` and so on."""
    fields = BrokerLogin.__struct_fields__
    return BrokerLogin(**{name: getattr(settings, prefix + name) for name in fields})


def trusted_context(ca: str | None) -> ssl.SSLContext:
    """Return a TLS context that trusts the root certificates in a file; None for the system's."""
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:  # also an ssl.SSLError
        raise ConfigurationError(
            f"cannot use the certificates of {ca}: {reason_of(error)}"
        ) from None


def _no_passphrase() -> str:
    raise ValueError("it has a passphrase; use a key without one")


#: The name of the user property with the URI of the channel (MQTT 5 §3.3.2.3.7).
CHANNEL_PROPERTY = "channel"


class MqttMessage(Struct, frozen=True):
    """A message that a broker sent.

    Args:
        retained: Whether it is the topic's retained message, sent because of a subscription.
        packet_id: The packet identifier for the PUBACK; None for QoS 0.
    """

    topic: str
    payload: bytes
    retained: bool
    content_type: str | None
    channel: str | None
    packet_id: int | None


def read_message(found: MQTTMessage) -> MqttMessage:
    """Convert a message from paho. Raises ValueError if its topic is not UTF-8."""
    properties = found.properties
    users = getattr(properties, "UserProperty", None) or []
    return MqttMessage(
        topic=found.topic,
        payload=bytes(found.payload),
        retained=bool(found.retain),
        content_type=getattr(properties, "ContentType", None),
        channel=next((value for name, value in users if name == CHANNEL_PROPERTY), None),
        packet_id=found.mid if found.qos > 0 else None,
    )


def publish_properties(content_type: str, channel: str) -> Properties:
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    properties.ContentType = content_type
    properties.UserProperty = (CHANNEL_PROPERTY, channel)
    return properties


#: How long a hub keeps a filtered topic after the last request for it, in seconds.
LEASE = 7_200
CONTENT_TYPE = "application/json"

#: Maximum size of a request, which allows a URI and a selection of maximum length, in bytes.
_MAX_REQUEST_BYTES = 16_384


class SelectionRequest(Struct, frozen=True):
    """A request for a filtered topic: the URI of the channel, and the canonical selection."""

    topic: str
    select: PushSelection

    def encode(self) -> bytes:
        return msgspec.json.encode(self)


def read_selection_request(payload: bytes) -> SelectionRequest:
    """Decode and check a request.

    Raises:
        ConfigurationError: The request is malformed, or selects the whole channel.
    """
    if len(payload) > _MAX_REQUEST_BYTES:
        raise ConfigurationError(f"it is larger than {_MAX_REQUEST_BYTES} bytes")
    try:
        request = msgspec.json.decode(payload, type=SelectionRequest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        reason = str(error)[:200]  # it may quote the request
        raise ConfigurationError(f"it is not a valid selection request: {reason}") from None
    select = request.select.canonical()
    if not select:
        raise ConfigurationError("it selects the whole topic, which needs no request")
    return SelectionRequest(request.topic, select)
