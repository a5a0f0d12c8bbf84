"""The ways to a hub: HTTP POST, one fragment after the other; a WebSocket, many in flight; MQTT.

Each function feeds a hub until something fails, and then raises `HubFailure`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing
from typing import Any

import aiohttp
import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from rsnotify.datetimes import Instant, parse_datetime
from rsnotify.errors import RsnotifyError
from rsnotify.links import format_links
from rsnotify.mqtt.names import is_broker
from rsnotify.vocabulary import Rel
from rsnotify_publisher.groups import first_cause
from rsnotify_publisher.push.fragments import Fragment, Fragments
from rsnotify_publisher.push.hubs import Hub
from rsnotify_publisher.push.mqtt import feed_by_mqtt

_ANSWER_WITHIN = 30.0
_IN_FLIGHT = 256
_NETWORK = (OSError, aiohttp.ClientError, WebSocketException)


class HubFailure(RsnotifyError):
    """A hub could not be fed just now.

    Args:
        hub: Its URI.
        reason: What happened, as a clause.
        retry_after: Seconds it asked to wait.
    """

    def __init__(self, hub: str, reason: str, retry_after: float = 0.0) -> None:
        self.hub = hub
        self.reason = reason
        self.retry_after = retry_after
        super().__init__(hub, reason, retry_after)

    def __str__(self) -> str:
        """Return the hub and the reason."""
        return f"{self.hub}: {self.reason}"


async def feed_hub(hub: Hub, topic: str, feed: Fragments) -> None:
    """Feed a hub, in the way that its URI says, until that fails.

    Args:
        hub: The hub.
        topic: The URI of the channel.
        feed: What to send.

    Raises:
        HubFailure: Always, in the end; of a broker, Unavailable.
    """
    feed_by = _feed_by_post if hub.uri.startswith("http") else _feed_by_websocket
    if is_broker(hub.uri):
        feed_by = feed_by_mqtt
    try:
        await feed_by(hub, topic, feed)
    except (*_NETWORK, ExceptionGroup) as error:
        cause = first_cause(error)
        if isinstance(cause, _NETWORK):
            raise HubFailure(hub.uri, str(cause) or type(cause).__name__) from error
        raise cause from None


async def _feed_by_post(hub: Hub, topic: str, feed: Fragments) -> None:
    headers = {
        "Content-Type": "application/xml",
        "Link": format_links([(Rel.SELF, topic), (Rel.HUB, hub.uri)]),
        **hub.headers,
    }
    timeout = aiohttp.ClientTimeout(total=_ANSWER_WITHIN)
    async with (
        aiohttp.ClientSession(headers=headers, timeout=timeout) as session,
        aclosing(feed.fragments()) as fragments,
    ):
        async for fragment in fragments:
            await _post(session, hub, fragment)
            feed.accepted(fragment.until)


async def _post(session: aiohttp.ClientSession, hub: Hub, fragment: Fragment) -> None:
    async with session.post(hub.uri, data=fragment.body, allow_redirects=False) as response:
        if 200 <= response.status < 300:
            return
        said = (await response.content.read(200)).decode(errors="replace").strip()
        after = response.headers.get("Retry-After", "")
        raise HubFailure(
            hub.uri,
            f"it answered {response.status} {response.reason}: {said}",
            float(after) if after.isascii() and after.isdigit() else 0.0,
        )


async def _feed_by_websocket(hub: Hub, topic: str, feed: Fragments) -> None:
    # Compression would cost more time than it saves on a small fragment.
    websocket = await connect(
        hub.uri,
        additional_headers=hub.headers,
        compression=None,
        max_size=65_536,
        close_timeout=1,
    )
    try:
        window = _Window(feed)
        through = await _begin(hub, websocket, topic)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_hear(hub, websocket, window))
            tasks.create_task(_send(websocket, feed, window, through))
    finally:
        await websocket.close()


async def _begin(hub: Hub, websocket: ClientConnection, topic: str) -> Instant | None:
    """Say what is going to be published, and hear what the hub has of it."""
    async with asyncio.timeout(_ANSWER_WITHIN):
        await websocket.send(msgspec.json.encode({"type": "publish", "topic": topic}).decode())
        answer = _read_control(hub, await websocket.recv())
    if answer.get("type") != "publishing":
        raise HubFailure(hub.uri, f"it answered {answer.get('type')!r} to publish")
    return _instant(hub, answer, "through")


async def _send(
    websocket: ClientConnection, feed: Fragments, window: _Window, through: Instant | None
) -> None:
    async with aclosing(feed.fragments(through)) as fragments:
        async for fragment in fragments:
            await window.enter(fragment)
            await websocket.send(fragment.body.decode())


async def _hear(hub: Hub, websocket: ClientConnection, window: _Window) -> None:
    async for message in websocket:
        answer = _read_control(hub, message)
        if answer.get("type") == "accepted":
            until = _instant(hub, answer, "until")
            if until is not None:
                window.accepted(until)
    raise HubFailure(hub.uri, "it closed the connection")


class _Window:
    """The fragments on their way, at most `_IN_FLIGHT`; `accepted` is cumulative."""

    def __init__(self, feed: Fragments) -> None:
        self._feed = feed
        self._room = asyncio.Semaphore(_IN_FLIGHT)
        self._waiting: deque[Instant] = deque()

    async def enter(self, fragment: Fragment) -> None:
        await self._room.acquire()
        self._waiting.append(fragment.until)

    def accepted(self, until: Instant) -> None:
        while self._waiting and self._waiting[0] <= until:
            self._feed.accepted(self._waiting.popleft())
            self._room.release()


def _read_control(hub: Hub, message: str | bytes) -> dict[str, Any]:
    try:
        answer = msgspec.json.decode(message, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise HubFailure(hub.uri, f"it sent no control frame: {error}") from None
    if answer.get("type") == "error":
        raise HubFailure(hub.uri, f"it said {answer.get('code')}: {answer.get('message')}")
    return answer


def _instant(hub: Hub, answer: dict[str, Any], name: str) -> Instant | None:
    text = answer.get(name)
    try:
        return None if text is None else parse_datetime(text)
    except (ValueError, AttributeError):
        raise HubFailure(hub.uri, f"its {name} is no datetime: {text!r}") from None
