"""The transports by which changes may arrive."""

from __future__ import annotations

from enum import StrEnum


class Via(StrEnum):
    """How changes arrive: by any push that is offered, by one transport of it, or by polling."""

    AUTO = "auto"
    WEBSOCKET = "websocket"
    MQTT = "mqtt"
    XMPP = "xmpp"
    WEBSUB = "websub"
    POLL = "poll"


#: The protocol that a hub must speak, as it is written.
NAMES = {Via.WEBSOCKET: "WebSocket", Via.MQTT: "MQTT", Via.XMPP: "XMPP", Via.WEBSUB: "WebSub"}
