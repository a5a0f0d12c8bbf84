"""The rules on who may import whom (docs/design.md)."""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from tests.packages import PACKAGES, ROOT

#: A relay is a Destination and a Source, so it may use both libraries. A gateway is a Source, and
#: makes requests as a Destination does.
USES = {
    name: {"rsnotify_publisher", "rsnotify_subscriber"}
    for name in ("rsnotify_gateway", "rsnotify_relay")
}
#: Extensions of a core use what it has.
USES["rsnotify_jetstream"] = {"rsnotify_hub"}
#: A hub that follows origins has a gateway, which is imported only then.
USES["rsnotify_hub"] = {"rsnotify_gateway", "rsnotify_publisher"}
FOLLOWING = ("rsnotify_gateway.in_hub", "rsnotify_gateway.in_hub")
PURE = ("rsnotify.format", "rsnotify.sync", "rsnotify.selection", "rsnotify_validation")
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
PURE_MODULES = sorted(name for name in MODULES if name.startswith(PURE))


def within(name: str, modules: set[str] | tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(module + ".") for module in modules)


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


def test_the_pure_folders_have_modules() -> None:
    assert {name.split(".")[1] for name in PURE_MODULES} == {name.split(".")[1] for name in PURE}
    assert len(PURE_MODULES) > 40


@pytest.mark.parametrize("name", PURE_MODULES)
def test_a_pure_module_imports_no_io(name: str) -> None:
    allowed = {"rsnotify.errors"}
    forbidden = {
        imported
        for imported in imports_of(name) - allowed
        if within(imported, IO_MODULES)
        or (within(imported, tuple(PACKAGES)) and not within(imported, PURE))
    }
    assert forbidden == set()


@pytest.mark.parametrize("name", PURE_MODULES)
def test_a_pure_module_reads_no_clock_and_no_file(name: str) -> None:
    calls = {
        ast.unparse(node.func) for node in ast.walk(tree_of(name)) if isinstance(node, ast.Call)
    }
    clocks = {"datetime.now", "datetime.utcnow", "datetime.today", "date.today", "open", "print"}
    assert calls & clocks == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_none_of_the_others_but_rsnotify(package: str) -> None:
    others = set(PACKAGES) - {package, "rsnotify"} - USES.get(package, set())
    for name in MODULES:
        if within(name, {package}):
            found = {imported for imported in imports_of(name) if within(imported, others)}
            assert found == set(), name


def test_the_hub_imports_neither_nats_nor_the_extension_that_does() -> None:
    for name in MODULES:
        if within(name, {"rsnotify_hub"}):
            found = {one for one in imports_of(name) if within(one, {"nats", "rsnotify_jetstream"})}
            assert found == set(), name


def test_only_what_follows_origins_imports_the_gateway_into_the_hub() -> None:
    used = USES["rsnotify_hub"]
    hub = {name for name in MODULES if within(name, {"rsnotify_hub"})}
    found = {name for name in hub if any(within(each, used) for each in imports_of(name))}
    assert found == set(FOLLOWING)


def test_only_commands_import_the_shared_command_line() -> None:
    for name in MODULES:
        if not within(name, ("rsnotify.runtime.cli", "rsnotify_demo", "rsnotify.__main__")):
            commands = {part for part in name.split(".") if "command" in part}
            found = {used for used in imports_of(name) if within(used, {"rsnotify.runtime.cli"})}
            assert commands or not found, name


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
        for imported in imports_of(name) & MODULES.keys():
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


def test_every_package_is_in_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {path.rpartition("/")[2] for path in packages} == set(PACKAGES)
    assert project["tool"]["check-wheel-contents"]["package"] == packages


LONGEST = 800
MOST_ARGUMENTS = 8
#: Constructors that have more arguments for a reason.
MORE_ARGUMENTS: dict[str, str] = {}
#: Modules that are longer for a reason.
LONGER: dict[str, str] = {}


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
