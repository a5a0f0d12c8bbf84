"""The URLs of brokers, and the MQTT topics of channels.

The scheme of a broker's URL says how to connect to it, and the path which MQTT topic is meant:

    mqtts://broker.example                   rsnotify/<digest of the channel>
    mqtts://broker.example/deep/down/        deep/down/<digest of the channel>
    mqtts://broker.example/any/name          any/name, for every channel

The digest is the first 32 hex digits of the SHA-256 of the channel's URI. So a topic name never
contains a wildcard of MQTT, and has the same length for every URI.
"""

from __future__ import annotations

from hashlib import sha256
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from msgspec import Struct

from rsnotify.errors import ConfigurationError
from rsnotify.selection.push_selection import PushSelection

#: The prefix of topic names, unless a broker's URL has another.
DEFAULT_PREFIX = "rsnotify/"

_WEBSOCKET_PATH = "/mqtt"
_DIGITS = 32
#: A topic name is a string of MQTT, whose length has two bytes (MQTT 5 §1.5.4).
_MOST_TOPIC_BYTES = 65_535


class _Scheme(Struct, frozen=True):
    port: int
    tls: bool
    websocket: bool


_SCHEMES = {
    "mqtt": _Scheme(1883, tls=False, websocket=False),
    "mqtts": _Scheme(8883, tls=True, websocket=False),
    "ws+mqtt": _Scheme(80, tls=False, websocket=True),
    "wss+mqtt": _Scheme(443, tls=True, websocket=True),
}
SCHEMES = tuple(_SCHEMES)


class Broker(Struct, frozen=True):
    """A broker, and the MQTT topics of fragments at it.

    Args:
        url: Its URL in messages and documents, without a path that names a topic.
        host: Its host.
        port: Its port.
        tls: Whether the connection is encrypted.
        path: The path of the HTTP request where MQTT runs over a WebSocket, else None.
        topic_or_prefix: The MQTT topic of every channel, or a prefix of topics, ending in `/`.
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
        """Return the MQTT topic of a selection of a channel; None if the URL allows none."""
        name = self.topic_or_prefix
        return name + select.digest(channel) if self.has_prefix else None

    def url_for(self, channel: str) -> str:
        """Return a URL with the complete MQTT topic of a channel, for clients without the rule."""
        query = "" if self.path in (None, _WEBSOCKET_PATH) else f"?path={quote(self.path or '')}"
        return f"{self.url}/{quote(self.topic(channel))}{query}"


def inbox_prefix(prefix: str) -> str:
    """Return the prefix of the topics to which Sources publish, from the hub's own prefix."""
    return prefix.removesuffix("/") + "-in/"


def request_prefix(prefix: str) -> str:
    """Return the prefix of the topics of selection requests, from the hub's own prefix."""
    return prefix.removesuffix("/") + "-ask/"


def is_broker_url(url: str) -> bool:
    return url.partition(":")[0].lower() in _SCHEMES


def channel_topic(channel: str, prefix: str = DEFAULT_PREFIX) -> str:
    return prefix + sha256(channel.encode()).hexdigest()[:_DIGITS]


def parse_broker(url: str) -> Broker:
    """Read the URL of a broker.

    Raises:
        ConfigurationError: It is not the URL of a broker. The message contains no password.
    """
    try:
        parts = urlsplit(url)
        scheme, host, port = _SCHEMES.get(parts.scheme), parts.hostname, parts.port
    except ValueError:
        scheme = host = port = None
    if scheme is None or not host or port == 0:
        raise ConfigurationError("this is no broker; write mqtts://host, with /topic if need be")
    if parts.username is not None or parts.password is not None:
        raise ConfigurationError("a broker's URL holds a user name; give user and password apart")
    path = _websocket_path(parts.query) if scheme.websocket else None
    if parts.fragment or (parts.query and not scheme.websocket):
        raise ConfigurationError(f"{url!r} has a query or fragment; a broker is named without them")
    return Broker(
        url=f"{parts.scheme}://{parts.netloc}",
        host=host,
        port=port or scheme.port,
        tls=scheme.tls,
        path=path,
        topic_or_prefix=_topic_or_prefix(parts.path),
    )


def _websocket_path(query: str) -> str:
    if not query:
        return _WEBSOCKET_PATH
    given = parse_qsl(query, keep_blank_values=True)
    if len(given) != 1 or given[0][0] != "path" or not given[0][1].startswith("/"):
        raise ConfigurationError("the query of a broker's URL can only be path=/of/its/WebSocket")
    return given[0][1]


def _topic_or_prefix(path: str) -> str:
    """Read and check the topic that a path names (MQTT 5 §4.7)."""
    name = unquote(path.removeprefix("/")) or DEFAULT_PREFIX
    if any(char in "+#" or not char.isprintable() for char in name) or name.startswith("$"):
        raise ConfigurationError("a broker's URL names a topic with +, #, $ or a control character")
    if len(name.encode(errors="replace")) > _MOST_TOPIC_BYTES - _DIGITS:
        raise ConfigurationError("a broker's URL names a topic that is too long for MQTT")
    return name
