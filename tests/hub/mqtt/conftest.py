from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from rsnotify.runtime.mqtt.connect import CLEAN_START, BrokerSession, connect
from rsnotify.runtime.mqtt.connection import BrokerConnection
from rsnotify.runtime.mqtt.messages import MqttMessage
from rsnotify.runtime.mqtt.topics import parse_broker
from tests.hub.helpers import PATIENCE
from tests.mosquitto import Mosquitto


class Ear:
    """Somebody at the broker, who remembers what comes."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[MqttMessage] = asyncio.Queue()
        self.connection: BrokerConnection

    async def next(self) -> MqttMessage:
        async with asyncio.timeout(PATIENCE):
            return await self.messages.get()

    async def until(self, body: bytes) -> list[bytes]:
        """Return all that comes, up to this."""
        bodies = [(await self.next()).payload]
        while bodies[-1] != body:
            bodies.append((await self.next()).payload)
        return bodies

    async def say(self, topic: str, body: bytes, channel: str, content_type: str) -> None:
        async with asyncio.timeout(PATIENCE):
            await (
                await self.connection.publish(
                    topic, body, content_type=content_type, channel=channel, retain=False
                )
            )


Listen = Callable[..., AbstractAsyncContextManager[Ear]]


@pytest.fixture
def listen(mosquitto: Mosquitto) -> Listen:
    """Listen at the broker."""

    @asynccontextmanager
    async def run(
        topic: str = "rsnotify/+",
        *,
        broker: Mosquitto = mosquitto,
        session: BrokerSession = CLEAN_START,
        **options: Any,
    ) -> AsyncIterator[Ear]:
        ear = Ear()
        async with connect(
            parse_broker(broker.url), session=session, on_message=ear.messages.put_nowait, **options
        ) as ear.connection:
            await ear.connection.subscribe(topic)
            yield ear

    return run
