"""The bridges of a hub, by its configuration: MQTT, and those that installed packages offer."""

from __future__ import annotations

from rsnotify.runtime.mqtt_broker import parse_broker
from rsnotify.runtime.settings import convert_settings
from rsnotify.runtime.transports import place_of, transport_of
from rsnotify_hub.bridging import Bridge, BridgeParts, Bridges, HubTransport
from rsnotify_hub.change_memory import Brokers
from rsnotify_hub.config.configuration import HubConfiguration
from rsnotify_hub.mqtt.mqtt_bridge import MqttBridge


def make_bridges(configuration: HubConfiguration, parts: BridgeParts) -> Bridges:
    found: list[Bridge] = []
    if configuration.mqtt.url is not None:
        found.append(MqttBridge(configuration.mqtt, parts))
    for scheme, table in configuration.transport_tables:
        transport: HubTransport = transport_of(scheme)
        settings = convert_settings(table, transport.settings)
        found.append(transport.bridge(settings, parts))
    return Bridges(found)


def brokers_of(configuration: HubConfiguration) -> Brokers:
    """Return where the hub also publishes, as Destinations reach it."""
    mqtt, xmpp = configuration.mqtt.public_url or configuration.mqtt.url, configuration.xmpp.url
    return Brokers(
        mqtt=None if mqtt is None else parse_broker(mqtt),
        xmpp=None if xmpp is None else place_of(xmpp),
    )
