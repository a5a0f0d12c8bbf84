"""PubSub services, the nodes of channels, and the login to an XMPP server.

The URI of a service determines the nodes of its channels:

    xmpp:pubsub.example.org                       rsnotify/<digest of the channel>
    xmpp:pubsub.example.org?;node=deep/down/      deep/down/<digest of the channel>
    xmpp:pubsub.example.org?;node=any/name        any/name, for every channel

The digest is computed as for MQTT topics.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from msgspec import Struct

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.extensions import missing_package
from rsnotify.runtime.mqtt_broker import DEFAULT_PREFIX, channel_topic, trusted_context

SCHEME = "xmpp"

_JID_PART = r"[^\s\"&'/:<>@?#;%]{1,1023}"
_JID = re.compile(rf"(?:{_JID_PART}@)?{_JID_PART}")
#: The bare JID of an account, such as `user@example.org`.
_ACCOUNT = re.compile(rf"{_JID_PART}@{_JID_PART}")
_URI = re.compile(rf"{SCHEME}:([^?#/]+)/?(?:\?([^#]*))?")
_MAX_NODE_BYTES = 1023


class PubSubService(Struct, frozen=True):
    """A PubSub service, and the nodes at which it publishes fragments.

    Args:
        jid: The JID of the service.
        node_or_prefix: The node for all channels, or a prefix of nodes that ends in `/`.
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


def parse_service(url: str) -> PubSubService:
    """Parse the URI of a PubSub service or node (RFC 5122).

    Raises:
        ConfigurationError: The URI is invalid.
    """
    found = _URI.fullmatch(url)
    if found is None or not _JID.fullmatch(jid := unquote(found[1])):
        raise ConfigurationError(
            f"{url!r} is not the URI of a PubSub service; write xmpp:pubsub.example.org or "
            "xmpp:pubsub.example.org?;node=NAME"
        )
    pairs = (pair.partition("=") for pair in (found[2] or "").split(";")[1:])
    node = next((unquote(value) for key, _, value in pairs if key == "node"), DEFAULT_PREFIX)
    if not node.isprintable() or not 0 < len(node.encode()) <= _MAX_NODE_BYTES:
        raise ConfigurationError(f"{url!r} has an invalid node; write ?;node=NAME")
    return PubSubService(jid.lower(), node)


class XmppLogin(Struct, frozen=True, kw_only=True):
    """An account at an XMPP server, and the trusted certificates.

    Args:
        jid: The account, such as `user@example.org`; None for no account.
        password: The password of the account, a secret.
        server: The address of the account's server as `host:port`, if DNS does not provide it.
        ca: A file with the trusted root certificates in PEM format; None for the system's.
    """

    jid: str | None = None
    password: str | None = None
    server: str | None = None
    ca: str | None = None

    def __repr__(self) -> str:
        """Return a representation without the password."""
        return f"XmppLogin(jid={self.jid!r})"

    @property
    def is_given(self) -> bool:
        """Whether there is an account."""
        return self.jid is not None

    @property
    def address(self) -> tuple[str | None, int | None]:
        """The host and port of the server; both None if DNS provides them."""
        if self.server is None:
            return None, None
        host, _, port = self.server.rpartition(":")
        return host.removeprefix("[").removesuffix("]"), int(port)

    def check(self) -> None:
        """Check everything that can be checked without a connection.

        Raises:
            ConfigurationError: A value is missing or invalid, or slixmpp is not installed.
        """
        if self.jid is None:
            for name in ("password", "server", "ca"):
                if getattr(self, name) is not None:
                    raise ConfigurationError(f"the {name} for XMPP needs the JID of an account")
            return
        if not _ACCOUNT.fullmatch(self.jid):
            raise ConfigurationError(f"{self.jid!r} is not an XMPP account; write user@example.org")
        if not self.password:
            raise ConfigurationError(f"the XMPP account {self.jid} needs a password")
        if self.server is not None:
            host, _, port = self.server.rpartition(":")
            if not host or not (port.isdecimal() and 0 < int(port) < 65_536):
                raise ConfigurationError(f"{self.server!r} is not an XMPP server; write host:port")
        if self.ca is not None:
            trusted_context(self.ca)
        check_installed()


def check_installed() -> None:
    """Raise `ConfigurationError` if slixmpp is not installed."""
    try:
        import slixmpp  # noqa: F401
    except ImportError:
        raise missing_package("XMPP", "xmpp") from None
