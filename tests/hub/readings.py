"""Readings of a hub that has nothing, apart from what a test says."""

from __future__ import annotations

from typing import Any

from rsnotify.runtime.status_endpoints import MetricsText
from rsnotify_hub.admin.hub_readings import HubReadings
from rsnotify_hub.metrics import metric_families
from rsnotify_hub.statistics import Statistics
from rsnotify_hub.store.nodes import NodeList, StreamInfo
from tests.hub.helpers import metrics_in

#: What a node adds that belongs to a cluster.
IN_A_CLUSTER = {
    "nodes": NodeList(
        rows=(),
        stream=StreamInfo(
            name="log", connected=True, trouble=None, records=0, bytes=0, copies=(), warnings=()
        ),
    ),
    "moved_shards": {"lost": 0},
}


def hub_readings(**changes: Any) -> HubReadings:
    defaults = {
        "version": "1.2.3",
        "statistics": Statistics(),
        "logs": (),
        "subscriptions": {},
        "lags": lambda: (),
        **dict.fromkeys(("connections", "delivery_queue", "commit_queue"), 0),
    }
    return HubReadings(**{**defaults, **changes})


def scraped(readings: HubReadings) -> dict[str, float]:
    """Return the metrics that a hub with these readings answers with."""
    return metrics_in(MetricsText(lambda: metric_families(readings)).answer().text or "")
