"""The document in which a hub states its endpoints."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rsnotify.format.offer import HUB_DOCUMENT
from tests.hub.conftest import RunHub
from tests.hub.helpers import ADMIN, Client
from tests.mosquitto import Mosquitto

PUBLIC = {
    "public_url": "https://hub.example/push/",
    "publishers": [{"token": ADMIN, "topics": ["https://source.example/"]}],
}


async def stated(run_hub: RunHub, **settings: Any) -> dict[str, str]:
    async with run_hub(**settings) as hub, hub.session.get(hub.url + HUB_DOCUMENT) as response:
        assert response.status == 200
        assert response.content_type == "application/json"
        found: dict[str, str] = json.loads(await response.text())
        return {name: url.replace(hub.url, "http://here/") for name, url in found.items()}


async def test_a_hub_states_its_endpoints_below_its_public_url(run_hub: RunHub):
    assert await stated(run_hub, **PUBLIC) == {
        "websub": "https://hub.example/push/websub",
        "websocket": "wss://hub.example/push/ws",
        "events": "https://hub.example/push/events",
    }


async def test_a_hub_without_a_public_url_states_where_it_listens(hub: Client):
    found = json.loads((await hub.get(HUB_DOCUMENT))[1])
    assert found["websub"] == hub.url + "websub"
    assert found["websocket"] == hub.url.replace("http:", "ws:") + "ws"


@pytest.mark.parametrize("public", [None, "wss+mqtt://broker.example/deep/down/"])
async def test_a_hub_states_its_broker_as_destinations_reach_it(
    run_hub: RunHub, mosquitto: Mosquitto, public: str | None
):
    settings = {} if public is None else {"mqtt_public_url": public}
    found = await stated(run_hub, mqtt_url=mosquitto.url, **settings)
    assert found["mqtt"] == (public or mosquitto.url)
