"""The endpoints at which a Destination can receive a topic, best first."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError
from rsnotify.format.offer import Offer
from rsnotify.runtime.mqtt_broker import SCHEMES, parse_broker
from rsnotify.runtime.shared_websockets import SharedWebSockets
from rsnotify.runtime.transport_extensions import (
    ChannelPlace,
    PushTransport,
    has_account,
    place_of,
    transport_of,
)
from rsnotify.selection import EVERYTHING, PushSelection
from rsnotify_subscriber.fetching.sessions import Sessions
from rsnotify_subscriber.push.hub_dialer import AddressMemory
from rsnotify_subscriber.push.mqtt_transport import MqttOptions, MqttTransport
from rsnotify_subscriber.push.transport import Transport
from rsnotify_subscriber.push.websocket_transport import HubWebSocket, WebSocketTransport
from rsnotify_subscriber.push.websub_callbacks import Callbacks
from rsnotify_subscriber.push.websub_transport import WebSubTransport
from rsnotify_subscriber.push_options import Via

#: Maximum number of hubs tried of each kind, because each attempt takes time.
MAX_HUBS_PER_KIND = 16
_URI = re.compile(r"[\x21-\x7e]+")


class Endpoint(Struct, frozen=True):
    """A hub, and the transport for receiving a topic from it. Compares by value.

    Args:
        hubs: The hubs that documents name. For WebSub, the topic may name others.
        make_transport: Creates the transport, given the endpoint.
        select: The part of the topic that the hub should send, if it can omit the rest.
    """

    kind: Via
    topic: str
    hubs: tuple[str, ...]
    make_transport: Callable[[Endpoint], Transport]
    select: PushSelection = EVERYTHING

    @property
    def hub(self) -> str:
        """The URI of the hub, or the topic's URI if the topic itself names the hub."""
        return next(iter(self.hubs), self.topic)


class DestinationTransport(PushTransport, Protocol):
    """A transport from an installed package, as a Destination uses it."""

    def receive_from(self, url: str, topic: str, login: Any, /) -> Transport:
        """Return a transport that receives the fragments of a topic from a broker."""


