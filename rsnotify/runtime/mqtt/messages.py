"""Messages and their metadata: MQTT 5 has properties for it, MQTT 3.1.1 has nothing."""

from __future__ import annotations

from msgspec import Struct
from paho.mqtt.client import MQTTMessage
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

#: The user property that holds the URI of the channel (MQTT 5 §3.3.2.3.7).
CHANNEL_PROPERTY = "channel"


class MqttMessage(Struct, frozen=True):
    """A message that a broker sent.

    Args:
        topic: The MQTT topic.
        payload: The bytes.
        retained: Whether it is the topic's retained message, sent because of a subscription.
        content_type: The media type, if given.
        channel: The URI of the channel, if given.
        packet_id: The packet identifier for the PUBACK; None for QoS 0.
    """

    topic: str
    payload: bytes
    retained: bool
    content_type: str | None
    channel: str | None
    packet_id: int | None


def read_message(found: MQTTMessage) -> MqttMessage:
    """Convert a message of paho; ValueError if its topic is not UTF-8."""
    properties = found.properties
    users = getattr(properties, "UserProperty", None) or []
    return MqttMessage(
        topic=found.topic,
        payload=bytes(found.payload),
        retained=bool(found.retain),
        content_type=getattr(properties, "ContentType", None),
        channel=next((value for name, value in users if name == CHANNEL_PROPERTY), None),
        packet_id=found.mid if found.qos > 0 else None,
    )


def publish_properties(content_type: str, channel: str) -> Properties:
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    properties.ContentType = content_type
    properties.UserProperty = (CHANNEL_PROPERTY, channel)
    return properties


def connect_properties(
    *, session_expiry: int, maximum_packet_size: int, receive_maximum: int
) -> Properties:
    """Return the properties of a CONNECT packet (MQTT 5 §3.1.2.11)."""
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = session_expiry
    properties.MaximumPacketSize = maximum_packet_size
    properties.ReceiveMaximum = receive_maximum
    return properties
