"""The document in which a hub states how it can be reached (docs/protocol.md)."""

from __future__ import annotations

from msgspec import Struct

#: Where it is, below the URL of the hub.
HUB_DOCUMENT = ".well-known/rsnotify-hub"


class HubDocument(Struct, frozen=True, omit_defaults=True):
    """The endpoints of a hub.

    Args:
        websub: Where WebSub subscribers and publishers send their requests.
        websocket: Its WebSocket.
        events: Its event streams, without the `topic`.
        mqtt: The broker at which it publishes, for Destinations, if there is one. Without a path,
            or with one that ends in `/`, the name of a channel's topic is added (docs/mqtt.md).
        xmpp: The PubSub service at which it publishes, likewise without a node (docs/xmpp.md).
    """

    websub: str | None = None
    websocket: str | None = None
    events: str | None = None
    mqtt: str | None = None
    xmpp: str | None = None
