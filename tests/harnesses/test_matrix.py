"""Shapes of Sources, troubles and ways to follow, in virtual time: a sample of the matrix.

`make matrix` runs all of it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harnesses.matrix.run import every_run, sample, tables, triples
from tests.harnesses.matrix.shapes import SHAPES
from tests.harnesses.matrix.troubles import TROUBLES
from tests.harnesses.matrix.ways import WAYS

_ROOT = Path(__file__).parents[2]
_COMMAND = [sys.executable, "-m", "tests.harnesses.matrix.run", "--workers", "1"]
_SEED = 2


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command, env = [*_COMMAND, "--seed", str(_SEED), *arguments], os.environ | variables
    return subprocess.run(command, cwd=_ROOT, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_copy_is_right_or_in_doubt_whatever_trouble_its_source_or_its_place_is_in(way: object):
    # With the hashes that it sets, it does not begin again, which imports everything twice.
    result = run("--sample", "--way", str(way), PYTHONHASHSEED="0")

    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("name", "way", "seed"),
    [
        ("list x selection changed", "once", 1),
        ("resource dump x selection changed", "once", 1),
        ("resource dump x killed", "polling", 1),
        ("list and dump x state restored older", "polling", 1),
        ("changes x entries reversed", "once", 1),
        ("archive x resource on a host that refuses", "push", 1),
        ("alternates x file truncated", "selection", 13),
    ],
)
def test_the_clock_of_a_source_may_go_back_beside_another_trouble(name: str, way: str, seed: int):
    clock = "Source's clock an hour behind"
    name = f"{name} x {clock}"
    result = run("--beside", clock, "--way", way, "--seed", str(seed), name, PYTHONHASHSEED="0")

    assert result.returncode == 0, result.stdout + result.stderr


def test_the_sample_has_every_shape_every_trouble_and_every_way():
    chosen = sample(_SEED)

    assert {shape for shape, _, _ in chosen} == set(SHAPES)
    assert {trouble.name for _, troubles, _ in chosen for trouble in troubles} == {
        trouble.name for trouble in TROUBLES
    }
    assert {way for _, _, way in chosen} == set(WAYS)
    assert set(map(repr, chosen)) <= set(map(repr, every_run()))


def test_the_random_runs_depend_on_the_seed_only():
    assert list(map(repr, triples(3, 20))) == list(map(repr, triples(3, 20)))


def test_a_name_that_no_run_has_is_an_error():
    result = run("no such trouble")

    assert result.returncode == 2
    assert "no run" in result.stderr


def test_the_page_about_reliability_counts_the_matrix_as_it_is():
    page = (_ROOT / "docs" / "reliability.md").read_text()
    troubles = [trouble for trouble in TROUBLES if trouble.name != "nothing"]
    assert f"{len(SHAPES)} shapes of Source" in page
    assert f"{len(troubles)} troubles" in page
    assert f"{len(WAYS)} ways to follow" in page
    assert f"Of {len(every_run()):,} runs" in page


def test_the_tables_show_every_shape_trouble_and_way():
    shown = tables()
    for one in (*SHAPES, *WAYS, *TROUBLES):
        assert re.search(rf"(?<=[|;]) {re.escape(one.name)}(;| \|)", shown), one.name
