"""Where fragments are at a broker: the URLs of brokers, and the names of channels.

A broker is named by a URL. Its scheme says how to reach it, and its path which MQTT topic is meant:

    mqtts://broker.example                   rsnotify/<digest of the channel>
    mqtts://broker.example/deep/down/        deep/down/<digest of the channel>
    mqtts://broker.example/any/name          any/name, whatever the channel

The digest is the first 32 hex digits of the SHA-256 of the channel's URI. So a name has nothing
that MQTT would take for a wildcard, and is as long for any URI.
"""

from __future__ import annotations

from hashlib import sha256
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from msgspec import Struct

from rsnotify.errors import ConfigurationError
from rsnotify.selection.push_selection import PushSelection

#: What the names of channels begin with, unless a broker's URL says otherwise.
DEFAULT_PREFIX = "rsnotify/"

_WEBSOCKET_PATH = "/mqtt"
_DIGITS = 32
#: A topic name is a string of MQTT, whose length has two bytes (MQTT 5 §1.5.4).
_LONGEST = 65_535


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
    """A broker, and where in its topics fragments are.

    Args:
        url: How it is named in messages and documents, without a path that names a topic.
        host: Its host.
        port: Its port.
        tls: Whether the connection is encrypted.
        path: The path of the HTTP request where MQTT goes over a WebSocket, else None.
        name: An MQTT topic; one that ends in `/` is a prefix of the names of channels.
    """

    url: str
    host: str
    port: int
    tls: bool
    path: str | None
    name: str

    def topic(self, channel: str) -> str:
        """Return the MQTT topic of a channel."""
        return channel_topic(channel, self.name) if self.name.endswith("/") else self.name

    def part(self, channel: str, select: PushSelection) -> str | None:
        """Return the MQTT topic of what a selection leaves of a channel; None where is none.

        Args:
            channel: The URI of the channel.
            select: The selection, in its canonical form.
        """
        return self.name + select.digest(channel) if self.name.endswith("/") else None

    def at(self, channel: str) -> str:
        """Return the URL with the MQTT topic of a channel in it, which needs no rule to be read."""
        query = "" if self.path in (None, _WEBSOCKET_PATH) else f"?path={quote(self.path or '')}"
        return f"{self.url}/{quote(self.topic(channel))}{query}"


def inbox_prefix(prefix: str) -> str:
    """Return what the names of channels begin with where Sources publish for a hub.

    Args:
        prefix: What they begin with where the hub publishes.
    """
    return prefix.removesuffix("/") + "-in/"


def request_prefix(prefix: str) -> str:
    """Return what the names of channels begin with where a hub is asked for a part of them.

    Args:
        prefix: What they begin with where the hub publishes.
    """
    return prefix.removesuffix("/") + "-ask/"


def is_broker_url(url: str) -> bool:
    """Tell whether the scheme of a URL is that of a broker."""
    return url.partition(":")[0].lower() in _SCHEMES


def channel_topic(channel: str, prefix: str = DEFAULT_PREFIX) -> str:
    """Return the name of a channel at a broker.

    Args:
        channel: The URI of the channel.
        prefix: What all names begin with.
    """
    return prefix + sha256(channel.encode()).hexdigest()[:_DIGITS]


def parse_broker(url: str) -> Broker:
    """Read the URL of a broker.

    Raises:
        ConfigurationError: It is none; the message does not show a password.
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
        name=_name(parts.path),
    )


def _websocket_path(query: str) -> str:
    if not query:
        return _WEBSOCKET_PATH
    given = parse_qsl(query, keep_blank_values=True)
    if len(given) != 1 or given[0][0] != "path" or not given[0][1].startswith("/"):
        raise ConfigurationError("the query of a broker's URL can only be path=/of/its/WebSocket")
    return given[0][1]


def _name(path: str) -> str:
    """Read the topic that a path names (MQTT 5 §4.7)."""
    name = unquote(path.removeprefix("/")) or DEFAULT_PREFIX
    if any(char in "+#" or not char.isprintable() for char in name) or name.startswith("$"):
        raise ConfigurationError("a broker's URL names a topic with +, #, $ or a control character")
    if len(name.encode(errors="replace")) > _LONGEST - _DIGITS:
        raise ConfigurationError("a broker's URL names a topic that is too long for MQTT")
    return name
