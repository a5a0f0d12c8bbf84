"""How changes may be heard of."""

from __future__ import annotations

from enum import StrEnum


class Via(StrEnum):
    """How changes are heard of: by push where there is some, by one kind of it, or by polling."""

    AUTO = "auto"
    WEBSOCKET = "websocket"
    MQTT = "mqtt"
    WEBSUB = "websub"
    POLL = "poll"


#: What a hub has to speak.
NAMES = {Via.WEBSOCKET: "WebSocket", Via.MQTT: "MQTT", Via.WEBSUB: "WebSub"}
