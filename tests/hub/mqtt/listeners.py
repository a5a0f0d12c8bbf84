"""A client of the broker, and requests for parts of a topic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from rsnotify.runtime.mqtt_broker import (
    DEFAULT_PREFIX,
    MqttMessage,
    SelectionRequest,
    channel_topic,
    request_prefix,
)
from rsnotify.runtime.mqtt_connection import BrokerConnection
from rsnotify.selection import PushSelection
from tests.hub.helpers import TOPIC, Client
from tests.hub.selections import BASE, named, span
from tests.waiting import PATIENCE

MAPS = PushSelection(prefixes=(BASE + "maps/",))
MAPS_NAME = DEFAULT_PREFIX + MAPS.digest(TOPIC)
#: The log line of the inbox about a refused message.
REFUSED = "refused a message over MQTT"


class BrokerListener:
    """A client of the broker that records the messages it receives."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[MqttMessage] = asyncio.Queue()
        self.connection: BrokerConnection

    async def next(self) -> MqttMessage:
        async with asyncio.timeout(PATIENCE):
            return await self.messages.get()

    async def until(self, body: bytes) -> list[bytes]:
        """Return the bodies of all messages up to one with this body."""
        bodies = [(await self.next()).payload]
        while bodies[-1] != body:
            bodies.append((await self.next()).payload)
        return bodies

    async def publish(self, topic: str, body: bytes, channel: str, content_type: str) -> None:
        async with asyncio.timeout(PATIENCE):
            await (
                await self.connection.publish(
                    topic, body, content_type=content_type, channel=channel, retain=False
                )
            )


Listen = Callable[..., AbstractAsyncContextManager[BrokerListener]]


async def request_part(
    listener: BrokerListener, select: PushSelection = MAPS, *, topic: str = TOPIC, of: str = TOPIC
) -> None:
    body = SelectionRequest(topic, select).encode()
    await listener.publish(
        channel_topic(of, request_prefix(DEFAULT_PREFIX)), body, of, "application/json"
    )


async def begin_part(hub: Client, listener: BrokerListener) -> None:
    """Publish one change, and request and receive the part that it is in."""
    await hub.accepted(named(0, maps_a=1))
    await request_part(listener)
    assert span((await listener.next()).payload) == (0, 1, [1])