@dataclass(eq=False)
class EndpointFactory:
    """Creates the endpoints of one Destination, for any topic of its Source.

    `websockets` are the connections that it shares with other Destinations.
    """

    via: Via
    sessions: Sessions
    callbacks: Callbacks | None
    mqtt: MqttOptions
    #: The logins for the transports of installed packages, by scheme.
    logins: Mapping[str, Struct] = field(default_factory=dict)
    select: PushSelection = EVERYTHING
    websockets: SharedWebSockets[HubWebSocket] | None = None
    _without_selections: set[str] = field(default_factory=set, init=False)
    _memory: AddressMemory = field(default_factory=AddressMemory, init=False)

    def change_endpoints(self, offer: Offer) -> list[Endpoint]:
        """Return the endpoints for the changes of a set; none if changes can only be polled."""
        if offer.channel is not None:
            return self.endpoints(offer.channel, offer.hubs, self.select)
        # If no document names a hub, the Change List may, but it is read only for Via.WEBSUB.
        return self._websub(offer.change_list, ()) if offer.change_list is not None else []

    def notice_endpoints(self, offer: Offer) -> list[Endpoint]:
        """Return the endpoints for notifications about documents.

        If a broker uses one name for both topics, its messages are changes, so the endpoint is left
        out. The others use no MQTT session, because a broker keeps it for only one connection.
        """
        if offer.framework is None:
            return []
        changes = self.change_endpoints(offer)
        taken = {place for one in changes if (place := _place_at_broker(one))}
        return [
            replace(one, make_transport=self._make_mqtt_without_session)
            if one.kind is Via.MQTT
            else one
            for one in self.endpoints(offer.framework, offer.framework_hubs)
            if _place_at_broker(one) not in taken
        ]

    def endpoints(
        self, topic: str, hubs: Sequence[str], select: PushSelection = EVERYTHING
    ) -> list[Endpoint]:
        """Return the endpoints for a topic at the hubs that documents name, best first."""
        wss = _by_scheme(hubs, "wss", "ws") if self._uses(Via.WEBSOCKET) else ()
        uses_mqtt = self._uses(Via.MQTT)
        brokers = self.mqtt.brokers(_by_scheme(hubs, *SCHEMES)) if uses_mqtt else ()
        return [
            *(Endpoint(Via.WEBSOCKET, topic, (hub,), self._make_websocket, select) for hub in wss),
            *(Endpoint(Via.MQTT, topic, (url,), self._make_mqtt, select) for url in brokers),
            *(
                Endpoint(Via(scheme), topic, (url,), self._make_installed)
                for scheme in self.logins
                if self._uses(Via(scheme)) and has_account(self.logins, scheme)
                for url in _by_scheme(hubs, scheme)
                if _place(url) is not None
            ),
            *self._websub(topic, hubs),
        ]

    def _websub(self, topic: str, hubs: Sequence[str]) -> list[Endpoint]:
        """Return at most one endpoint: the topic itself names its hubs."""
        if not self._uses(Via.WEBSUB) or self.callbacks is None:
            return []
        named = _by_scheme(hubs, "https") + _by_scheme(hubs, "http")  # WebSub §8.2
        if not _by_scheme([topic], "https", "http") or not (named or self.via is Via.WEBSUB):
            return []
        return [Endpoint(Via.WEBSUB, topic, named, self._make_websub)]

    def _uses(self, kind: Via) -> bool:
        return self.via in (Via.AUTO, kind)

    # Transports

    def _make_websocket(self, endpoint: Endpoint) -> Transport:
        return WebSocketTransport(
            endpoint.hub,
            endpoint.topic,
            allows_any_address=self.sessions.allows_any_address,
            select=endpoint.select,
            credentials=self.sessions.credentials_for(endpoint.hub),
            memory=self.websockets.memory if self.websockets else self._memory,
            shared=self.websockets,
        )

    def _make_mqtt_without_session(self, endpoint: Endpoint) -> Transport:
        return self._make_mqtt(endpoint, keep_session=False)

    def _make_mqtt(self, endpoint: Endpoint, *, keep_session: bool = True) -> Transport:
        return MqttTransport(
            parse_broker(endpoint.hub),
            endpoint.topic,
            self.mqtt if keep_session else replace(self.mqtt, session=""),
            allows_any_address=self.sessions.allows_any_address,
            select=endpoint.select,
            without_selections=self._without_selections,
            memory=self._memory,
        )

    def _make_installed(self, endpoint: Endpoint) -> Transport:
        transport: DestinationTransport = transport_of(endpoint.kind)
        login = self.logins[endpoint.kind]
        return transport.receive_from(endpoint.hub, endpoint.topic, login)

    def _make_websub(self, endpoint: Endpoint) -> Transport:
        assert self.callbacks is not None
        return WebSubTransport(
            endpoint.topic, endpoint.hubs, sessions=self.sessions, callbacks=self.callbacks
        )


def _place_at_broker(endpoint: Endpoint) -> tuple[str, str] | None:
    """Return the broker of an endpoint and its name for the topic, or None without a broker."""
    place = _place(endpoint.hub)
    return None if place is None else (place.url, place.url_for(endpoint.topic))


def _place(url: str) -> ChannelPlace | None:
    """Return the broker that a URL names, or None if it names none."""
    try:
        return place_of(url)
    except ConfigurationError:
        return None


def _by_scheme(hubs: Sequence[str], *schemes: str) -> tuple[str, ...]:
    """Return the first URIs with these schemes, without duplicates."""
    uris = filter(_URI.fullmatch, dict.fromkeys(hubs))
    found = (hub for hub in uris if hub.partition(":")[0] in schemes)
    return tuple(islice(found, MAX_HUBS_PER_KIND))
