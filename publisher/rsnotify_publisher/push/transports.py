"""The transports to a hub: HTTP (`http_post`), a WebSocket with many fragments in flight, brokers.

Each function feeds a hub until something fails, and then raises `HubFailure`.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from contextlib import aclosing
from functools import partial
from typing import Any, cast
from urllib.parse import urlsplit

import aiohttp
import msgspec
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus, WebSocketException

from rsnotify.format.datetimes import Instant, parse_datetime
from rsnotify.runtime.dialing import TIMEOUT, Dialer, is_proxied
from rsnotify.runtime.mqtt.topics import is_broker_url
from rsnotify.runtime.tasks import first_cause
from rsnotify.runtime.xmpp.addresses import is_service_url
from rsnotify_publisher.hubs import Hub, HubFailure
from rsnotify_publisher.push.brokers import feed_by_mqtt, feed_by_xmpp
from rsnotify_publisher.push.fragments import OutgoingFragment
from rsnotify_publisher.push.http_post import (
    RESPONSE_TIMEOUT,
    TOO_MANY,
    feed_by_post,
    remedy,
    seconds_to_wait,
)
from rsnotify_publisher.push.hub_connection import HubConnection
from rsnotify_publisher.push.hub_feed import HubFeed

_IN_FLIGHT = 256
#: The seconds between pings, and until a hub that does not answer one counts as dead.
_PING, _PONG = 5.0, 10.0
#: The codes of errors that another node of the hub would not repeat (docs/protocol.md).
_OF_ONE_NODE = frozenset({"unavailable", "misdirected"})
_NETWORK = (OSError, aiohttp.ClientError, WebSocketException)


async def feed_hub(hub: Hub, topic: str, feed: HubFeed, dialer: Dialer) -> None:
    """Feed a hub, by the transport of its URI, until that fails.

    Raises:
        HubFailure: Always, in the end; of a broker, Unavailable.
    """
    feed_by = feed_by_post if hub.uri.startswith("http") else _feed_by_websocket
    if is_broker_url(hub.uri):
        feed_by = feed_by_mqtt
    elif is_service_url(hub.uri):
        feed_by = feed_by_xmpp
    try:
        await feed_by(hub, topic, feed, dialer)
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


async def _feed_by_websocket(hub: Hub, topic: str, feed: HubFeed, dialer: Dialer) -> None:
    websocket = await _open(hub, dialer)
    try:
        window = _Window(feed)
        through = await _begin(hub, websocket, topic)
        websocket.on_accepted = window.accepted
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_receive(hub, topic, websocket, window))
            tasks.create_task(_send(websocket, feed, window, through))
    finally:
        await websocket.close()


async def _open(hub: Hub, dialer: Dialer) -> HubConnection:
    opening = partial(
        connect,
        hub.uri,
        create_connection=HubConnection,
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


async def _begin(hub: Hub, websocket: HubConnection, topic: str) -> Instant | None:
    """Announce the channel, and return through which instant the hub has it."""
    async with asyncio.timeout(RESPONSE_TIMEOUT):
        await websocket.send(msgspec.json.encode({"type": "publish", "topic": topic}).decode())
        answer = _read_control(hub, topic, await websocket.recv())
    if answer.get("type") != "publishing":
        raise HubFailure(hub.uri, f"it answered {answer.get('type')!r} to publish")
    return _instant(hub, answer, "through")


async def _send(
    websocket: HubConnection, feed: HubFeed, window: _Window, through: Instant | None
) -> None:
    async with aclosing(feed.fragments(through)) as fragments:
        async for fragment in fragments:
            await window.enter(fragment)
            await websocket.send_fragment(fragment.body)


async def _receive(hub: Hub, topic: str, websocket: HubConnection, window: _Window) -> None:
    async for message in websocket:
        answer = _read_control(hub, topic, message)
        if answer.get("type") == "accepted":
            until = _instant(hub, answer, "until")
            if until is not None:
                window.accepted(until)
    raise HubFailure(hub.uri, "it closed the connection")


class _Window:
    """The fragments in flight, at most `_IN_FLIGHT`; `accepted` is cumulative."""

    def __init__(self, feed: HubFeed) -> None:
        self._feed = feed
        self._free = asyncio.Semaphore(_IN_FLIGHT)
        self._waiting: deque[Instant] = deque()

    async def enter(self, fragment: OutgoingFragment) -> None:
        await self._free.acquire()
        self._waiting.append(fragment.until)

    def accepted(self, until: Instant) -> None:
        while self._waiting and self._waiting[0] <= until:
            self._feed.accepted(self._waiting.popleft())
            self._free.release()


def _read_control(hub: Hub, topic: str, message: str | bytes) -> dict[str, Any]:
    try:
        answer = msgspec.json.decode(message, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise HubFailure(hub.uri, f"it sent no control frame: {error}") from None
    if answer.get("type") == "error":
        code = answer.get("code")
        action = remedy(hub, topic, 403) if code == "forbidden" else None
        reason = f"it answered {code}: {answer.get('message')}"
        everywhere = code not in _OF_ONE_NODE
        raise HubFailure(hub.uri, reason, remedy=action, everywhere=everywhere)
    return answer


def _instant(hub: Hub, answer: dict[str, Any], name: str) -> Instant | None:
    text = answer.get(name)
    try:
        return None if text is None else parse_datetime(text)
    except (ValueError, AttributeError):
        raise HubFailure(hub.uri, f"its {name} is no datetime: {text!r}") from None
