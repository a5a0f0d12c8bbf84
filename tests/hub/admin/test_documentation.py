"""hub/README.md names every operation and every metric."""

from __future__ import annotations

from pathlib import Path

import pytest

from rsnotify_hub.admin.command import commands
from rsnotify_hub.admin.operations import OPERATIONS, PREFIX, Operation
from rsnotify_hub.metrics import metric_families
from tests.hub.readings import IN_A_CLUSTER, hub_readings

README = (Path(__file__).parents[3] / "hub/README.md").read_text()


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_every_operation_is_documented(operation: Operation):
    assert f"`{operation.method} {PREFIX}{operation.path}`" in README


@pytest.mark.parametrize("name", [command.name for command in commands.registered_commands])
def test_every_subcommand_is_documented(name: str):
    assert f"`{name}" in README


def test_every_metric_is_documented():
    for family in metric_families(hub_readings(**IN_A_CLUSTER)):
        name = family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
        assert f"`{name.removeprefix('rsnotify_hub_')}`" in README
