"""What can be checked of every recipe without the system: settings load, programs compile."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from rsnotify_gateway.config import load_gateway
from tests.operations.test_proxies import PROXIES
from tests.reader import ROOT, fences_of

FOLDER = ROOT / "docs/recipes"
PAGES = sorted(FOLDER.glob("*.md"))
#: The pages of the first table of the index.
ORIGINS = sorted(
    {*re.findall(r"\]\((\w+\.md)\)", (FOLDER / "README.md").read_text().split("\n## ")[1])}
)


def blocks(language: str) -> list[object]:
    found = [(page, fences_of(page.read_text())) for page in PAGES]
    return [
        pytest.param(body, id=f"{page.stem}-{number}")
        for page, fences in found
        for number, (name, body) in enumerate(fences)
        if name == language
    ]


@pytest.mark.parametrize("body", blocks("toml"))
def test_every_configuration_of_a_gateway_is_one(body: str, tmp_path: Path):
    file = tmp_path / "gateway.toml"
    file.write_text(body)
    if "origin" in tomllib.loads(body):
        assert load_gateway(file).origins


@pytest.mark.parametrize("body", blocks("python"))
def test_every_program_compiles(body: str):
    compile(body, "recipe.py", "exec")


@pytest.mark.slow
@pytest.mark.parametrize("body", blocks("php"))
def test_every_program_in_php_is_one(body: str):
    if shutil.which("php") is None:
        pytest.skip("php is missing: apt-get install php-cli")
    done = subprocess.run(["php", "-l"], input=body, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_row_of_the_trials_runs_some():
    rows = (FOLDER / "README.md").read_text().partition("\n## Trials\n")[2]
    words = re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE)
    assert len(words) >= 15
    for folder in ("trials", "recipes"):
        for file in (ROOT / "tests" / folder).glob("test_*.py"):
            named = f"{file.stem} {file.read_text()}"
            words = [word for word in words if word not in named]
    assert set(words) <= {*PROXIES, "caddy"}


@pytest.mark.parametrize("name", ORIGINS)
def test_every_recipe_states_with_what_it_was_tried(name: str):
    begin = (FOLDER / name).read_text().split("\n\n")[1]
    assert begin.startswith(("Tried with ", "Not tried with "))
