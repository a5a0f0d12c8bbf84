"""The URIs of PubSub services, and the nodes of channels.

    xmpp:pubsub.example.org                       rsnotify/<digest of the channel>
    xmpp:pubsub.example.org?;node=deep/down/      deep/down/<digest of the channel>
    xmpp:pubsub.example.org?;node=any/name        any/name, for every channel

The digest is that of MQTT topics.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from msgspec import Struct

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.mqtt.topics import DEFAULT_PREFIX, channel_topic

SCHEME = "xmpp"

_PART = r"[^\s\"&'/:<>@?#;%]{1,1023}"
_JID = re.compile(rf"(?:{_PART}@)?{_PART}")
_ACCOUNT = re.compile(rf"{_PART}@{_PART}")
_URI = re.compile(rf"{SCHEME}:([^?#/]+)/?(?:\?([^#]*))?")
_MAX_NODE = 1023


class PubSubService(Struct, frozen=True):
    """A PubSub service, and the nodes of fragments at it.

    Args:
        jid: Its JID.
        node_or_prefix: The node of every channel, or a prefix of nodes, ending in `/`.
    """

    jid: str
    node_or_prefix: str = DEFAULT_PREFIX

    @property
    def url(self) -> str:
        return f"{SCHEME}:{self.jid}"

    @property
    def has_prefix(self) -> bool:
        return self.node_or_prefix.endswith("/")

    def node(self, channel: str) -> str:
        name = self.node_or_prefix
        return channel_topic(channel, name) if self.has_prefix else name

    def url_for(self, channel: str) -> str:
        """Return the URI of a channel's node (XEP-0060 §4.6)."""
        return f"{self.url}?;node={quote(self.node(channel))}"


def is_service_url(url: str) -> bool:
    return url.partition(":")[0].lower() == SCHEME


def is_account(jid: str) -> bool:
    """Return whether a text is the bare JID of an account, as `user@example.org`."""
    return _ACCOUNT.fullmatch(jid) is not None


def parse_service(url: str) -> PubSubService:
    """Read the URI of a PubSub service or node (RFC 5122), or raise ConfigurationError."""
    found = _URI.fullmatch(url)
    if found is None or not _JID.fullmatch(jid := unquote(found[1])):
        raise ConfigurationError(
            f"{url!r} is no PubSub service; write xmpp:pubsub.example.org, "
            "with ?;node=NAME if need be"
        )
    pairs = (pair.partition("=") for pair in (found[2] or "").split(";")[1:])
    node = next((unquote(value) for key, _, value in pairs if key == "node"), DEFAULT_PREFIX)
    if not node.isprintable() or not 0 < len(node.encode()) <= _MAX_NODE:
        raise ConfigurationError(f"{url!r} has no usable name of a node")
    return PubSubService(jid.lower(), node)
