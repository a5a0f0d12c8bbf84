"""The house keeps its shape: who may import whom (docs/design.md)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "rsnotify"
PACKAGES = {
    "rsnotify_hub": ROOT / "hub/rsnotify_hub",
    "rsnotify_publisher": ROOT / "publisher/rsnotify_publisher",
    "rsnotify_relay": ROOT / "relay/rsnotify_relay",
    "rsnotify_subscriber": ROOT / "subscriber/rsnotify_subscriber",
}
#: A relay is a Destination and a Source: the one package that may use two others.
USES = {"rsnotify_relay": {"rsnotify_publisher", "rsnotify_subscriber"}}
IO_MODULES = {
    "aiohttp", "apscheduler", "asyncio", "concurrent", "ctypes", "filelock", "http", "io",
    "logging", "mmap", "multiprocessing", "os", "paho", "pathlib", "select", "selectors",
    "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess", "tempfile", "threading",
    "time", "urllib.request", "uvloop", "watchfiles", "websockets",
}  # fmt: skip
#: The parts of the package that do I/O: the command line, MQTT, and what is asked of the machine.
#: The rest never imports them.
COMMAND_LINE = {
    "rsnotify.runtime.cli.application",
    "rsnotify.runtime.cli.running",
    "rsnotify.__main__",
}
MQTT = {"rsnotify.runtime.mqtt"}
HOST = {"rsnotify.runtime"}
#: What of MQTT are rules without I/O, as all the rest is.
MQTT_RULES = {"rsnotify.runtime.mqtt.framing", "rsnotify.runtime.mqtt.names"}


def imports(path: Path) -> set[str]:
    """Return the full names of all modules that a file imports, at any depth."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            names.add(node.module or "")
    return names


def within(name: str, modules: set[str]) -> bool:
    return any(name == module or name.startswith(module + ".") for module in modules)


def does_io(path: Path) -> bool:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    if within(name, MQTT):
        return name not in MQTT_RULES
    return within(name, COMMAND_LINE | HOST)


CORE_FILES = [path for path in CORE.rglob("*.py") if not does_io(path)]


def test_there_is_a_core_to_look_at() -> None:
    assert len(CORE_FILES) > 10


@pytest.mark.parametrize("path", CORE_FILES, ids=lambda path: path.name)
def test_the_core_imports_no_io_and_nobody_above_it(path: Path) -> None:
    forbidden = IO_MODULES | set(PACKAGES) | COMMAND_LINE | MQTT | HOST
    assert {name for name in imports(path) if within(name, forbidden)} == set()


@pytest.mark.parametrize("path", CORE_FILES, ids=lambda path: path.name)
def test_the_core_reads_no_clock(path: Path) -> None:
    calls = {
        ast.unparse(node.func)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
    }
    clocks = {"datetime.now", "datetime.utcnow", "datetime.today", "date.today", "open", "print"}
    assert calls & clocks == set()


def test_mqtt_and_the_command_line_know_nothing_of_each_other_nor_of_who_is_above() -> None:
    for path in (*(CORE / "mqtt").glob("*.py"), *(CORE / "host").glob("*.py")):
        forbidden = set(PACKAGES) | COMMAND_LINE
        assert {name for name in imports(path) if within(name, forbidden)} == set(), path
    for path in (CORE / "commands").rglob("*.py"):
        assert {name for name in imports(path) if within(name, MQTT)} == set(), path


@pytest.mark.parametrize("package", PACKAGES)
def test_the_packages_never_import_each_other_but_for_the_relay(package: str) -> None:
    others = set(PACKAGES) - {package} - USES.get(package, set())
    for path in PACKAGES[package].rglob("*.py"):
        assert {name for name in imports(path) if within(name, others)} == set(), path


@pytest.mark.parametrize("package", PACKAGES)
def test_only_commands_use_the_command_line_of_the_core(package: str) -> None:
    for path in PACKAGES[package].rglob("*.py"):
        if "command" not in path.stem.split("_"):
            assert {name for name in imports(path) if within(name, COMMAND_LINE)} == set(), path
