"""What `make dist` and `make sbom` build, installed where there is nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import requires
from pathlib import Path

import pytest

import rsnotify

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.slow

#: Imports every module of the packages, and prints those that need a package that is missing.
IMPORT_ALL = """
import importlib, pkgutil, sys
for package in sys.argv[1:]:
    top = importlib.import_module(package)
    for one in pkgutil.walk_packages(top.__path__, package + "."):
        if not one.name.endswith("__main__"):
            try:
                importlib.import_module(one.name)
            except ModuleNotFoundError as error:
                print(error.name)
"""
#: The modules of the extras, which only the modules import that use them.
EXTRAS = {"feedparser", "nats", "nkeys", "psycopg", "pyoxigraph", "slixmpp", "sqlalchemy", "django"}


def run(*command: str | Path, folder: Path = ROOT) -> str:
    """Return what a command prints; it sees no packages but those of its environment."""
    environment = {name: one for name, one in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        command, cwd=folder, env=environment, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def present_python() -> str:
    return sys.executable


def newest_python() -> str:
    """Return the newest released Python of this machine, at least that of the tests."""
    folders = [*os.get_exec_path(), *map(str, Path.home().glob(".pyenv/versions/3.*/bin"))]
    paths = {str(path) for folder in folders for path in Path(folder).glob("python3.1[0-9]")}
    code = "import ensurepip, sys; print(*sys.version_info[:4], sys.executable)"
    found = [((sys.version_info[0], sys.version_info[1]), sys.executable)]
    for path in paths:
        done = subprocess.run([path, "-c", code], check=False, capture_output=True, text=True)
        if done.returncode == 0 and "final" in done.stdout:
            major, minor, *_, executable = done.stdout.split()
            found.append(((int(major), int(minor)), executable))
    return max(found)[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the checked sdist, the wheel and the SBOM."""
    folder = tmp_path_factory.mktemp("built")
    run("make", "sbom", f"DIST={folder}/dist", f"BUILD={folder}/build", f"PYTHON={sys.executable}")
    return folder


@pytest.mark.parametrize("python", [present_python, newest_python])
def test_the_wheel_runs_where_nothing_else_is_installed(
    built: Path, tmp_path: Path, python: Callable[[], str]
):
    (wheel,) = (built / "dist").glob("*.whl")
    run(python(), "-m", "venv", tmp_path / "venv")
    programs = tmp_path / "venv/bin"
    run(programs / "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel)
    here = tmp_path / "here"
    here.mkdir()
    version = f"rsnotify {rsnotify.__version__}\n"
    assert run(programs / "rsnotify", "--version", folder=here) == version
    assert "in step" in run(programs / "rsnotify", "demo", "--seconds", "2", folder=here)
    (here / "import_all.py").write_text(IMPORT_ALL)
    packages = [one.name for one in ROOT.glob("*/rsnotify_*")]
    missing = run(programs / "python", "import_all.py", "rsnotify", *packages, folder=here)
    assert {one.partition(".")[0] for one in missing.split()} <= EXTRAS


def test_the_description_has_no_relative_link(built: Path):
    (wheel,) = (built / "dist").glob("*.whl")
    text = run("unzip", "-p", wheel, "*/METADATA")
    assert "https://github.com/rsnotify/rsnotify/blob/v" in text
    assert not re.findall(r'(?:\]\(|src="|href=")(?!http|#)[^)"]*', text)


def test_the_sbom_has_the_package_and_what_it_requires(built: Path):
    bill = json.loads((built / "build/rsnotify.cdx.json").read_text())
    versions = {one["name"].lower().replace("_", "-"): one["version"] for one in bill["components"]}
    assert versions["rsnotify"] == rsnotify.__version__
    always = {
        re.split(r"[^\w-]", one)[0].lower()
        for one in requires("rsnotify") or []
        if "extra ==" not in one
    }
    assert always <= versions.keys()
    assert {"nats-py", "slixmpp", "uvloop"} <= versions.keys()
    assert "pytest" not in versions
