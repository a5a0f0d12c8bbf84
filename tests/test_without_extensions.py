"""The cores where no extension is installed: their commands, and a part of their tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from tests.packages import CORES, PACKAGES, ROOT

HIDDEN = sorted(set(PACKAGES) - set(CORES))
#: Hides packages, for every process that has this file on its path.
HIDING = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
"""
#: From `record` to a copy: documents, the hub's log, push, pull, and the state of a Destination.
SUITES = (
    "tests/core/test_follower.py",
    "tests/core/test_reduction.py",
    "tests/publisher/test_recording.py",
    "tests/publisher/test_push.py",
    "tests/hub/test_publishing.py",
    "tests/hub/test_restart.py",
    "tests/hub/test_websocket.py",
    "tests/subscriber/test_following.py",
    "tests/subscriber/test_state.py",
    "tests/end_to_end/test_websub.py",
)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process in which no extension can be imported, nor is offered."""
    site = tmp_path_factory.mktemp("site")
    (site / "sitecustomize.py").write_text(HIDING.format(hidden=HIDDEN))
    metadata = site / "rsnotify-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: rsnotify\nVersion: 0\n")
    lines = []
    for group in sorted(one for one in entry_points().groups if one.startswith("rsnotify.")):
        lines.append(f"[{group}]")
        lines += [
            f"{point.name} = {point.value}"
            for point in entry_points(group=group)
            if point.module.partition(".")[0] not in HIDDEN
        ]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return {**os.environ, "PYTHONPATH": str(site), "COLUMNS": "80"}


def run(environment: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-8000:]
    return done.stdout


def test_no_extension_can_be_imported_or_is_offered(environment: dict[str, str]) -> None:
    program = """
import importlib, json, sys
from importlib.metadata import entry_points
found = []
for name in json.loads(sys.argv[1]):
    try:
        importlib.import_module(name)
    except ImportError:
        continue
    found.append(name)
groups = {one: sorted(entry_points(group=one).names) for one in entry_points().groups}
print(json.dumps([found, {one: names for one, names in groups.items() if "rsnotify." in one}]))
"""
    found, groups = json.loads(run(environment, "-c", program, json.dumps(HIDDEN)))
    assert found == []
    commands = {"audit", "backup", "follow", "hub", "restore", "source"}
    assert set(groups.pop("rsnotify.commands")) == commands
    assert all(not names for group, names in groups.items() if group != "rsnotify.stores")


@pytest.mark.parametrize("command", ["", "hub", "source", "follow", "audit", "backup", "restore"])
def test_each_command_of_the_cores_has_its_help(environment: dict[str, str], command: str) -> None:
    shown = run(environment, "-m", "rsnotify", *filter(None, [command]), "--help")
    assert "Usage: " in shown


def test_a_source_a_hub_and_a_destination_work_by_their_commands(
    environment: dict[str, str],
) -> None:
    test = "tests/end_to_end/test_one_hub_url.py"
    run(environment, "-m", "pytest", "-q", "-p", "no:xdist", test, "-k", "websocket")


@pytest.mark.slow
def test_a_part_of_the_tests_of_the_cores_passes(environment: dict[str, str]) -> None:
    options = ("-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-m", "not slow")
    shown = run(environment, "-m", "pytest", *options, *SUITES)
    assert " passed" in shown
