"""The reference lists every metric, and hub/README.md every subcommand."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.hooks import reference
from rsnotify_hub.command import hub as commands
from rsnotify_hub.metrics import metric_families
from tests.hub.readings import IN_A_CLUSTER, hub_readings

README = (Path(__file__).parents[3] / "hub/README.md").read_text()


@pytest.mark.parametrize("name", [command.name for command in commands.registered_commands])
def test_every_subcommand_is_documented(name: str):
    assert f"`{name}" in README


def test_every_metric_is_documented_once():
    page = reference.metrics().partition("\n## Source\n")[0]
    for family in metric_families(hub_readings(**IN_A_CLUSTER)):
        name = family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
        name = name.removeprefix("rsnotify_hub_")
        rows = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
        assert len(rows) == 1
        assert family.documentation in rows[0]
