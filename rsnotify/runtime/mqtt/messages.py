"""What a message says of itself beside its bytes: MQTT 5 has properties for it, 3.1.1 nothing."""

from __future__ import annotations

from msgspec import Struct
from paho.mqtt.client import MQTTMessage
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

#: The user property that holds the URI of the channel (MQTT 5 §3.3.2.3.7).
CHANNEL_PROPERTY = "channel"


class MqttMessage(Struct, frozen=True):
    """What a broker sent.

    Args:
        topic: The MQTT topic.
        payload: The bytes.
        retained: Whether it is what the broker had kept when one subscribed.
        content_type: The media type, if it says so.
        channel: The URI of the channel, if it says so.
        id: What it is acknowledged by; None where it is not, since it was sent with QoS 0.
    """

    topic: str
    payload: bytes
    retained: bool
    content_type: str | None
    channel: str | None
    id: int | None


def read_message(found: MQTTMessage) -> MqttMessage:
    """Read what paho received.

    Raises:
        ValueError: Its topic is not UTF-8.
    """
    properties = found.properties
    users = getattr(properties, "UserProperty", None) or []
    return MqttMessage(
        topic=found.topic,
        payload=bytes(found.payload),
        retained=bool(found.retain),
        content_type=getattr(properties, "ContentType", None),
        channel=next((value for name, value in users if name == CHANNEL_PROPERTY), None),
        id=found.mid if found.qos > 0 else None,
    )


def publish_properties(content_type: str, channel: str) -> Properties:
    """Make the properties of a message."""
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    properties.ContentType = content_type
    properties.UserProperty = (CHANNEL_PROPERTY, channel)
    return properties


def connect_properties(*, expiry: int, most: int, window: int) -> Properties:
    """Make the properties of a connection.

    Args:
        expiry: How long the broker keeps the session after it, in seconds.
        most: The longest packet that is taken.
        window: How many messages may be unacknowledged.
    """
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = expiry
    properties.MaximumPacketSize = most
    properties.ReceiveMaximum = window
    return properties
