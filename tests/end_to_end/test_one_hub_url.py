"""A Source that is given the URL of its hub alone can be followed over every transport of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.mosquitto import Mosquitto
from tests.publisher.helpers import eventually
from tests.reader import Reader

SOURCE = "http://127.0.0.1:8000/"


def follow_over(via: str, folder: Path, broker: str) -> None:
    with Reader(folder, environment={"RSNOTIFY_HUB_MQTT_URL": broker}) as reader:
        data, copy = folder / "data/one.ttl", folder / "mirror/one.ttl"
        data.parent.mkdir()
        data.write_text("first")
        reader.start("rsnotify hub")
        reader.start(f"rsnotify source data --base-url {SOURCE} --hub http://127.0.0.1:8080/")
        capability_list = reader.adapt(SOURCE) + "capabilitylist.xml"
        eventually(lambda: b"mqtt://" in urlopen(capability_list).read())
        reader.start(f"rsnotify follow {SOURCE} mirror --via {via} --poll 600", copy.exists)
        data.write_text("second")
        eventually(lambda: copy.read_text() == "second")
        reader.end()


@pytest.mark.parametrize("via", ["mqtt", "websocket"])
async def test_one_url_of_a_hub_is_enough(tmp_path: Path, mosquitto: Mosquitto, via: str):
    await asyncio.to_thread(follow_over, via, tmp_path / "here", mosquitto.url)
