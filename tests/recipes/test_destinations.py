"""The programs of the recipes for Destinations are typed, and written as our own code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.recipes.trial import block

pytestmark = pytest.mark.slow

PROGRAMS = {
    "../aggregator-postgresql.md": "aggregator.py",
    "opensearch.md": "to_opensearch.py",
    "s3.md": "to_s3.py",
    "solr.md": "to_solr.py",
    "triple-store.md": "to_triples.py",
}


@pytest.mark.parametrize("page", PROGRAMS)
def test_a_program_is_typed_and_formatted(tmp_path: Path, page: str) -> None:
    if page == "s3.md":
        pytest.importorskip("types_boto3_s3")
    program = tmp_path / PROGRAMS[page]
    program.write_text(block(page, f"# {program.name}"))
    for command in (
        ("mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path}"),
        ("ruff", "format", "--check", "--line-length=100"),
        ("ruff", "check", "--line-length=100", "--select=E,F,B,UP,SIM"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", *command, str(program)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
