"""A plugin of pytest that writes which tests failed, and whether by an assertion, to a file."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from msgspec import Struct, json

from tests import fork_server
from tests.packages import PACKAGES

#: In the folder of the project.
NAME = "failures.jsonl"


class Failure(Struct):
    """A failed test; `asserted` is false if it, or its preparation, ended by another error."""

    test: str
    error: str
    asserted: bool


def read_failures(project: Path) -> list[Failure]:
    path = project / NAME
    return json.Decoder(Failure).decode_lines(path.read_bytes()) if path.exists() else []


def pytest_configure() -> None:
    """Save time: most runs need no fork server, and nobody reads the smallest example."""
    fork_server.prepare = lambda: None  # it starts when it is needed
    usual = settings.get_profile("rsnotify")
    phases = [Phase.explicit, Phase.generate]
    settings.register_profile(
        "sabotage", usual, phases=phases, derandomize=True, database=None, print_blob=False
    )
    settings.load_profile("sabotage")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and call.excinfo is not None:
        error = call.excinfo.value
        asserted = call.when == "call" and any(map(_is_assertion, _parts(error)))
        line = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        _note(item.config.rootpath, Failure(item.nodeid, line, asserted))
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Note a failure, that is no assertion, if a module of another folder was imported."""
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        is_ours = name.partition(".")[0] in PACKAGES and file is not None
        if is_ours and not Path(file).is_relative_to(session.config.rootpath):
            _note(session.config.rootpath, Failure("", f"{file} was imported", False))


def _note(project: Path, failure: Failure) -> None:
    with (project / NAME).open("ab") as file:
        file.write(json.encode(failure) + b"\n")


def _parts(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _parts(part)
    else:
        yield error


def _is_assertion(error: BaseException) -> bool:
    """Return whether a test noticed something: wrong, missing, or not in time."""
    if isinstance(error, pytest.fail.Exception):
        return not str(error).startswith("Timeout (>")  # by pytest-timeout: something hangs
    return isinstance(error, AssertionError | TimeoutError)
