"""What `make dist` and `make sbom` build, installed where there is nothing else, in every way that
docs/installing.md shows: from an index on this machine, with pip, uv and pipx.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from functools import partial
from hashlib import sha256
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import requires
from pathlib import Path
from threading import Thread

import pytest

import rsnotify
from tests.archives import extract
from tests.packages import PACKAGES, ROOT
from tests.ports import free_port
from tests.reader import fences_of, lines_of

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
EXTRAS = {
    *("django", "feedparser", "jsonpatch", "jsonpointer", "nats", "nkeys", "psycopg"),
    *("pyoxigraph", "slixmpp", "sqlalchemy"),
}
#: What cannot be tried without a network, or a container engine.
ELSEWHERE = ("docker", "pypi-attestations", "pip install pypi-attestations")
VERSION = rsnotify.__version__


def run(
    *command: str | Path, folder: Path = ROOT, environment: dict[str, str] | None = None
) -> str:
    """Return what a command prints; it sees no packages but those of its environment."""
    if environment is None:
        environment = {
            name: one for name, one in os.environ.items() if not name.startswith("PYTHON")
        }
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
    command = programs / "rsnotify"
    assert run(command, "--version", folder=here) == f"rsnotify {VERSION}\n"
    assert "Usage: rsnotify" in run(command, "--help", folder=here)
    assert "in step" in run(command, "demo", "--seconds", "2", folder=here)
    assert f"rsnotify {VERSION}" in run(command, "doctor", folder=here)
    follow_once(command, here)
    assert missing_packages(programs, here) <= EXTRAS
    run(programs / "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", f"{wheel}[all]")
    assert missing_packages(programs, here) <= {"django"}


def follow_once(command: Path, here: Path) -> None:
    """Copy a folder that a Source publishes, by the commands alone."""
    (here / "data").mkdir()
    (here / "data/one.txt").write_text("one\n")
    url = f"http://127.0.0.1:{(port := free_port())}/"
    source = subprocess.Popen(
        [command, "source", "data", "--base-url", url, "--port", str(port)],
        cwd=here,
        stdout=subprocess.PIPE,
        text=True,
    )
    with source:
        try:
            assert source.stdout is not None
            assert "serving" in source.stdout.readline()
            run(command, "follow", url, "copy", "--once", folder=here)
        finally:
            source.terminate()
    assert (here / "copy/one.txt").read_text() == "one\n"


def missing_packages(programs: Path, here: Path) -> set[str]:
    """Return what modules import that is not installed."""
    (here / "import_all.py").write_text(IMPORT_ALL)
    missing = run(programs / "python", "import_all.py", *PACKAGES, folder=here)
    return {one.partition(".")[0] for one in missing.split()}


def test_a_second_build_has_the_same_bytes(built: Path, tmp_path: Path):
    run("make", "dist", f"DIST={tmp_path}", f"PYTHON={sys.executable}")
    first, second = (
        {one.name: sha256(one.read_bytes()).hexdigest() for one in folder.iterdir()}
        for folder in (built / "dist", tmp_path)
    )
    assert first == second


def test_the_wheel_has_the_packages_with_types_commands_and_licences(built: Path):
    (path,) = (built / "dist").glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        points = ConfigParser(delimiters=["="])
        points.optionxform = str  # type: ignore[assignment,method-assign]
        points.read_string(wheel.read(f"rsnotify-{VERSION}.dist-info/entry_points.txt").decode())
    assert {one.partition("/")[0] for one in names} == {*PACKAGES, f"rsnotify-{VERSION}.dist-info"}
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    licences = {f"rsnotify-{VERSION}.dist-info/licenses/{one}" for one in project["license-files"]}
    assert licences <= names
    groups = {"console_scripts": project["scripts"], **project["entry-points"]}
    assert {name: dict(points[name]) for name in points.sections()} == groups


#: From a Source to its hubs, and from pushed changes to a copy.
SUITES = ("tests/publisher/test_push.py", "tests/subscriber/test_following.py")


def test_the_oldest_packages_that_are_allowed_do(tmp_path: Path):
    uv = Path(sys.prefix, "bin/uv")
    python = tmp_path / "venv/bin/python"
    run(uv, "venv", "--quiet", "--python", sys.executable, tmp_path / "venv")
    install = (uv, "pip", "install", "--quiet", "--python", python)
    project = ("-r", ROOT / "pyproject.toml", "--all-extras")
    run(*install, "--resolution", "lowest-direct", *project)
    oldest = tmp_path / "oldest.txt"
    oldest.write_text(run(uv, "pip", "freeze", "--python", python))
    tools = ("hypothesis", "pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "pyyaml")
    run(*install, "-c", oldest, *tools, "django", "uvicorn")
    run(*install, "--no-deps", "-e", ROOT)
    options = ("-p", "no:xdist", "-p", "no:cacheprovider", "-m", "not slow", "--timeout", "60")
    assert " passed" in run(python, "-m", "pytest", "-q", *options, *SUITES)


# Every way to install


@pytest.fixture(scope="module")
def site(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An index with rsnotify and what it requires, archives, and a repository; on this machine."""
    folder = tmp_path_factory.mktemp("site")
    (wheel,) = (built / "dist").glob("*.whl")
    pip = (sys.executable, "-m", "pip")
    needed = ("hatchling", "hatch-fancy-pypi-readme", "pip", f"{wheel}[hub,nats]")
    constraints = ("-c", ROOT / "constraints.txt")
    run(*pip, "wheel", "--quiet", "--wheel-dir", folder / "wheels", *constraints, *needed)
    for one in (folder / "wheels").iterdir():
        name = re.sub(r"[-_.]+", "-", one.name.partition("-")[0]).lower()
        (folder / "simple" / name).mkdir(parents=True, exist_ok=True)
        one.rename(folder / "simple" / name / one.name)
    (source,) = (built / "dist").glob("*.tar.gz")
    (folder / "archive/refs/tags").mkdir(parents=True)
    (folder / f"archive/refs/tags/v{VERSION}.tar.gz").write_bytes(source.read_bytes())
    (folder / f"v{VERSION}").mkdir()
    (folder / f"v{VERSION}/constraints.txt").write_bytes((ROOT / "constraints.txt").read_bytes())
    with tarfile.open(source) as archive:
        extract(archive, folder)
    repository = (folder / f"rsnotify-{VERSION}").rename(folder / "rsnotify")
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org")
    run(*git, "init", "--quiet", folder=repository)
    run(*git, "add", "--all", folder=repository)
    run(*git, "commit", "--quiet", "--message", "a", folder=repository)
    run(*git, "tag", f"v{VERSION}", folder=repository)
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(folder))
    )
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        (folder / "url").write_text(f"http://127.0.0.1:{server.server_port}")
        yield str(folder)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def environment_of(home: Path, site: Path) -> dict[str, str]:
    """Return the environment of a user who has Python, git, uv and pipx, and only our index."""
    tools = home / "tools"
    tools.mkdir(parents=True)
    for name in ("uv", "uvx", "pipx"):
        (tools / name).symlink_to(Path(sys.prefix, "bin", name))
    (tools / "python3").symlink_to(Path(sys.base_prefix, "bin/python3").resolve())
    index = f"{(site / 'url').read_text()}/simple/"
    programs = (home / ".venv/bin", home / ".local/bin", tools, "/usr/bin", "/bin")
    return {
        "HOME": str(home),
        "LC_ALL": "C.UTF-8",
        "PATH": os.pathsep.join(map(str, programs)),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_INDEX_URL": index,
        "UV_DEFAULT_INDEX": index,
        "UV_NO_CONFIG": "1",
        "UV_PYTHON": str(tools / "python3"),
        "UV_PYTHON_DOWNLOADS": "never",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.file://{site}/rsnotify.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://github.com/rsnotify/rsnotify",
    }


