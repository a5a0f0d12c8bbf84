"""The transports to a hub: HTTP (`http_post`), a WebSocket with many fragments in flight, brokers.

Each function feeds a hub until something fails, and then raises `HubFailure`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Protocol, cast
from urllib.parse import urlsplit

import aiohttp
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedOK, InvalidStatus, WebSocketException

from rsnotify.format.datetimes import Instant
from rsnotify.runtime.dialing import TIMEOUT, Dialer, is_proxied
from rsnotify.runtime.mqtt_broker import is_broker_url
from rsnotify.runtime.shared_websockets import TOPICS, SharedWebSockets
from rsnotify.runtime.tasks import first_cause
from rsnotify.runtime.transports import PushTransport, offered_transport
from rsnotify_publisher.hubs import Hub, HubFailure
from rsnotify_publisher.push.http_post import (
    RESPONSE_TIMEOUT,
    TOO_MANY,
    feed_by_post,
    remedy,
    seconds_to_wait,
)
from rsnotify_publisher.push.hub_feed import HubFeed, OutgoingFragment
from rsnotify_publisher.push.mqtt import feed_by_mqtt
from rsnotify_publisher.push.websocket import HubConnection, HubPublication

#: The seconds between pings, and until a hub that does not answer one counts as dead.
_PING, _PONG = 5.0, 10.0
_NETWORK = (OSError, aiohttp.ClientError, WebSocketException)

HubConnections = SharedWebSockets[HubConnection]


class FragmentFeed(Protocol):
    """What one hub lacks of a channel, in the order of the changes."""

    def fragments(self, through: Instant | None = None) -> AsyncGenerator[OutgoingFragment, None]:
        """Yield fragments without end, and a heartbeat where there are no changes.

        Args:
            through: The instant through which the hub reports to have all changes, if it does.
        """

    def accepted(self, until: Instant) -> None:
        """Record that the hub has every change up to an instant."""


class TransportFeed(Protocol):
    """The part of a transport for a Source; those that are built in are functions here."""

    async def __call__(self, hub: Hub, topic: str, feed: HubFeed, dialer: Dialer, /) -> None:
        """Send what a hub lacks, and confirm what it has accepted, until that fails.

        Args:
            hub: The hub, with the login.
            topic: The URI of the channel.
            feed: Yields fragments, and records what was accepted.
            dialer: Opens connections to allowed addresses.

        Raises:
            HubFailure: Always, in the end; or Unavailable.
        """


class SourceTransport(PushTransport, Protocol):
    """A transport by which a Source can publish."""

    @property
    def feed(self) -> TransportFeed:
        """Feeds a hub."""


async def feed_hub(
    hub: Hub, topic: str, feed: HubFeed, dialer: Dialer, websockets: HubConnections
) -> None:
    """Feed a hub, by the transport of its URI, until that fails.

    Raises:
        HubFailure: Always, in the end; of a broker, Unavailable.
    """
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
                seconds_to_wait(answer.headers.get("Retry-After")),
                remedy=remedy(hub, topic, answer.status_code, location),
                everywhere=answer.status_code == TOO_MANY,
            ) from error
        if isinstance(cause, _NETWORK):
            raise HubFailure(hub.uri, str(cause) or type(cause).__name__) from error
        raise cause from None


def _feed_of(hub: Hub, websockets: HubConnections) -> TransportFeed:
    if is_broker_url(hub.uri):
        return feed_by_mqtt
    if hub.uri.startswith("http"):
        return feed_by_post
    transport: SourceTransport | None = offered_transport(hub.uri)
    return partial(_feed_by_websocket, websockets) if transport is None else transport.feed


async def _feed_by_websocket(
    websockets: HubConnections, hub: Hub, topic: str, feed: HubFeed, dialer: Dialer
) -> None:
    key = hub.uri, frozenset(hub.headers.items())
    websocket = await websockets.connect(key, topic, partial(_open, hub, dialer))
    publication = websocket.publish(hub, topic, feed)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_fail(hub, websocket, publication))
            tasks.create_task(_send(websocket, publication, feed))
    finally:
        publication.end(None)
        await websocket.end(topic)


async def _open(hub: Hub, dialer: Dialer) -> HubConnection:
    opening = partial(
        connect,
        hub.uri,
        create_connection=HubConnection,
        subprotocols=[TOPICS],
        additional_headers=hub.headers,
        # Compression would cost more time than it saves on a small fragment.
        compression=None,
        max_size=65_536,
        open_timeout=TIMEOUT,
        ping_interval=_PING,
        ping_timeout=_PONG,
        close_timeout=1,
    )
    if is_proxied(hub.uri):
        return cast(HubConnection, await opening())
    try:
        opened = await opening(sock=await _dial(hub.uri, dialer))
    except ValueError:  # a redirect, which cannot be followed with a socket
        opened = await opening()
    return cast(HubConnection, opened)


async def _dial(uri: str, dialer: Dialer) -> socket.socket:
    parts = urlsplit(uri)
    port = parts.port or (443 if parts.scheme == "wss" else 80)
    return await dialer.dial(parts.hostname or "", port)


async def _send(websocket: HubConnection, publication: HubPublication, feed: HubFeed) -> None:
    async with asyncio.timeout(RESPONSE_TIMEOUT):
        through = await publication.begun
    async with aclosing(feed.fragments(through)) as fragments:
        async for fragment in fragments:
            await publication.enter(fragment)
            await websocket.send_fragment(publication.topic, fragment.body)


async def _fail(hub: Hub, websocket: HubConnection, publication: HubPublication) -> None:
    """Wait until the publication ends, and raise why."""
    try:
        await publication.ended
        raise websocket.close_exc
    except (ConnectionClosedOK, ValueError) as error:
        reason = "it closed the connection" if isinstance(error, ConnectionClosedOK) else str(error)
        raise HubFailure(hub.uri, reason) from None
