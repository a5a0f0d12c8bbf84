"""Feeds a hub over the transport for its URI's scheme: HTTP, WebSocket, a broker or an extension.

Each transport feeds a hub until an error occurs, and then raises `HubFailure`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from typing import Protocol

import aiohttp
from websockets.exceptions import InvalidStatus, WebSocketException

from rsnotify.format.datetimes import Instant
from rsnotify.runtime.addresses import Dialer
from rsnotify.runtime.mqtt_broker import is_broker_url
from rsnotify.runtime.reasons import reason_of
from rsnotify.runtime.tasks import first_cause
from rsnotify.runtime.transport_extensions import PushTransport, offered_transport
from rsnotify_publisher.hubs import Hub, HubFailure
from rsnotify_publisher.push.http_post import TOO_MANY, feed_by_post, remedy, seconds_to_wait
from rsnotify_publisher.push.hub_feed import HubFeed, OutgoingFragment
from rsnotify_publisher.push.mqtt import feed_by_mqtt
from rsnotify_publisher.push.websocket import HubConnections, feed_by_websocket

_NETWORK = (OSError, aiohttp.ClientError, WebSocketException)


class FragmentFeed(Protocol):
    """The fragments of a channel that one hub lacks, in the order of the changes."""

    def fragments(self, through: Instant | None = None) -> AsyncGenerator[OutgoingFragment, None]:
        """Yield fragments indefinitely, and heartbeats while there are no changes.

        Args:
            through: The instant through which the hub reports that it has all changes, if it does.
        """

    def accepted(self, until: Instant) -> None:
        """Record that the hub has every change up to an instant."""


class TransportFeed(Protocol):
    """The function of a transport that feeds a hub."""

    async def __call__(self, hub: Hub, topic: str, feed: HubFeed, dialer: Dialer, /) -> None:
        """Send the fragments that a hub lacks, and confirm accepted ones, until an error occurs.

        Args:
            hub: The hub, with its login.
            topic: The URI of the channel.
            feed: Yields fragments, and records which ones the hub has accepted.
            dialer: Opens connections to allowed addresses.

        Raises:
            HubFailure: Always raised in the end, or else Unavailable.
        """


class SourceTransport(PushTransport, Protocol):
    """A transport over which a Source can publish."""

    @property
    def feed(self) -> TransportFeed:
        """The function that feeds a hub."""


async def feed_hub(
    hub: Hub, topic: str, feed: HubFeed, dialer: Dialer, websockets: HubConnections
) -> None:
    """Feed a hub over the transport for its URI. Always raises HubFailure or Unavailable."""
    try:
        await _feed_of(hub, websockets)(hub, topic, feed, dialer)
    except (*_NETWORK, ExceptionGroup) as error:
        cause = first_cause(error)
        if isinstance(cause, InvalidStatus):
            answer = cause.response
            location = answer.headers.get("Location", "")
            raise HubFailure(
                hub.uri,
                f"it answered {answer.status_code} {answer.reason_phrase}",
                seconds_to_wait(answer.headers),
                remedy=remedy(hub, topic, answer.status_code, location),
                everywhere=answer.status_code == TOO_MANY,
            ) from error
        if isinstance(cause, _NETWORK):
            raise HubFailure(hub.uri, reason_of(cause, str(cause))) from error
        raise cause from None


def _feed_of(hub: Hub, websockets: HubConnections) -> TransportFeed:
    if is_broker_url(hub.uri):
        return feed_by_mqtt
    if hub.uri.startswith("http"):
        return feed_by_post
    transport: SourceTransport | None = offered_transport(hub.uri)
    return partial(feed_by_websocket, websockets) if transport is None else transport.feed