def test_every_command_of_the_page_on_installing_works(site: str, tmp_path: Path):
    here = Path(site)
    addresses = (
        "https://raw.githubusercontent.com/rsnotify/rsnotify",
        "https://github.com/rsnotify/rsnotify/archive",
    )
    url = (here / "url").read_text()
    replaced = {addresses[0]: url, addresses[1]: f"{url}/archive"}
    homes = {name: tmp_path / name for name in ("uv", "pipx", "pip")}
    environments = {name: environment_of(home, here) for name, home in homes.items()}

    def do(tool: str, line: str) -> str:
        environment, home = environments[tool], homes[tool]
        return run("bash", "-c", line, folder=home, environment=environment)

    page = (ROOT / "docs/installing.md").read_text()
    lines = [one for name, body in fences_of(page) if name == "sh" for one in lines_of(body)]
    for line in lines:
        if line.startswith(ELSEWHERE):
            continue
        for address, ours in replaced.items():
            line = line.replace(address, ours)
        tool = {"uv": "uv", "uvx": "uv", "pipx": "pipx"}.get(line.split()[0], "pip")
        installs = line.startswith("pip install")
        if installs:
            do("pip", "pip uninstall --quiet --yes rsnotify pyjwt uvloop nats-py")
        output = do(tool, f"{line} --seconds 2" if line.endswith(" demo") else line)
        if " demo" in line:
            assert "in step" in output
        if installs or line.endswith((" install rsnotify", "upgrade rsnotify")):
            assert do(tool, "rsnotify --version") == f"rsnotify {VERSION}\n", line
        if installs and (extras := re.search(r"\[(.*)\]", line)):
            modules = {"hub": "jwt, uvloop", "nats": "nats"}
            for extra in extras[1].split(","):
                do("pip", f"python -c 'import {modules[extra]}'")
        if " uninstall " in line:
            missing = do(tool, "command -v rsnotify || echo nothing")
            assert missing == "nothing\n", line
    assert f"rsnotify {VERSION}\n" == do("pipx", "pipx run rsnotify --version")


def test_the_description_has_no_relative_link(built: Path):
    (wheel,) = (built / "dist").glob("*.whl")
    text = run("unzip", "-p", wheel, "*/METADATA")
    assert "https://github.com/rsnotify/rsnotify/blob/v" in text
    assert not re.findall(r'(?:\]\(|src="|href=")(?!http|#)[^)"]*', text)


def test_the_sbom_has_the_package_and_what_it_requires(built: Path):
    bill = json.loads((built / "build/rsnotify.cdx.json").read_text())
    versions = {one["name"].lower().replace("_", "-"): one["version"] for one in bill["components"]}
    assert versions["rsnotify"] == VERSION
    always = {
        re.split(r"[^\w-]", one)[0].lower()
        for one in requires("rsnotify") or []
        if "extra ==" not in one
    }
    assert always <= versions.keys()
    assert {"jsonpatch", "nats-py", "pyjwt", "uvloop"} <= versions.keys()
    assert "pytest" not in versions
