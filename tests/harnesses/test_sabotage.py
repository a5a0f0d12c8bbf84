"""The planted bugs fit the program as it is, and the runner says of each whether it was found."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from msgspec import json
from msgspec.structs import replace

from tests.harnesses.sabotage.__main__ import found_before
from tests.harnesses.sabotage.bugs import ROOT, Bug, bugs
from tests.harnesses.sabotage.planting import (
    Verdict,
    copied_project,
    examine,
    failing_without_bug,
)

BUGS = {bug.name: bug for bug in bugs()}


def test_bugs_have_different_names_and_are_sentences() -> None:
    names = [bug.name for bug in bugs()]
    assert len(names) == len(BUGS) >= 100
    assert [name for name in names if not re.fullmatch(r"[A-Z][^.]*[^.\s]", name)] == []


def test_each_bug_can_be_planted_and_the_module_still_compiles() -> None:
    for bug in BUGS.values():
        planted = bug.planted()
        assert planted != (ROOT / bug.file).read_text(), bug.name
        compile(planted, bug.file, "exec")


def test_each_bug_names_tests_that_exist_or_what_finds_it_instead() -> None:
    for bug in BUGS.values():
        assert bool(bug.tests) is not bool(bug.left_to), bug.name
        for test in bug.tests:
            file, _, name = test.partition("::")
            assert (ROOT / file).is_file(), test
            assert not name or name.partition("[")[0] in _functions(file), test


def test_a_bug_that_does_not_fit_the_program_is_reported() -> None:
    bug = Bug(name="It has moved", file="rsnotify/errors.py", old="nowhere", new="")
    for outdated in (bug, replace(bug, file="rsnotify/nowhere.py")):
        assert examine(outdated, ROOT).problem.startswith("does not apply: ")


def test_a_bug_is_examined_again_unless_it_was_found_as_it_is_now(tmp_path: Path) -> None:
    bug, report = BUGS["A signature is accepted whatever the secret"], tmp_path / "report.jsonl"
    assert found_before([bug], report) == {}
    found = Verdict(bug.name, bug.file, version=bug.version())
    changed, missed = replace(found, version="other"), replace(found, problem="no test fails")
    for last in (found, changed, found, missed):
        with report.open("ab") as file:
            file.write(json.encode(last) + b"\n")
        assert found_before([bug], report) == ({bug.name: found} if last is found else {})


@cache
def _functions(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in tree.body if isinstance(node, kinds)}


def test_the_runner_accepts_an_assertion_and_no_other_error() -> None:
    signatures = BUGS["A signature is accepted whatever the secret"]
    broken = replace(signatures, old="header.strip()", new="header.there_is_no_such_method()")
    # In a process that an entry point of the environment starts.
    program = Bug(
        name="The program has another name",
        file="rsnotify/runtime/command_line.py",
        old='run_application(application(), "rsnotify")',
        new='run_application(application(), "planted")',
        tests=["tests/test_command_line.py::test_the_installed_program_has_each_command"],
    )
    with copied_project() as project:
        verdicts = [examine(bug, project) for bug in (program, broken)]
        (project / "tests/core/test_failing.py").write_text("def test_it(): assert not 'right'")
        failing = failing_without_bug([*program.tests, "tests/core/test_failing.py"], project)
    assert [verdict.problem.partition(":")[0] for verdict in verdicts] == ["", "not an assertion"]
    assert verdicts[0].found_by.startswith(program.tests[0])
    assert [one.partition(":")[0] for one in failing] == ["tests/core/test_failing.py"]
