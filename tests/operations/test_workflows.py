"""The workflows of the forge call what exists, on the versions of Python that are promised."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def jobs(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())["jobs"]
    return found


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_step_calls_an_action_of_one_version_or_a_command_that_exists(path: Path) -> None:
    for job in jobs(path).values():
        for step in job["steps"]:
            if "uses" in step:
                assert re.fullmatch(r"[\w.-]+(/[\w.-]+)+@v\d+\.\d+\.\d+", step["uses"])
            for target in re.findall(r"^make ([\w-]+)", step.get("run", ""), re.MULTILINE):
                subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True)
            for script in re.findall(r"^(\.\S+/\S+)", step.get("run", ""), re.MULTILINE):
                assert (ROOT / script).exists() or script.startswith(".venv/")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_job_has_a_limit_and_waits_for_jobs_that_exist(path: Path) -> None:
    found = jobs(path)
    for job in found.values():
        needs = job.get("needs", [])
        assert {*([needs] if isinstance(needs, str) else needs)} <= found.keys()
        assert job["timeout-minutes"]


def test_a_release_is_tested_on_each_version_of_python_that_it_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [re.search(r"Python :: (3\.\d+)", one) for one in project["classifiers"]]
    matrix = jobs(ROOT / ".github/workflows/release.yml")["test"]["strategy"]["matrix"]
    assert matrix["python"] == [match[1] for match in named if match]
