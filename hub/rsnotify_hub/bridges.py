"""The bridges of a hub, by its configuration: the one place that knows which there are."""

from __future__ import annotations

from collections.abc import Callable

from rsnotify.format.datetimes import Instant
from rsnotify.runtime.mqtt_broker import parse_broker
from rsnotify_hub.bridging import Bridge, Bridges, BridgeTiming
from rsnotify_hub.change_memory import Brokers
from rsnotify_hub.config.configuration import HubConfiguration
from rsnotify_hub.filtering import FilterCache
from rsnotify_hub.intake import FragmentIntake
from rsnotify_hub.log.topic_log import TopicLogs
from rsnotify_hub.mqtt.mqtt_bridge import MqttBridge
from rsnotify_hub.statistics import Statistics
from rsnotify_hub.store.interface import Store
from rsnotify_xmpp.hub_bridge import XmppBridge
from rsnotify_xmpp.xmpp_service import parse_service


def make_bridges(
    configuration: HubConfiguration,
    store: Store,
    topics: TopicLogs,
    intake: FragmentIntake,
    statistics: Statistics,
    filters: FilterCache,
    clock: Callable[[], Instant],
) -> Bridges:
    found: list[Bridge] = []
    timing = BridgeTiming(clock, configuration.websub.retry_seconds)
    if configuration.mqtt.url is not None:
        found.append(
            MqttBridge(
                configuration.mqtt,
                store,
                topics,
                intake,
                statistics,
                filters,
                max_selections=configuration.websocket.max_selections,
                timing=timing,
            )
        )
    if configuration.xmpp.url is not None:
        found.append(XmppBridge(configuration.xmpp, store, topics, statistics, filters, timing))
    return Bridges(found)


def brokers_of(configuration: HubConfiguration) -> Brokers:
    """Return where the hub also publishes, as Destinations reach it."""
    mqtt, xmpp = configuration.mqtt.public_url or configuration.mqtt.url, configuration.xmpp.url
    return Brokers(
        mqtt=None if mqtt is None else parse_broker(mqtt),
        xmpp=None if xmpp is None else parse_service(xmpp),
    )
