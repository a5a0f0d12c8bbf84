"""Which ways there are to what a Source offers."""

from __future__ import annotations

from collections import Counter

from rsnotify_subscriber import Callbacks, Via
from rsnotify_subscriber.fetching.sessions import Sessions
from rsnotify_subscriber.push.endpoints import MOST, Transports
from rsnotify_subscriber.push.mqtt_transport import DEFAULT_MQTT


def test_of_very_many_hubs_only_the_first_are_used() -> None:
    kinds = "wss", "mqtts", "https"
    hubs = [f"{kind}://h{n}.example/" for n in range(5_000) for kind in kinds]
    ways = Transports(
        Via.AUTO, Sessions("http://a.example/"), Callbacks("http://b.example/"), DEFAULT_MQTT
    )
    found = ways.endpoints("http://a.example/topic", hubs)
    assert Counter(way.kind for way in found) == {
        Via.WEBSOCKET: MOST,
        Via.MQTT: MOST,
        Via.WEBSUB: 1,
    }
    assert [way.hub for way in found[:2]] == hubs[0:6:3]
    assert len(found[-1].hubs) == MOST
