"""The lists of `mutants.py` name modules, tests and lines that exist."""

from __future__ import annotations

import tomllib

import pytest

from tests.harnesses.mutants import AREAS, EQUIVALENT_MUTANTS, ROOT, Area


@pytest.mark.parametrize("area", AREAS, ids=[area.name for area in AREAS])
def test_each_area_names_modules_and_tests_that_exist(area: Area) -> None:
    missing = [name for name in area.modules if not any((ROOT / area.package).glob(name))]
    tests = [name.removeprefix("--ignore=") for name in area.tests]
    missing += [name for name in tests if "/" in name and not (ROOT / name).exists()]
    assert missing == []


def test_each_equivalent_mutant_is_one_of_a_line_that_exists() -> None:
    packages = {area.package.rpartition("/")[2]: ROOT / area.package for area in AREAS}
    stale = []
    for entry in tomllib.loads(EQUIVALENT_MUTANTS.read_text())["mutant"]:
        package, *names = entry["function"].split(".")
        modules = [packages[package].joinpath(*names[:n]).with_suffix(".py") for n in (1, 2)]
        texts = [module.read_text() for module in modules if module.exists()]
        if not any(entry["old"].splitlines()[0] in text for text in texts):
            stale.append(entry["function"])
    assert stale == []
