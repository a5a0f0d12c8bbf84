"""Transports that installed packages offer, by URL scheme.

An entry point in the group `rsnotify.transports` has the name of the scheme, and refers to an
object with a login and up to three of these methods, one for each core:

- `feed`, which a Source uses to publish (`rsnotify_publisher.push.hub_push.SourceTransport`)
- `bridge`, which a hub uses to publish (`rsnotify_hub.bridging.HubTransport`)
- `receive_from`, which a Destination uses to receive (`rsnotify_subscriber.push.endpoints`,
  `DestinationTransport`)

HTTP, WebSocket and MQTT are built in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import Struct

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.extensions import extra_of, load_extension, offered
from rsnotify.runtime.mqtt_broker import SCHEMES as MQTT_SCHEMES
from rsnotify.runtime.mqtt_broker import is_broker_url, parse_broker

_BUILT_IN = {"http", "https", "ws", "wss", *MQTT_SCHEMES}


class ChannelPlace(Protocol):
    """A broker, and the names of its channels."""

    @property
    def url(self) -> str:
        """The URL of the broker, without the name of a channel."""

    @property
    def has_prefix(self) -> bool:
        """Whether the URL contains a prefix, below which each channel has its own name."""

    def url_for(self, channel: str) -> str:
        """Return the URL of a channel for Destinations."""


class PushTransport(Protocol):
    """A transport, apart from the methods that each core needs."""

    @property
    def name(self) -> str:
        """The name of the protocol in messages, such as `XMPP`."""

    @property
    def needs(self) -> str:
        """An instruction to the user, such as `name an account, such as user@example.org`."""

    @property
    def login(self) -> type[Any]:
        """The type of the login: a struct whose fields all have defaults.

        Its property `is_given` is true if an account is set. Its method `check` checks all fields
        without a connection, and may raise ConfigurationError.
        """

    def place(self, url: str) -> ChannelPlace:
        """Parse the URL of a broker, or raise ConfigurationError."""


def scheme_of(url: str) -> str:
    """Return the scheme of a URL in lower case."""
    return url.partition(":")[0].lower()


def offered_schemes() -> tuple[str, ...]:
    """Return the schemes that installed packages offer."""
    return tuple(scheme for scheme in offered("transports") if scheme not in _BUILT_IN)


def transport_of(scheme: str) -> Any:
    """Return the `PushTransport` for a scheme. Raises MissingExtension if none is installed."""
    return load_extension("transports", scheme, f"a transport for URLs that begin with {scheme}:")


def offered_transport(url: str) -> Any | None:
    """Return the transport for a URL; None if the scheme is built in or unknown.

    Raises MissingExtension if the scheme's package is not installed.
    """
    scheme = scheme_of(url)
    is_known = scheme in offered("transports") or extra_of("transports", scheme)
    return transport_of(scheme) if is_known and scheme not in _BUILT_IN else None


def place_of(url: str) -> ChannelPlace | None:
    """Return the broker at a URL; None if the URL is that of a hub."""
    if is_broker_url(url):
        return parse_broker(url)
    transport: PushTransport | None = offered_transport(url)
    return None if transport is None else transport.place(url)


def logins_of_settings(scheme: str, settings: Struct) -> dict[str, Struct]:
    """Return the login from settings such as `xmpp_jid`, by scheme; empty if none is given."""
    prefix = f"{scheme}_"
    given = {
        name.removeprefix(prefix): value
        for name in settings.__struct_fields__
        if name.startswith(prefix) and (value := getattr(settings, name)) is not None
    }
    given.pop("password_file", None)  # already read
    return {scheme: transport_of(scheme).login(**given)} if given else {}


def has_account(logins: Mapping[str, Any], scheme: str) -> bool:
    """Return whether an account is set for a scheme."""
    login = logins.get(scheme)
    return login is not None and login.is_given


def check_logins(logins: Mapping[str, Any]) -> None:
    """Check the login for each scheme, or raise ConfigurationError."""
    for scheme, login in logins.items():
        kind = transport_of(scheme).login
        if not isinstance(login, kind):
            raise ConfigurationError(f"{scheme} is {login!r}; give {_with_article(kind.__name__)}")
        login.check()


def _with_article(name: str) -> str:
    return f"{'an' if name[0] in 'AEFHILMNORSX' else 'a'} {name}"
