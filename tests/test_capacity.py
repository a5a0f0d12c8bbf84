"""The capacity of a cluster in the documentation: computed from recorded figures."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from benchmarks.capacity import (
    RATES,
    SUBSCRIBERS,
    TRANSPORTS,
    compared,
    costs_of,
    measured,
    plan,
    recorded,
    rows,
    tables,
)
from docs.hooks import reference
from tests.containers import ROOT

PAGE = (ROOT / "docs/scaling.md").read_text()


def test_the_reference_has_the_tables_that_are_computed_from_the_recorded_figures():
    page = reference.capacity()
    for text in (measured(recorded()), compared(recorded()), tables(recorded())):
        for table in text.strip().split("\n\n"):
            assert table in page


def test_the_page_shows_audiences_as_they_are_computed():
    shown = re.findall(r"^\| ((?:WebSub|WebSocket|MQTT) \| .*) \|$", PAGE, re.MULTILINE)
    computed = [
        audience(transport, row) for transport in TRANSPORTS for row in rows(recorded(), transport)
    ]
    assert shown
    for line in shown:
        assert [cell.strip() for cell in line.split("|")] in computed


def audience(transport: str, row: list[str]) -> list[str]:
    """Return a row of the page, which is about 10 changes a second and names no limit."""
    subscribers, rate, deliveries, nodes, nats, *brokers, _, network, price, _ = row
    assert len(brokers) == (transport == "MQTT")
    name = transport if rate == "10" else f"{transport} at {rate}"
    return [name, subscribers, deliveries, nodes, nats, *(brokers or [""]), network, price]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("rate", RATES)
def test_a_larger_audience_needs_no_less_of_anything(transport: str, rate: int):
    costs = costs_of(recorded(), rate)
    for fewer, more in pairwise(plan(costs, transport, count, rate) for count in SUBSCRIBERS):
        for name in ("deliveries", "nodes", "nats", "brokers", "memory", "network"):
            assert getattr(more, name) >= getattr(fewer, name)
        assert more.first[1] >= fewer.first[1]


def test_100_million_subscribers_of_1000_changes_a_second_exceed_a_limit_over_any_transport():
    costs = costs_of(recorded(), 1_000)
    assert plan(costs, "WebSocket", 100_000_000, 1_000).deliveries == 10**11
    for transport in TRANSPORTS:
        assert plan(costs, transport, 100_000_000, 1_000).first[1] > 1
