"""Which way fragments come, of those that a Source offers and that can be used here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

from rsnotify.offer import Offer
from rsnotify_subscriber.push.transport import Transport

#: Gives the way to a hub of an offer; None where it has none of this kind.
Way = Callable[[Offer], Transport | None]


class Via(StrEnum):
    """How changes are heard of: by push where there is some, by one kind of it, or by polling."""

    AUTO = "auto"
    WEBSOCKET = "websocket"
    MQTT = "mqtt"
    WEBSUB = "websub"
    POLL = "poll"


#: What a hub has to speak.
NAMES = {Via.WEBSOCKET: "WebSocket", Via.MQTT: "MQTT", Via.WEBSUB: "WebSub"}


def choose(via: Via, ways: Mapping[Via, Way], offer: Offer) -> Transport | None:
    """Return the way to a hub.

    Args:
        via: What the user wants.
        ways: Those that can be used here, the best first.
        offer: What the Source offers.

    Returns:
        None where changes are heard of by polling alone.
    """
    if via is Via.POLL:
        return None
    usable = ways.values() if via is Via.AUTO else [ways[via]]
    return next((transport for way in usable if (transport := way(offer))), None)
