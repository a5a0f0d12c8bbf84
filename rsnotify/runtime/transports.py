"""Transports of fragments that installed packages offer, by the scheme of a URL.

An entry point of the group `rsnotify.transports` is named by the scheme, and is an object with a
login and with up to three parts, one for each core:

- `feed`, by which a Source publishes (`rsnotify_publisher.push.transports.SourceTransport`)
- `bridge`, by which a hub publishes (`rsnotify_hub.bridging.HubTransport`)
- `receive_from`, by which a Destination receives (`rsnotify_subscriber.push.endpoints`,
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
    """A broker, and the names that channels have there."""

    @property
    def url(self) -> str:
        """The URL of the broker, without a name of a channel."""

    @property
    def has_prefix(self) -> bool:
        """Whether each channel has a name of its own, below that of the URL."""

    def url_for(self, channel: str) -> str:
        """Return the URL of a channel, for Destinations."""


class TransportLogin(Protocol):
    """The login of a transport: a struct whose fields all have defaults."""

    @property
    def is_given(self) -> bool:
        """Whether there is an account, and not only the defaults."""

    def check(self) -> None:
        """Check all without a connection, or raise ConfigurationError."""


class PushTransport(Protocol):
    """What a transport has beside its parts."""

    @property
    def name(self) -> str:
        """The name of the protocol in messages, as `XMPP`."""

    @property
    def needs(self) -> str:
        """What a user has to do for a login, as `name an account, as user@example.org`."""

    @property
    def login(self) -> type[Any]:
        """The type of the login, a struct that is a `TransportLogin`."""

    def place(self, url: str) -> ChannelPlace:
        """Read the URL of a broker, or raise ConfigurationError."""


def scheme_of(url: str) -> str:
    """Return the scheme of a URL in lower case."""
    return url.partition(":")[0].lower()


def offered_schemes() -> tuple[str, ...]:
    """Return the schemes that installed packages offer."""
    return tuple(scheme for scheme in offered("transports") if scheme not in _BUILT_IN)


def transport_of(scheme: str) -> Any:
    """Return the transport of a scheme, a `PushTransport`; MissingExtension if there is none."""
    return load_extension("transports", scheme, f"a transport for URLs that begin with {scheme}:")


def offered_transport(url: str) -> Any | None:
    """Return the transport of a URL; None if it is built in, or no such scheme is known.

    Raises:
        MissingExtension: The package for it is not installed.
    """
    scheme = scheme_of(url)
    if scheme in _BUILT_IN or not (
        scheme in offered("transports") or extra_of("transports", scheme)
    ):
        return None
    return transport_of(scheme)


def place_of(url: str) -> ChannelPlace | None:
    """Return the broker that a URL names; None if it is that of another hub."""
    if is_broker_url(url):
        return parse_broker(url)
    transport: PushTransport | None = offered_transport(url)
    return None if transport is None else transport.place(url)


def logins_of_settings(scheme: str, settings: Struct) -> dict[str, Struct]:
    """Return the login by its scheme, from settings such as `xmpp_jid`; empty if none is given."""
    prefix = f"{scheme}_"
    given = {
        name.removeprefix(prefix): value
        for name in settings.__struct_fields__
        if name.startswith(prefix) and (value := getattr(settings, name)) is not None
    }
    given.pop("password_file", None)  # it was read
    return {scheme: transport_of(scheme).login(**given)} if given else {}


def has_account(logins: Mapping[str, Any], scheme: str) -> bool:
    """Return whether there is a login for URLs of a scheme."""
    login = logins.get(scheme)
    return login is not None and login.is_given


def check_logins(logins: Mapping[str, Any]) -> None:
    """Check logins by scheme, or raise ConfigurationError."""
    for scheme, login in logins.items():
        kind = transport_of(scheme).login
        if not isinstance(login, kind):
            raise ConfigurationError(f"{scheme} is {login!r}; give {_with_article(kind.__name__)}")
        login.check()


def _with_article(name: str) -> str:
    return f"{'an' if name[0] in 'AEFHILMNORSX' else 'a'} {name}"
