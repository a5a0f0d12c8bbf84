"""The rules on who may import whom (docs/design.md)."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.packages import CORES, PACKAGES, ROOT

PURE = ("rsnotify.format", "rsnotify.sync", "rsnotify.selection")
#: The modules of the extension `validation` that read files and URLs, or the clock.
VALIDATION_SHELL = {
    f"rsnotify_validation.{name}"
    for name in ("commands", "doctor", "document_checker", "inspection", "target_validation")
}
EXTENSIONS = sorted(set(PACKAGES) - set(CORES))
#: Commands, beside the modules that are named so.
COMMANDS = {"rsnotify.__main__", "rsnotify_demo.demo", "rsnotify_hub_check.run"}
#: File names that several folders of a package may have.
SHARED_NAMES = {"__init__", "command", "config"}
IO_MODULES = {
    "aiohttp", "apscheduler", "asyncio", "concurrent", "ctypes", "filelock", "http", "io",
    "logging", "mmap", "multiprocessing", "os", "paho", "pathlib", "select", "selectors",
    "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess", "tempfile", "threading",
    "time", "urllib.request", "uvloop", "watchfiles", "websockets",
}  # fmt: skip


def module_of(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    module_of(path, root): path
    for package, root in PACKAGES.items()
    for path in sorted((root / package).rglob("*.py"))
}


def within(name: str, modules: set[str] | tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(module + ".") for module in modules)


PURE_MODULES = sorted(
    name
    for name in MODULES
    if within(name, PURE)
    or (within(name, ("rsnotify_validation",)) and name not in VALIDATION_SHELL)
)


@cache
def tree_of(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text())


@cache
def imports_of(name: str) -> frozenset[str]:
    """Return the full names of all modules that a module imports, at any depth."""
    names = set()
    for node in ast.walk(tree_of(name)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: imports are absolute"
            module = node.module or ""
            full = {f"{module}.{alias.name}" for alias in node.names}
            names |= {one if one in MODULES else module for one in full}
    return frozenset(names)


def test_there_are_pure_modules() -> None:
    assert all(any(within(name, (pure,)) for name in MODULES) for pure in PURE)
    assert MODULES.keys() >= VALIDATION_SHELL
    assert len(PURE_MODULES) > 35


def test_a_pure_module_imports_no_io() -> None:
    allowed = {"rsnotify.errors", "rsnotify.runtime.lazy_exports"}
    for name in PURE_MODULES:
        forbidden = {
            imported
            for imported in imports_of(name) - allowed
            if within(imported, IO_MODULES)
            or (within(imported, tuple(PACKAGES)) and imported not in PURE_MODULES)
        }
        assert forbidden == set(), name


def test_a_pure_module_reads_no_clock_and_no_file() -> None:
    clocks = {"datetime.now", "datetime.utcnow", "datetime.today", "date.today", "open", "print"}
    for name in PURE_MODULES:
        nodes = ast.walk(tree_of(name))
        calls = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
        assert calls & clocks == set(), name


def uses(package: str) -> dict[str, set[str]]:
    """Return the other packages that the modules of a package import, by module; at any depth."""
    found = {}
    for name in MODULES:
        if within(name, {package}):
            packages = {imported.partition(".")[0] for imported in imports_of(name)}
            found[name] = packages & PACKAGES.keys() - {package}
    return found


@pytest.mark.parametrize("package", CORES)
def test_a_core_imports_no_extension_and_no_other_core(package: str) -> None:
    for name, used in uses(package).items():
        assert used <= {"rsnotify"}, name


@pytest.mark.parametrize("package", EXTENSIONS)
def test_an_extension_imports_cores_and_no_other_extension(package: str) -> None:
    for name, used in uses(package).items():
        assert used <= {*CORES}, name


@pytest.mark.parametrize("package", CORES)
def test_a_core_names_no_module_of_an_extension(package: str) -> None:
    """Nor does a core import an extension by its name in a text."""
    for name in MODULES:
        if within(name, {package}):
            texts = {
                node.value
                for node in ast.walk(tree_of(name))
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
            }
            named = {text for text in texts if within(text.partition(":")[0], tuple(EXTENSIONS))}
            assert named == set(), name


def test_only_commands_import_the_shared_command_line() -> None:
    shared = "rsnotify.runtime.command_line"
    for name in MODULES:
        if shared in imports_of(name):
            is_command = any("command" in part for part in name.split("."))
            assert is_command or name in COMMANDS, name


@cache
def loads_of(name: str) -> frozenset[str]:
    """Return the modules of the project that importing a module imports."""
    found = set()
    for node in tree_of(name).body:
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            full = {f"{module}.{alias.name}" for alias in node.names}
            found |= {one if one in MODULES else module for one in full}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return frozenset(found & MODULES.keys() - {name})


def test_modules_do_not_import_each_other_in_a_cycle() -> None:
    graph = {name: loads_of(name) for name in MODULES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_a_file_name_is_used_once_in_a_package() -> None:
    places = defaultdict(set)
    for name, path in MODULES.items():
        if path.stem not in SHARED_NAMES:
            places[name.partition(".")[0], path.stem].add(name)
    assert [names for names in places.values() if len(names) > 1] == []


def folder_of(name: str) -> str:
    """Return the folder of a module; a module right in its package counts as a folder."""
    if MODULES[name].name == "__init__.py" or name.count(".") == 1:
        return name
    return name.rpartition(".")[0]


def folder_imports() -> dict[str, set[str]]:
    """Return which folders import from which; a folder and one inside it may use each other."""
    graph: dict[str, set[str]] = defaultdict(set)
    for name in MODULES:
        here = folder_of(name)
        for imported in loads_of(name):
            there = folder_of(imported)
            related = within(here, {there}) or within(there, {here})
            if there != here and not related:
                graph[here].add(there)
    return graph


def test_folders_do_not_import_each_other_in_a_cycle() -> None:
    graph = folder_imports()

    def reachable(start: str) -> set[str]:
        found: set[str] = set()
        waiting = list(graph[start])
        while waiting:
            folder = waiting.pop()
            if folder not in found:
                found.add(folder)
                waiting.extend(graph[folder])
        return found

    cycles = {folder for folder in list(graph) if folder in reachable(folder)}
    assert cycles == set()


LONGEST = 800
MOST_ARGUMENTS = 8
#: Constructors that have more arguments for a reason.
MORE_ARGUMENTS: dict[str, str] = {}
#: Modules that are longer for a reason.
LONGER: dict[str, str] = {}


def test_every_module_in_the_maps_and_flows_of_the_design_is_there() -> None:
    page = (ROOT / "docs/design.md").read_text()
    named = re.compile(r"^ *(?:⇒ )?([a-z_]+(?:(?:, |[./])[a-z_]+)*[/,]?)(?:  |$)", re.MULTILINE)
    names = {
        part
        for block in re.findall(r"```text\n(.*?)```", page, re.DOTALL)
        for place in named.findall(block)
        for part in re.findall(r"[a-z_]+", place)
    }
    parts = {part for name in MODULES for part in name.split(".")}
    tops = {"hub", "publisher", "subscriber", "extensions", "gateway", "py"}
    assert len(names) > 50
    assert names - tops <= parts


def test_no_module_is_too_long() -> None:
    lengths = {name: len(path.read_text().splitlines()) for name, path in MODULES.items()}
    assert {name: n for name, n in lengths.items() if n > LONGEST and name not in LONGER} == {}


def classes() -> list[tuple[str, ast.ClassDef]]:
    return [
        (name, node)
        for name in MODULES
        for node in tree_of(name).body
        if isinstance(node, ast.ClassDef)
    ]


def test_a_class_name_is_used_once() -> None:
    places = defaultdict(set)
    for name, node in classes():
        if not node.name.startswith("_"):
            places[node.name].add(name)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_constructor_has_too_many_arguments() -> None:
    found = {}
    for name, node in classes():
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                arguments = [*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs]
                if len(arguments) - 1 > MOST_ARGUMENTS:
                    found[f"{name}.{node.name}"] = len(arguments) - 1
    assert {name: n for name, n in found.items() if name not in MORE_ARGUMENTS} == {}
