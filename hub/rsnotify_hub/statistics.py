"""Counters since the hub started, and the states of brokers and the store.

`/metrics`, the admin API and the dashboard read the counters. `BrokerInfo` and `StoreFailure` are
also JSON of the admin API.
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
    """The hub's built-in transports. The name of any other transport is the scheme of its URLs."""

    WEBSUB = "websub"
    WEBSOCKET = "websocket"
    SSE = "sse"
    MQTT = "mqtt"
    #: WebSockets of dashboard pages, which are not Destinations.
    DASHBOARD = "dashboard"


class DeliveryOutcome(StrEnum):
    """The outcome of a delivery attempt."""

    DELIVERED = "delivered"
    FAILED = "failed"
    GONE = "gone"
    GIVEN_UP = "given-up"
    CUT_OFF = "cut-off"


class BrokerInfo(Struct, frozen=True):
    """The state of a broker.

    Args:
        connected: Whether a node of the hub is connected to the broker.
        behind: The number of topics that the broker has not received completely.
        since: When the connection was lost, or when the hub first tried to connect; null while the
            broker is connected.
        error: Why the last attempt to connect failed, or the connection ended; null while the
            broker is connected.
        behind_since: Since when at least one topic has been behind, as far as the hub has checked;
            null if none is behind.
    """

    connected: bool
    behind: int
    since: Annotated[Instant, Meta(tz=True)] | None = None
    error: str | None = None
    behind_since: Annotated[Instant, Meta(tz=True)] | None = None


class StoreFailure(Struct, frozen=True):
    """The log writes that have failed since the last successful one.

    Args:
        since: When the first of these writes failed.
        reason: Why the last of these writes failed.
    """

    since: Annotated[Instant, Meta(tz=True)]
    reason: str


class Statistics:
    """Counters since the start of this process.

    Attributes:
        duplicates: Number of fragments that the log already had or that added nothing new.
        refused: Number of requests and frames that were refused, by refusal code.
        deliveries: Number of deliveries and delivery attempts, by transport name and outcome.
        delivered_bytes: Number of bytes delivered, by transport name.
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
        """Count a delivery attempt, and the bytes delivered."""
        self.deliveries[transport, outcome] += 1
        self.delivered_bytes[transport] += size
