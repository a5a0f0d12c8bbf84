from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rsnotify.runtime.mqtt_broker import parse_broker
from rsnotify.runtime.mqtt_connection import CLEAN_START, BrokerSession, connect
from rsnotify_hub import mqtt_bridge as bridge
from tests.hub.helpers import Client, LogWatch, RunHub
from tests.hub.mqtt.listeners import MAPS_NAME, BrokerListener, Listen
from tests.mosquitto import Mosquitto


@pytest.fixture
def listen(mosquitto: Mosquitto) -> Listen:
    """Subscribe to a topic at the broker."""

    @asynccontextmanager
    async def run(
        topic: str = "rsnotify/+",
        *,
        broker: Mosquitto = mosquitto,
        session: BrokerSession = CLEAN_START,
        **options: Any,
    ) -> AsyncIterator[BrokerListener]:
        listener = BrokerListener()
        async with connect(
            parse_broker(broker.url),
            session=session,
            on_message=listener.messages.put_nowait,
            **options,
        ) as listener.connection:
            await listener.connection.subscribe(topic)
            yield listener

    return run


@pytest.fixture
async def listener(listen: Listen) -> AsyncIterator[BrokerListener]:
    async with listen() as opened:
        yield opened


@pytest.fixture
async def part(listen: Listen) -> AsyncIterator[BrokerListener]:
    """A listener to the part `maps/` of the topic."""
    async with listen(MAPS_NAME) as opened:
        yield opened


@pytest.fixture
def often_cleaned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "_CLEAN_UP_SECONDS", 0.05)


@pytest.fixture
def run_bridged(run_hub: RunHub, mosquitto: Mosquitto) -> RunHub:
    """Run a hub with the broker."""
    return lambda **settings: run_hub(mqtt_url=mosquitto.url, **settings)


@pytest.fixture
def run_hub_with_parts(run_hub: RunHub, mosquitto: Mosquitto, watch: LogWatch) -> RunHub:
    """Run a hub, and wait until it accepts requests for parts of topics."""

    @asynccontextmanager
    async def run(*, broker: Mosquitto = mosquitto, **settings: Any) -> AsyncIterator[Client]:
        watch.lines.clear()
        async with run_hub(mqtt_url=broker.url, **settings) as hub:
            await watch.line("accepting requests for filtered topics")
            yield hub

    return run


@pytest.fixture
async def hub(run_hub_with_parts: RunHub) -> AsyncIterator[Client]:
    async with run_hub_with_parts() as client:
        yield client
