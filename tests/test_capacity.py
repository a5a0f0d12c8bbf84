"""The capacity of a cluster in docs/scaling.md: computed from recorded figures."""

from __future__ import annotations

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
    tables,
)
from tests.containers import ROOT

PAGE = (ROOT / "docs/scaling.md").read_text()


def test_the_page_has_the_tables_that_are_computed_from_the_recorded_figures():
    for text in (measured(recorded()), compared(recorded()), tables(recorded())):
        for table in text.strip().split("\n\n"):
            assert table in PAGE, (
                f"docs/scaling.md lacks this; run benchmarks/capacity.py:\n{table}"
            )


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
