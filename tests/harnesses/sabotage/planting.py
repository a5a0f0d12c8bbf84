"""Runs tests in a copy of the project with one planted bug.

The copy has a virtual environment of its own, in which the packages of this project are not
installed. So whatever the tests start, in whatever way, runs the copy; `_check_copy` and the plugin
`failures` check that.
"""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from msgspec import Struct

from tests.harnesses.sabotage.bugs import ROOT, Bug
from tests.harnesses.sabotage.failures import NAME, PACKAGES, read_failures

#: The last are files that another process is about to rename.
_LEFT_OUT = (".git", ".venv", ".fuzzing", ".hypothesis", "build", ".*_cache", "results", "*.pyc.*")
_OPTIONS = (
    *("-q", "-m", "not slow", "-p", "no:xdist", "-p", "no:cacheprovider", "--timeout", "300"),
    *(
        "-p",
        "tests.harnesses.sabotage.failures",
        "-W",
        "ignore::hypothesis.errors.HypothesisWarning",
    ),
)
#: Seconds that the tests of one bug may take.
_LIMIT = 1_800


class Verdict(Struct):
    """The outcome of one bug.

    Attributes:
        found_by: The test that failed first, with `error`.
        problem: Why that does not count, or what is wrong with the entry; empty if it was found.
        version: Of the entry, its module and its tests.
    """

    bug: str
    file: str
    seconds: float = 0.0
    found_by: str = ""
    error: str = ""
    problem: str = ""
    version: str = ""


@contextmanager
def copied_project() -> Iterator[Path]:
    """Return a context with a copy of the project, in which `examine` plants bugs."""
    with TemporaryDirectory(prefix="sabotage-") as folder:
        project = Path(folder).resolve() / "project"
        # With what was compiled before, since copies keep the times of files.
        shutil.copytree(ROOT, project, ignore=shutil.ignore_patterns(*_LEFT_OUT), symlinks=True)
        _make_environment(project)
        _check_copy(project)
        yield project


def examine(bug: Bug, project: Path) -> Verdict:
    """Plant a bug, and return which test finds it; then remove the bug."""
    begun = monotonic()
    verdict = Verdict(bug.name, bug.file)
    try:
        planted = bug.planted(project)
        verdict.version = bug.version(project)
    except (OSError, ValueError) as error:
        verdict.problem = f"does not apply: {error}"
        return verdict
    module = project / bug.file
    text, times = module.read_text(), module.stat()
    module.write_text(planted)
    try:
        output = _test(project, ["-x", *bug.tests], _LIMIT)
        failures = read_failures(project)
        if not failures:
            verdict.problem = f"no test fails: {output}"
        else:
            verdict.found_by, verdict.error = failures[0].test, failures[0].error
            if not failures[0].asserted:
                verdict.problem = f"not an assertion: {verdict.error}"
    except subprocess.TimeoutExpired as error:
        verdict.problem = str(error)
    finally:
        module.write_text(text)
        os.utime(module, ns=(times.st_atime_ns, times.st_mtime_ns))  # what was compiled is valid
    verdict.seconds = monotonic() - begun
    return verdict


def failing_without_bug(tests: Sequence[str], project: Path) -> list[str]:
    """Return which of these tests, or of those in these files, fail: they would find any bug."""
    if not tests:
        return []
    output = _test(project, ["--maxfail=5", *tests], None)
    failing = [f"{failure.test}: {failure.error}" for failure in read_failures(project)]
    return failing or ([] if "passed" in output and "error" not in output else [output])


def _test(project: Path, arguments: Sequence[str], seconds: float | None) -> str:
    """Run tests; return the last line of the output."""
    (project / NAME).unlink(missing_ok=True)
    ended = subprocess.run(
        [project / ".venv/bin/python", "-m", "pytest", *_OPTIONS, *arguments],
        cwd=project,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    lines = (ended.stdout.strip() or ended.stderr.strip()).splitlines()
    return lines[-1] if lines else f"pytest ended with {ended.returncode}"


def _make_environment(project: Path) -> None:
    made, here = project / ".venv", Path(sys.executable).parent
    venv.create(made, symlinks=True)
    settings = tomllib.loads((project / "pyproject.toml").read_text())
    folders = settings["tool"]["hatch"]["build"]["dev-mode-dirs"]
    # The packages that this environment has; its own `.pth` files are not read from there.
    paths = [*(project / one for one in folders), *site.getsitepackages()]
    (packages,) = made.glob("lib/python*/site-packages")
    (packages / "copy.pth").write_text("\n".join(map(str, paths)))
    old, new = os.fsencode(here), os.fsencode(made / "bin")
    for script in here.iterdir():
        copied = made / "bin" / script.name
        with script.open("rb") as file:
            begin = file.readline()
        if script.is_symlink() or copied.exists():
            continue
        if begin.startswith(b"#!" + old):
            copied.write_bytes(script.read_bytes().replace(old, new, 1))
            copied.chmod(0o755)
        elif begin.startswith(b"\x7fELF"):  # such as nats-server
            copied.symlink_to(script)


def _check_copy(project: Path) -> None:
    """Check that a process without our variables, in another folder, imports the copy."""
    program = "import importlib.util as u, sys\nfor n in sys.argv[1:]: print(u.find_spec(n).origin)"
    found = subprocess.run(
        [project / ".venv/bin/python", "-I", "-c", program, *PACKAGES],
        cwd="/",
        env={},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    outside = [path for path in found if not Path(path).is_relative_to(project)]
    if outside or len(found) != len(PACKAGES):
        raise RuntimeError(f"the copy in {project} is not what is imported: {found}")
