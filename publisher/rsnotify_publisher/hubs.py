"""The hubs of a Source: where it sends fragments, and which URLs its documents advertise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError, RsnotifyError
from rsnotify.format.offer import HUB_DOCUMENT
from rsnotify.runtime.mqtt_broker import ANONYMOUS, BrokerLogin, is_broker_url, parse_broker
from rsnotify.runtime.transport_extensions import offered_transport, place_of, scheme_of

#: The prefix for a hub's URL to which fragments are sent by POST, even if it ends in a slash.
_POST_PREFIX = "websub+"
#: The scheme of a hub's WebSocket URL, keyed by the scheme of its base URL.
_WEBSOCKET_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


class Hub(Struct, frozen=True):
    """A hub, which may be a cluster of several nodes. `parse_hub` creates it from a URL.

    Args:
        uri: The URI to which fragments are sent at the first node. Its scheme selects the
            transport: POST for `http(s)`, WebSocket for `ws(s)`, MQTT for `mqtt(s)`. Installed
            packages may offer others.
        advertised: The URLs for Destinations, WebSub first.
        token: The bearer token that this hub requires from a Source.
        login: The login at a broker, whose type depends on the transport.
        version: The version of MQTT.
        other_nodes: The URIs to which fragments are sent at the other nodes, when a node fails.
        documents: The URLs of the documents in which the nodes state how to reach the hub, if any.
    """

    uri: str
    advertised: tuple[str, ...]
    token: str | None = None
    login: Any = ANONYMOUS
    version: str = "5"
    other_nodes: tuple[str, ...] = ()
    documents: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Return the URI without the token, since the result may end up in logs."""
        return f"Hub({self.uri!r})"

    @property
    def headers(self) -> dict[str, str]:
        """The request header with the token, if there is one."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    @property
    def nodes(self) -> tuple[str, ...]:
        """The URIs of all nodes."""
        return (self.uri, *self.other_nodes)

    def at(self, node: str) -> Hub:
        """Return one of the nodes as a hub without other nodes."""
        return replace(self, uri=node, other_nodes=())


class HubFailure(RsnotifyError):
    """An attempt to feed a hub failed.

    Args:
        hub: The hub's URI.
        reason: The cause, as a clause.
        retry_after: The delay that the hub requested, in seconds.
        remedy: What the user must do, as a clause; None if a retry may help.
        everywhere: Whether every node of the hub would give the same answer.
    """

    def __init__(
        self,
        hub: str,
        reason: str,
        retry_after: float = 0.0,
        *,
        remedy: str | None = None,
        everywhere: bool = False,
    ) -> None:
        self.hub = hub
        self.reason = reason
        self.retry_after = retry_after
        self.remedy = remedy
        self.everywhere = everywhere
        super().__init__(hub, reason, retry_after)

    def __str__(self) -> str:
        text = f"{self.hub}: {self.reason}"
        return text if self.remedy is None else f"{text}; {self.remedy}"


def parse_hub(
    url: str,
    token: str | None = None,
    *,
    login: BrokerLogin = ANONYMOUS,
    version: str = "5",
    logins: Mapping[str, Struct] = MappingProxyType({}),
) -> Hub:
    """Create a hub from its URL.

    Args:
        url: The URL of the hub. Fragments are sent by POST to `http(s)://host/path`, and over a
            WebSocket to `ws(s)://host/path`; these URLs are used exactly as given.
            `http(s)://host`, or any other URL that ends in `/`, is the base URL of an rsnotify hub:
            fragments are sent over its WebSocket. The hub's WebSub and WebSocket URLs, and the
            broker that it states, are advertised. For other hubs, `websub+http(s)://host/path/`
            means that fragments are sent by POST to the URL without `websub+`. `mqtt(s)://host` is
            an MQTT broker (docs/mqtt.md), and `xmpp:pubsub.host` is a PubSub service
            (docs/xmpp.md). Several URLs separated by commas are the nodes of one hub: one of them
            is fed, and the next one when it fails. All are advertised.
        token: The bearer token for this hub.
        login: The login at a broker.
        version: The version of MQTT, `5` or `3.1.1`.
        logins: The logins for other transports, keyed by URL scheme, such as an `XmppLogin` for
            `xmpp`.

    Raises:
        ConfigurationError: The URL is not the URL of a hub, or contains a password; the token
            contains a control character; the login is unusable; or the nodes have different
            transports.
    """
    mqtt = partial(_mqtt_hub, login=login, version=version)
    nodes = [_parse_node(each.strip(), token, mqtt, logins) for each in url.split(",")]
    first, *others = dict.fromkeys(nodes)
    for other in others:
        if _transport(other) != _transport(first):
            raise ConfigurationError(
                f"{first.uri} and {other.uri} have different transports, so they are not nodes of "
                "one hub; give them as two hubs"
            )
    return replace(
        first,
        advertised=advertised((first, *others)),
        other_nodes=tuple(other.uri for other in others),
        documents=tuple(document for node in (first, *others) for document in node.documents),
    )


def _transport(hub: Hub) -> str:
    if is_broker_url(hub.uri):
        return "mqtt"
    scheme = scheme_of(hub.uri)
    return scheme.removesuffix("s") if scheme in _WEBSOCKET_SCHEMES else scheme


def _parse_node(
    url: str, token: str | None, mqtt: Callable[[str], Hub], logins: Mapping[str, Struct]
) -> Hub:
    if is_broker_url(url):
        return mqtt(url)
    transport = None if url.startswith(_POST_PREFIX) else offered_transport(url)
    if transport is not None:
        transport.place(url)
        login = logins.get(scheme_of(url), transport.login())
        login.check()
        return Hub(url, (url,), login=login)
    given, url = url, url.removeprefix(_POST_PREFIX)
    try:
        parts = urlsplit(url)
        schemes = _WEBSOCKET_SCHEMES if given == url else ("http", "https")
        usable = parts.scheme in schemes and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigurationError(
            f"{given!r} is not the URL of a hub; write http(s)://host, websub+http(s)://host/path, "
            "ws(s)://host/path, mqtt(s)://host or xmpp:pubsub.host"
        )
    if parts.username or parts.password:
        raise ConfigurationError(
            "a hub's URL contains a user name or password; use a token instead"
        )
    if parts.query or parts.fragment:
        raise ConfigurationError(f"{url!r} has a query or fragment; remove it from the hub's URL")
    check_token(token)
    if given != url or (parts.path and not parts.path.endswith("/")):
        return Hub(url, (url,), token)
    return _rsnotify_hub(parts, token)


def parse_hubs(
    urls: Sequence[str],
    token: str | None = None,
    advertise: Sequence[str] = (),
    *,
    login: BrokerLogin = ANONYMOUS,
    version: str = "5",
    logins: Mapping[str, Struct] = MappingProxyType({}),
) -> tuple[Hub, ...]:
    """Create the hubs of a Source from their URLs; see `parse_hub`.

    `advertise` are the hubs' URLs for Destinations if they differ, for example behind a proxy.

    Raises:
        ConfigurationError: A URL is not the URL of a hub, a hub lacks a required login, or URLs are
            advertised although there is no hub.
    """
    hubs = tuple(parse_hub(url, token, login=login, version=version, logins=logins) for url in urls)
    for hub in hubs:
        transport = offered_transport(hub.uri)
        if transport is not None and not hub.login.is_given:
            raise ConfigurationError(f"to publish over {transport.name}, {transport.needs}")
    if not advertise:
        return hubs
    if not hubs:
        raise ConfigurationError("there is a hub to advertise, but no hub to push to; add one")
    urls = advertised(tuple(map(parse_hub, advertise)))
    return tuple(replace(hub, advertised=urls, documents=()) for hub in hubs)


def check_token(token: str | None) -> None:
    """Raise ConfigurationError if a token contains a control character, which headers cannot.

    The message does not show the token.
    """
    if token is not None and not token.isprintable():
        raise ConfigurationError("the token contains a line break or another control character")


def _mqtt_hub(url: str, login: BrokerLogin, version: str) -> Hub:
    parse_broker(url)
    login.check()
    if version not in ("5", "3.1.1"):
        raise ConfigurationError(f"{version!r} is not a supported version of MQTT; use 5 or 3.1.1")
    return Hub(url, (url,), login=login, version=version)


def _rsnotify_hub(parts: SplitResult, token: str | None) -> Hub:
    base = f"://{parts.netloc}{parts.path or '/'}"
    websocket = f"{_WEBSOCKET_SCHEMES[parts.scheme]}{base}ws"
    if parts.scheme.startswith("ws"):
        return Hub(websocket, (websocket,), token)
    documents = (f"{parts.scheme}{base}{HUB_DOCUMENT}",)
    urls = (f"{parts.scheme}{base}websub", websocket)
    return Hub(websocket, urls, token, documents=documents)


def url_for_topic(url: str, topic: str) -> str:
    """Return a hub's URL for a channel. The channel's topic or node is added to a broker's URL."""
    broker = place_of(url)
    return url if broker is None else broker.url_for(topic)


def advertised(hubs: tuple[Hub, ...]) -> tuple[str, ...]:
    """Return all URLs for Destinations, WebSub first, since plain WebSub clients use the first."""
    urls = dict.fromkeys(url for hub in hubs for url in hub.advertised)
    return tuple(sorted(urls, key=lambda url: not url.startswith("http")))
