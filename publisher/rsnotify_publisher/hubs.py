"""The hubs of a Source: where fragments are sent, and what the documents advertise."""

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
from rsnotify.runtime.transports import offered_transport, place_of, scheme_of

#: Prefix of the URL of a hub that is POSTed to, though it may end in a slash.
_POSTED = "websub+"
_WEBSOCKET = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


class Hub(Struct, frozen=True):
    """One hub, which may be a cluster of several nodes; `parse_hub` reads it from a URL.

    Args:
        uri: Where fragments are sent, at the first node: by POST to `http(s)`, over a WebSocket to
            `ws(s)`, to a broker with the schemes of MQTT, and to others as installed packages
            offer.
        advertised: The URLs for Destinations, WebSub first.
        token: The bearer token that this hub requires from a Source.
        login: The login at a broker, of the type that its transport has.
        version: The version of MQTT.
        other_nodes: Where fragments go at the other nodes, one of which is used when another fails.
        documents: Where its nodes state how the hub can be reached, if they do.
    """

    uri: str
    advertised: tuple[str, ...]
    token: str | None = None
    login: Any = ANONYMOUS
    version: str = "5"
    other_nodes: tuple[str, ...] = ()
    documents: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Leave the token out, since a representation may end up in logs."""
        return f"Hub({self.uri!r})"

    @property
    def headers(self) -> dict[str, str]:
        """The header with the token, if there is one."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    @property
    def nodes(self) -> tuple[str, ...]:
        """The URIs of all nodes."""
        return (self.uri, *self.other_nodes)

    def at(self, node: str) -> Hub:
        """Return the hub as one of its nodes."""
        return replace(self, uri=node, other_nodes=())


class HubFailure(RsnotifyError):
    """A hub could not be fed just now.

    Args:
        hub: Its URI.
        reason: What happened, as a clause.
        retry_after: Seconds that the hub requested to wait.
        remedy: What the user has to change, as a clause; None if it may pass by itself.
        everywhere: Whether every node of the hub would answer the same.
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
    """Read a hub as a user names it.

    Args:
        url: `http(s)://host/path` is POSTed to and `ws(s)://host/path` is a WebSocket, each
            as it is. `http(s)://host`, or anything else that ends in `/`, is the base of an
            rsnotify hub: both its URLs are advertised, and the broker that it states, and
            fragments go over its WebSocket.
            `websub+http(s)://host/path/` is POSTed to without `websub+`, whatever it ends in: for
            other hubs. `mqtt(s)://host` is an MQTT broker (docs/mqtt.md), and
            `xmpp:pubsub.host` a PubSub service (docs/xmpp.md). Several such URLs with commas
            between them are the nodes of one hub: one of them is fed, and another one when it
            fails. All are advertised.
        token: The bearer token for this hub.
        login: The login at a broker.
        version: The version of MQTT, `5` or `3.1.1`.
        logins: The logins of other transports, by the scheme of their URLs: an `XmppLogin` as
            `xmpp`.

    Raises:
        ConfigurationError: It is not the URL of a hub, or it holds a password; or no header can
            carry the token, the login is unusable, or the nodes have different transports.
    """
    mqtt = partial(_broker, login=login, version=version)
    nodes = [_parse_node(each.strip(), token, mqtt, logins) for each in url.split(",")]
    first, *others = dict.fromkeys(nodes)
    for other in others:
        if _transport(other) != _transport(first):
            raise ConfigurationError(
                f"{first.uri} and {other.uri} are not nodes of one hub, since their transports "
                "differ; name two hubs"
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
    return scheme.removesuffix("s") if scheme in _WEBSOCKET else scheme


def _parse_node(
    url: str, token: str | None, mqtt: Callable[[str], Hub], logins: Mapping[str, Struct]
) -> Hub:
    if is_broker_url(url):
        return mqtt(url)
    transport = None if url.startswith(_POSTED) else offered_transport(url)
    if transport is not None:
        transport.place(url)
        login = logins.get(scheme_of(url), transport.login())
        login.check()
        return Hub(url, (url,), login=login)
    given, url = url, url.removeprefix(_POSTED)
    try:
        parts = urlsplit(url)
        schemes = _WEBSOCKET if given == url else ("http", "https")
        usable = parts.scheme in schemes and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigurationError(
            f"{given!r} is not a hub; write http(s)://host, websub+http(s)://host/path, "
            "ws(s)://host/path, mqtt(s)://host or xmpp:pubsub.host"
        )
    if parts.username or parts.password:
        raise ConfigurationError("a hub's URL holds a user name; give a token instead")
    if parts.query or parts.fragment:
        raise ConfigurationError(f"{url!r} has a query or fragment; a hub is named without them")
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
    """Read the hubs of a Source as a user names them, as `parse_hub` does.

    `advertise` names their URLs for Destinations, if these differ, for example behind a proxy.

    Raises:
        ConfigurationError: A URL is not that of a hub, or there is no hub to advertise.
    """
    hubs = tuple(parse_hub(url, token, login=login, version=version, logins=logins) for url in urls)
    for hub in hubs:
        transport = offered_transport(hub.uri)
        if transport is not None and not hub.login.is_given:
            raise ConfigurationError(f"to publish over {transport.name}, {transport.needs}")
    if not advertise:
        return hubs
    if not hubs:
        raise ConfigurationError("a hub is to be advertised, but none is named to push to")
    urls = advertised(tuple(map(parse_hub, advertise)))
    return tuple(replace(hub, advertised=urls, documents=()) for hub in hubs)


def check_token(token: str | None) -> None:
    """Refuse a token with a control character, without showing it: no header can carry it."""
    if token is not None and not token.isprintable():
        raise ConfigurationError("the token has a line break or another control character")


def _broker(url: str, login: BrokerLogin, version: str) -> Hub:
    parse_broker(url)
    login.check()
    if version not in ("5", "3.1.1"):
        raise ConfigurationError(f"{version!r} is not a version of MQTT; use 5 or 3.1.1")
    return Hub(url, (url,), login=login, version=version)


def _rsnotify_hub(parts: SplitResult, token: str | None) -> Hub:
    base = f"://{parts.netloc}{parts.path or '/'}"
    websocket = f"{_WEBSOCKET[parts.scheme]}{base}ws"
    if parts.scheme.startswith("ws"):
        return Hub(websocket, (websocket,), token)
    documents = (f"{parts.scheme}{base}{HUB_DOCUMENT}",)
    urls = (f"{parts.scheme}{base}websub", websocket)
    return Hub(websocket, urls, token, documents=documents)


def url_for_topic(url: str, topic: str) -> str:
    """Return the URL of a hub for a channel: a broker's names its topic or node."""
    broker = place_of(url)
    return url if broker is None else broker.url_for(topic)


def advertised(hubs: tuple[Hub, ...]) -> tuple[str, ...]:
    """Return all URLs for Destinations, WebSub's first, since plain WebSub uses the first."""
    urls = dict.fromkeys(url for hub in hubs for url in hub.advertised)
    return tuple(sorted(urls, key=lambda url: not url.startswith("http")))
