"""By which ways a Destination can hear of the changes of a topic, the best first."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.format.offer import Offer
from rsnotify.runtime.mqtt.names import SCHEMES, parse_broker
from rsnotify.selection.push_selection import EVERYTHING, PushSelection
from rsnotify_subscriber.fetching.sessions import Sessions
from rsnotify_subscriber.push.mqtt import MqttOptions, MqttTransport
from rsnotify_subscriber.push.transport import Transport
from rsnotify_subscriber.push.websocket import WebSocketTransport
from rsnotify_subscriber.push.websub.callbacks import Callbacks
from rsnotify_subscriber.push.websub.transport import WebSubTransport
from rsnotify_subscriber.via import Via

#: How many hubs of a kind are used, however many a Source names: each costs tries, and time.
MOST = 16
_AS_A_URI = re.compile(r"[\x21-\x7e]+")


class Endpoint(Struct, frozen=True):
    """One way to hear of the changes of a topic. Two that are the same are equal.

    Args:
        kind: What is spoken.
        topic: The URI of the topic.
        hubs: The hubs that may be spoken to; a WebSub hub may also be named by the topic.
        make: Makes the transport of such a way.
        select: What the hub is asked for, if it can leave out the rest.
    """

    kind: Via
    topic: str
    hubs: tuple[str, ...]
    make: Callable[[Endpoint], Transport]
    select: PushSelection = EVERYTHING

    @property
    def hub(self) -> str:
        """The hub's URI, as it is named; the topic's where the topic has to be asked for it."""
        return next(iter(self.hubs), self.topic)

    def transport(self) -> Transport:
        """Make what speaks to the hub."""
        return self.make(self)


class Transports:
    """What one Destination can use, for any of a Source's topics.

    Args:
        via: What the user wants.
        sessions: The HTTP client sessions; they also tell which hosts are trusted.
        callbacks: Where hubs reach us; None where they do not.
        brokered: How one hears of changes through MQTT brokers.
        select: Which changes are of interest.
    """

    def __init__(
        self,
        via: Via,
        sessions: Sessions,
        callbacks: Callbacks | None,
        brokered: MqttOptions,
        select: PushSelection = EVERYTHING,
    ) -> None:
        self._select = select
        self._unasked: set[str] = set()
        self._via = via
        self._sessions = sessions
        self._callbacks = callbacks
        self._brokered = brokered

    def to_changes(self, offer: Offer) -> list[Endpoint]:
        """Return the ways to the changes of a set; none where only polling tells of them."""
        if offer.channel is not None:
            return self.of(offer.channel, offer.hubs, self._select)
        # Where no document names a hub, the topic may; this is looked for only when it is asked.
        return self._to_websub(offer.change_list, ()) if offer.change_list is not None else []

    def to_notices(self, offer: Offer) -> list[Endpoint]:
        """Return the ways to what is told of the documents of a set, beside those to its changes.

        A broker may have one name for all: then what comes under it is changes. And it keeps one
        session for one connection.
        """
        if offer.framework is None:
            return []
        taken = {_name(way) for way in self.to_changes(offer) if way.kind is Via.MQTT}
        ways = []
        for way in self.of(offer.framework, offer.framework_hubs):
            if way.kind is not Via.MQTT:
                ways.append(way)
            elif _name(way) not in taken:
                ways.append(replace(way, make=self._mqtt_beside))
        return ways

    def of(
        self, topic: str, hubs: Sequence[str], select: PushSelection = EVERYTHING
    ) -> list[Endpoint]:
        """Return the ways to a topic, the best first.

        Args:
            topic: Its URI.
            hubs: The hubs that a document names for it.
            select: What of it is of interest.
        """
        return [
            *self._to_websockets(topic, hubs, select),
            *self._to_brokers(topic, hubs, select),
            *self._to_websub(topic, hubs),
        ]

    @property
    def any(self) -> bool:
        """Whether anything is to be heard by push."""
        return self._via is not Via.POLL

    def _wants(self, kind: Via) -> bool:
        return self._via in (Via.AUTO, kind)

    # Each kind

    def _to_websockets(
        self, topic: str, hubs: Sequence[str], select: PushSelection
    ) -> list[Endpoint]:
        if not self._wants(Via.WEBSOCKET):
            return []
        named = _by(hubs, "wss", "ws")
        return [Endpoint(Via.WEBSOCKET, topic, (hub,), self._websocket, select) for hub in named]

    def _to_brokers(self, topic: str, hubs: Sequence[str], select: PushSelection) -> list[Endpoint]:
        if not self._wants(Via.MQTT):
            return []
        brokers = self._brokered.brokers(_by(hubs, *SCHEMES))
        return [Endpoint(Via.MQTT, topic, (url,), self._mqtt, select) for url in brokers]

    def _to_websub(self, topic: str, hubs: Sequence[str]) -> list[Endpoint]:
        """Return the one way by WebSub, as it is the topic that says who its hubs are."""
        if not self._wants(Via.WEBSUB) or self._callbacks is None:
            return []
        named = _by(hubs, "https") + _by(hubs, "http")  # WebSub §8.2
        if not _by([topic], "https", "http") or not (named or self._via is Via.WEBSUB):
            return []
        return [Endpoint(Via.WEBSUB, topic, named, self._websub)]

    def _websocket(self, way: Endpoint) -> Transport:
        return WebSocketTransport(
            way.hub,
            way.topic,
            trusts=self._sessions.trusts,
            select=way.select,
            credentials=self._sessions.credentials_for(way.hub),
        )

    def _mqtt(self, way: Endpoint) -> Transport:
        return self._by_broker(way, self._brokered)

    def _mqtt_beside(self, way: Endpoint) -> Transport:
        return self._by_broker(way, replace(self._brokered, session=""))

    def _by_broker(self, way: Endpoint, brokered: MqttOptions) -> Transport:
        return MqttTransport(
            parse_broker(way.hub),
            way.topic,
            brokered,
            trusts=self._sessions.trusts,
            select=way.select,
            unasked=self._unasked,
        )

    def _websub(self, way: Endpoint) -> Transport:
        assert self._callbacks is not None
        return WebSubTransport(
            way.topic, way.hubs, sessions=self._sessions, callbacks=self._callbacks
        )


def _name(way: Endpoint) -> tuple[str, str]:
    """Return where a way leads, among the topics of a broker."""
    broker = parse_broker(way.hub)
    return broker.url, broker.topic(way.topic)


def _by(hubs: Sequence[str], *schemes: str) -> tuple[str, ...]:
    """Return the first of these schemes, each once, but for what is no URI."""
    uris = filter(_AS_A_URI.fullmatch, dict.fromkeys(hubs))
    return tuple(islice((hub for hub in uris if hub.partition(":")[0] in schemes), MOST))
