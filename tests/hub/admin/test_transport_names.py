"""Deliveries by a transport of another package are shown by the scheme of its URLs."""

from __future__ import annotations

import pytest

from rsnotify.runtime import transport_extensions as transports
from rsnotify_hub.admin.schema_conversion import delivery_counts, status_info
from rsnotify_hub.statistics import BrokerInfo, DeliveryOutcome, Statistics
from tests.hub.readings import hub_readings, scraped


@pytest.fixture(autouse=True)
def offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "offered", lambda group: {"mqtt": None, "spool+x": None})


def test_its_deliveries_and_its_broker_have_its_name():
    statistics = Statistics()
    statistics.count("spool+x", DeliveryOutcome.DELIVERED, size=5)
    readings = hub_readings(statistics=statistics, brokers={"spool+x": BrokerInfo(True, 3)})
    assert delivery_counts(statistics)["spool+x"]["delivered"] == 1
    assert list(delivery_counts(statistics))[-2:] == ["spool+x", "dashboard"]
    assert status_info(readings).brokers["spool+x"].behind == 3
    metrics = scraped(readings)
    assert metrics['delivered_bytes_total{way="spool+x"}'] == 5
    assert (metrics["spool_x_connected"], metrics["spool_x_topics_behind"]) == (1, 3)
    assert metrics["mqtt_connected"] == 0
