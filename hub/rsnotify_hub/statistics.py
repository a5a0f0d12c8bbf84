"""Counters of what the hub has done since it started, and the state of a broker.

Each part of the hub counts its work here, at the cost of an addition; `/metrics`, the admin API and
the dashboard read the counters. `BrokerInfo` is also JSON of the admin API.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from rsnotify.format.datetimes import Instant


class DeliveryTransport(StrEnum):
    """The transports of the hub itself; another one is named by the scheme of its URLs."""

    WEBSUB = "websub"
    WEBSOCKET = "websocket"
    SSE = "sse"
    MQTT = "mqtt"
    #: WebSockets of the pages of the dashboard, which are not Destinations.
    DASHBOARD = "dashboard"


class DeliveryOutcome(StrEnum):
    """The outcome of a delivery, or of an attempt at one."""

    DELIVERED = "delivered"
    FAILED = "failed"
    GONE = "gone"
    GIVEN_UP = "given-up"
    CUT_OFF = "cut-off"


class BrokerInfo(Struct, frozen=True):
    """The state of a broker.

    Args:
        connected: Whether a node of the hub is connected to it.
        behind: The number of topics that it has not received completely.
        since: Since when it has not been connected; null while it is.
        error: Why the last attempt to connect failed, or the connection ended; null while it is
            connected.
        behind_since: Since when some topic has been behind without a pause, as far as the hub has
            checked; null if none is.
    """

    connected: bool
    behind: int
    since: Annotated[Instant, Meta(tz=True)] | None = None
    error: str | None = None
    behind_since: Annotated[Instant, Meta(tz=True)] | None = None


class StoreFailure(Struct, frozen=True):
    """The writes to the logs that have failed since the last one that succeeded.

    Args:
        since: When the first of them failed.
        reason: Why the last of them failed.
    """

    since: Annotated[Instant, Meta(tz=True)]
    reason: str


class Statistics:
    """Counters since the start of this process.

    Attributes:
        accepted: Fragments that became durable.
        accepted_bytes: Their bytes.
        duplicates: Fragments that the log already had, or that contained nothing new.
        refused: Requests and frames that were refused, by the code of the refusal.
        deliveries: Deliveries, and attempts at them, by the name of the transport and the outcome.
        delivered_bytes: Bytes that were delivered, by the name of the transport.
        retries: Attempts after a failed one.
        store_failure: Why the hub cannot store fragments; None if the last write succeeded.
    """

    def __init__(self, clock: Callable[[], Instant] = lambda: datetime.now(UTC)) -> None:
        self._clock = clock
        self.store_failure: StoreFailure | None = None
        self.accepted = 0
        self.accepted_bytes = 0
        self.duplicates = 0
        self.refused: Counter[str] = Counter()
        self.deliveries: Counter[tuple[str, DeliveryOutcome]] = Counter()
        self.delivered_bytes: Counter[str] = Counter()
        self.retries = 0

    def count_store_failure(self, reason: str) -> None:
        before = self.store_failure
        self.store_failure = StoreFailure(before.since if before else self._clock(), reason)

    def count(self, transport: str, outcome: DeliveryOutcome, *, size: int = 0) -> None:
        """Count a delivery, or an attempt at one, and the bytes that were delivered."""
        self.deliveries[transport, outcome] += 1
        self.delivered_bytes[transport] += size
