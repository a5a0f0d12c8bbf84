"""hub/README.md names every operation and every metric."""

from __future__ import annotations

from pathlib import Path

import pytest

from rsnotify_hub.admin.command import commands
from rsnotify_hub.admin.operations import OPERATIONS, PREFIX, Operation
from rsnotify_hub.admin.views import HubReadings
from rsnotify_hub.metrics import metric_families
from rsnotify_hub.statistics import Statistics
from rsnotify_hub.store.nodes import NodeList, StreamInfo

CLUSTER = NodeList(
    rows=(),
    stream=StreamInfo(
        name="log", connected=True, trouble=None, records=0, bytes=0, copies=(), warnings=()
    ),
)
README = (Path(__file__).parents[3] / "hub/README.md").read_text()


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_every_operation_is_documented(operation: Operation):
    assert f"`{operation.method} {PREFIX}{operation.path}`" in README


@pytest.mark.parametrize("name", [command.name for command in commands.registered_commands])
def test_every_subcommand_is_documented(name: str):
    assert f"`{name}" in README


def test_every_metric_is_documented():
    readings = HubReadings(
        version="1.2.3",
        statistics=Statistics(),
        logs=(),
        subscriptions={},
        lags=lambda: (),
        connections=0,
        websockets=0,
        event_streams=0,
        live_queue=0,
        delivery_queue=0,
        commit_queue=0,
        nodes=CLUSTER,
        moved_shards={"taken": 1},
    )
    for family in metric_families(readings):
        name = family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
        assert f"`{name.removeprefix('rsnotify_hub_')}`" in README
