"""Feeds a hub over the transport for its URL: HTTP, WebSocket, MQTT or an installed extension.

Each transport feeds a hub until an error occurs, and then raises `HubFailure` or `Unavailable`.
"""

from __future__ import annotations

from typing import Protocol

import aiohttp
from websockets.exceptions import InvalidStatus, WebSocketException

from rsnotify.runtime.addresses import Dialer
from rsnotify.runtime.mqtt_broker import is_broker_url
from rsnotify.runtime.reasons import reason_of
from rsnotify.runtime.tasks import first_cause
from rsnotify.runtime.transport_extensions import PushTransport, offered_transport
from rsnotify_publisher.hubs import Hub, HubFailure
from rsnotify_publisher.push.http_post import (
    TOO_MANY_REQUESTS,
    feed_by_post,
    remedy,
    seconds_to_wait,
)
from rsnotify_publisher.push.hub_feed import FragmentFeed, HubFeed
from rsnotify_publisher.push.mqtt import feed_by_mqtt
from rsnotify_publisher.push.websocket import HubConnections, feed_by_websocket

_NETWORK_ERRORS = (OSError, aiohttp.ClientError, WebSocketException)


class SourceTransport(PushTransport, Protocol):
    """A transport over which a Source can publish."""

    async def feed(self, hub: Hub, topic: str, feed: FragmentFeed, dialer: Dialer, /) -> None:
        """Send the fragments that a hub lacks, and confirm accepted ones, until an error occurs.

        Args:
            hub: The hub, with its login.
            topic: The URI of the channel.
            feed: Yields fragments, and records which ones the hub has accepted.
            dialer: Opens connections to allowed addresses.

        Raises:
            Unavailable: The hub cannot be reached, or it refuses the connection or a fragment.
        """


async def feed_hub(
    hub: Hub, topic: str, feed: HubFeed, dialer: Dialer, websockets: HubConnections
) -> None:
    """Feed a hub over the transport for its URL. Always raises HubFailure or Unavailable."""
    transport: SourceTransport | None
    try:
        if is_broker_url(hub.uri):
            await feed_by_mqtt(hub, topic, feed, dialer)
        elif hub.uri.startswith("http"):
            await feed_by_post(hub, topic, feed, dialer)
        elif (transport := offered_transport(hub.uri)) is not None:
            await transport.feed(hub, topic, feed, dialer)
        else:
            await feed_by_websocket(hub, topic, feed, dialer, websockets)
    except (*_NETWORK_ERRORS, ExceptionGroup) as error:
        cause = first_cause(error)
        if isinstance(cause, InvalidStatus):
            answer = cause.response
            location = answer.headers.get("Location", "")
            raise HubFailure(
                hub.uri,
                f"it answered {answer.status_code} {answer.reason_phrase}",
                seconds_to_wait(answer.headers),
                remedy=remedy(hub, topic, answer.status_code, location),
                everywhere=answer.status_code == TOO_MANY_REQUESTS,
            ) from error
        if isinstance(cause, _NETWORK_ERRORS):
            raise HubFailure(hub.uri, reason_of(cause, str(cause))) from error
        raise cause from None
