"""A relay that follows through an MQTT broker which requires a password."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from watchfiles import awatch

from rsnotify.runtime.mqtt_broker import BrokerLogin, parse_broker
from rsnotify.runtime.mqtt_connection import connect
from rsnotify.runtime.processes import Process
from tests.mosquitto import Mosquitto
from tests.subscriber.destination import PATIENCE
from tests.subscriber.source import SmallSource, status

XML = "application/xml"
PASSWORDS = {"relay": "the relay's password", "source": "the Source's password"}


async def arrives(folder: Path, name: str, content: bytes) -> None:
    path = folder / name
    async with asyncio.timeout(PATIENCE):
        # What was there before the watch began is found at its first timeout.
        async for _ in awatch(folder, rust_timeout=200, yield_on_timeout=True):
            if path.exists() and path.read_bytes() == content:
                return


async def publish(broker: Mosquitto, channel: str, fragment: bytes) -> None:
    address, login = (
        parse_broker(broker.url),
        BrokerLogin(user="source", password=PASSWORDS["source"]),
    )
    async with asyncio.timeout(PATIENCE), connect(address, login) as connection:
        topic = address.topic(channel)
        await (await connection.publish(topic, fragment, content_type=XML, channel=channel))


async def test_a_relay_follows_through_a_broker_that_requires_a_password(
    source: SmallSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RSNOTIFY_RELAY_MQTT_PASSWORD", PASSWORDS["relay"])
    copy = tmp_path / "copy"
    copy.mkdir()
    async with Mosquitto(tmp_path / "broker", users=PASSWORDS) as broker:
        source.hubs = [broker.url]
        source.put("a", b"a")
        relay = await Process.start(
            *("relay", source.url, str(copy), "--port", "0", "--via", "mqtt", "--poll", "600"),
            *("--mqtt-url", broker.url, "--mqtt-user", "relay", "--mqtt-version", "3.1.1"),
            log=tmp_path / "relay.log",
        )
        try:
            await relay.url()
            await arrives(copy, "a", b"a")
            source.answers["/data/changelist.xml"] = status(503)
            before = source.last
            fragment = source.fragment([source.put_inline("b", b"pushed")], before)
            await publish(broker, source.base + "channel.xml", fragment)
            await arrives(copy, "b", b"pushed")
        finally:
            await relay.stop()
