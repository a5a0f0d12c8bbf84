"""What the hub has done since it started: plain numbers.

Whoever does something counts it here, at the cost of an addition; `/metrics`, the admin API and
the dashboard read it.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum


class DeliveryTransport(StrEnum):
    """The ways out of the hub."""

    WEBSUB = "websub"
    WEBSOCKET = "websocket"
    MQTT = "mqtt"


class DeliveryOutcome(StrEnum):
    """What became of a delivery, or of a try at one."""

    DELIVERED = "delivered"
    FAILED = "failed"
    GONE = "gone"
    GIVEN_UP = "given-up"
    CUT_OFF = "cut-off"


class Statistics:
    """Counts since the start of this process.

    Attributes:
        accepted: Fragments that became durable.
        accepted_bytes: Their bytes.
        duplicates: Fragments that the log had already, or that said nothing new.
        refused: Requests and frames that were refused, by the code of the refusal.
        deliveries: Deliveries, and tries at them, by way and outcome.
        delivered_bytes: Bytes of what was delivered, by way.
        retries: Deliveries that were tried again.
    """

    def __init__(self) -> None:
        self.accepted = 0
        self.accepted_bytes = 0
        self.duplicates = 0
        self.refused: Counter[str] = Counter()
        self.deliveries: Counter[tuple[DeliveryTransport, DeliveryOutcome]] = Counter()
        self.delivered_bytes: Counter[DeliveryTransport] = Counter()
        self.retries = 0
