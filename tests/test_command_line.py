"""The command line in the first minute: help, version, completion, and wrong values."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from rsnotify.errors import ConfigurationError
from rsnotify.runtime import processes
from rsnotify.runtime.command_line import ROLES, application, require_files
from rsnotify_hub_check.run import app as hub_check
from tests.cases import for_each

#: What takes long to import, and no help needs.
HEAVY = {
    "aiohttp", "apscheduler", "cryptography", "httptools", "jsonpatch", "jwt", "lxml", "paho",
    "prometheus_client", "rich.console", "sqlite3", "uvloop", "watchfiles", "websockets",
}  # fmt: skip
#: The options that one list of the help may have, besides --help.
MOST_OPTIONS = 12
#: The options that the help of one command may show, with --help and --help-all.
MOST_SHOWN = 17


def commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield a command and all below it, with what one types for each."""
    yield path, command
    if hasattr(command, "list_commands"):
        context = typer.Context(command)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), (*path, name))


COMMANDS = {
    " ".join(path): command
    for app, name in ((application(), "rsnotify"), (hub_check, "rsnotify-hub-check"))
    for path, command in commands(typer.main.get_command(app), (name,))
}
each_command = for_each(COMMANDS)


@cache
def help_of(name: str, option: str = "--help") -> str:
    program, *path = name.split()
    app = application() if program == "rsnotify" else hub_check
    ended = CliRunner().invoke(app, [*path, option], prog_name=program, env={"COLUMNS": "80"})
    assert ended.exit_code == 0, ended.output
    return ended.output


def loaded_by(*runs: list[str]) -> set[str]:
    """Return the modules that a process has loaded after these runs of `rsnotify`."""
    program = """
import contextlib, io, json, sys
from rsnotify.runtime.command_line import application
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        application()(arguments)
print(json.dumps(sorted(sys.modules)))
"""
    command = [sys.executable, "-c", program, json.dumps(runs)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return set(json.loads(ended.stdout))


def test_help_version_and_token_import_nothing_that_is_slow_to_import():
    helps = [[*name.split()[1:], "--help"] for name in COMMANDS if name.startswith("rsnotify ")]
    assert loaded_by(["--help"], *helps, ["--version"], ["hub", "token"]) & HEAVY == set()


@each_command
def test_the_help_shows_every_default_without_parentheses(name: str):
    assert not re.search(r"default:\s+\(", help_of(name))


def test_the_help_of_all_commands_imports_no_event_loop():
    assert "asyncio" not in loaded_by(["--help"])


def test_slow_modules_exist_under_the_checked_names():
    for name in HEAVY:
        import_module(name)


@pytest.mark.parametrize("package", ["rsnotify_publisher", "rsnotify_relay", "rsnotify_subscriber"])
def test_packages_offer_all_their_names_though_they_import_none(package: str):
    module = import_module(package)
    assert set(module.__all__) <= set(dir(module))
    assert all(getattr(module, name) for name in module.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = module.no_such_name


@pytest.mark.parametrize("command", sorted(entry_points(group="rsnotify.commands").names))
def test_the_installed_program_has_each_command(command: str):
    program = Path(sys.executable).with_name("rsnotify")
    words = [program, command, "--help"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.startswith(f"Usage: rsnotify {command} ")


def test_it_prints_its_version():
    assert re.fullmatch(r"rsnotify \d+\.\d+\.\d+\S*\n", help_of("rsnotify", "--version"))


@each_command
def test_a_short_option_shows_the_help_too(name: str):
    assert help_of(name, "-h") == help_of(name)


@each_command
def test_help_has_two_examples_that_the_command_understands(name: str):
    examples = re.search(r"\nExamples:\n((?:  .*\n)+)", help_of(name))
    assert examples is not None
    lines = [shlex.split(line) for line in examples[1].splitlines()]
    assert len(lines) >= 2
    for words in lines:
        assert " ".join(words).startswith(name)
        below = COMMANDS[name]
        rest = words[len(name.split()) :]
        if name == "rsnotify":  # its examples are of its commands
            rest = [word for word in rest if word != "--verbose"]
            below = COMMANDS[f"rsnotify {rest.pop(0)}"]
        below.make_context(name, rest)


@each_command
def test_help_names_values_by_their_meaning_and_not_by_their_type(name: str):
    assert re.findall(r"^  (?:-\S, )?(?:--\S+|[A-Z]+) <.*", help_of(name), re.MULTILINE) == []


@each_command
def test_help_has_no_list_of_options_that_is_too_long_to_read(name: str):
    for title, group in re.findall(r"^(\S.*):\n((?:  .*\n)+)", help_of(name), re.MULTILINE):
        options = re.findall(r"^  (?:-\S, )?--(?!help)", group, re.MULTILINE)
        assert len(options) <= MOST_OPTIONS, title


@each_command
def test_help_describes_each_command_in_a_complete_sentence(name: str):
    commands = help_of(name).partition("Show this message and exit.")[2]
    assert re.findall(r".*\.\.\.$", commands, re.MULTILINE) == []


def shown_options(text: str) -> set[str]:
    return set(re.findall(r"^  (?:-\S, )?(--\S+)", text, re.MULTILINE))


@each_command
def test_help_shows_few_options_and_help_all_every_option(name: str):
    short, whole = help_of(name), help_of(name, "--help-all")
    assert len(shown_options(short)) <= MOST_SHOWN
    assert "env var" not in short
    command = COMMANDS[name]
    options = {
        max(each.opts, key=len)
        for each in command.get_params(typer.Context(command))
        if each.param_type_name == "option"
    }
    assert shown_options(whole) == options
    rest = len(options) - len(shown_options(short))
    assert (f"`{name} --help-all` shows {rest} more options" in short) == (rest > 0)
    if rest:
        examples = re.search(r"\nExamples:\n((?:  .*\n)+)", short)
        assert examples is not None
        assert len(examples[1].splitlines()) == 3


def test_the_help_groups_the_commands_by_their_roles():
    groups = re.findall(r"^(\w+):\n((?:  \w.*\n)+)", help_of("rsnotify"), re.MULTILINE)
    found = {title: re.findall(r"^  (\w+)", lines, re.MULTILINE) for title, lines in groups}
    assert [title for title in found if title.lower() in ROLES] == [*map(str.capitalize, ROLES)]
    assert "Commands" not in found
    expected = {"Publish": "source", "Distribute": "hub", "Follow": "follow", "Check": "audit"}
    for title, command in expected.items():
        assert command in found[title]


@pytest.mark.parametrize(
    ("typed", "completed"),
    [("rsnotify fol", "follow"), ("rsnotify follow --callb", "--callback-url")],
)
def test_a_shell_completes_commands_and_options(typed: str, completed: str):
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    ended = subprocess.run(
        [
            sys.executable,
            "-c",
            "from rsnotify.runtime.command_line import application\n"
            "application()(prog_name='rsnotify')",
        ],
        env={**os.environ, **words, "_RSNOTIFY_COMPLETE": "complete_bash"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert completed in ended.stdout.split()


def test_a_wrong_value_is_blamed_on_the_environment_variable_that_has_it():
    follow = ["follow", "http://127.0.0.1:9/", "copy"]
    for arguments, variables, blamed in (
        (
            follow,
            {"RSNOTIFY_FOLLOW_POLL": "soon"},
            "the environment variable RSNOTIFY_FOLLOW_POLL: ",
        ),
        (follow, {"RSNOTIFY_FOLLOW_RATE": "0"}, "the environment variable RSNOTIFY_FOLLOW_RATE: "),
        ([*follow, "--poll", "soon"], {"RSNOTIFY_FOLLOW_POLL": "1"}, "--poll: "),
        (
            ["hub", "topics"],
            {"RSNOTIFY_HUB_TOPICS_LIMIT": "0"},
            "the environment variable RSNOTIFY_HUB_TOPICS_LIMIT: ",
        ),
        (["hub", "status"], {"RSNOTIFY_JSON": "maybe"}, "the environment variable RSNOTIFY_JSON: "),
    ):
        ended = CliRunner().invoke(application(), arguments, env=variables)
        assert ended.exit_code == 2
        assert f"rsnotify: {blamed}it has to be " in ended.output


@pytest.mark.parametrize("command", ["source", "hub"])
def test_so_is_a_value_that_only_the_command_itself_finds_wrong(command: str, tmp_path: Path):
    arguments = [command, *([str(tmp_path)] if command == "source" else [])]
    variable = f"RSNOTIFY_{command.upper()}_PORT"
    ended = CliRunner().invoke(application(), arguments, env={variable: "99999"})
    assert isinstance(ended.exception, ConfigurationError)
    assert f"variable {variable}: " in str(ended.exception)
    ended = CliRunner().invoke(application(), [*arguments, "--port", "99999"])
    assert "--port: " in str(ended.exception)


def test_so_is_an_option_of_a_file_of_sources(tmp_path: Path):
    source = f"[[source]]\nurl = 'http://127.0.0.1:9/'\ndest = '{tmp_path / 'copy'}'\n"
    (tmp_path / "fleet.toml").write_text(source)
    arguments = ["follow", "--config", str(tmp_path / "fleet.toml")]
    for name, value in (("POLL", "1e9"), ("MQTT_VERSION", "4"), ("MQTT_URL", "http://b.example")):
        variable = f"RSNOTIFY_FOLLOW_{name}"
        ended = CliRunner().invoke(application(), arguments, env={variable: value})
        assert isinstance(ended.exception, ConfigurationError)
        assert str(ended.exception).startswith(f"the environment variable {variable}: ")


def test_so_is_a_wrong_broker_for_a_single_source(tmp_path: Path):
    arguments = ["follow", "http://127.0.0.1:9/", str(tmp_path / "copy")]
    for name, value in (("mqtt-version", "4"), ("mqtt-url", "http://b.example")):
        variable = f"RSNOTIFY_FOLLOW_{name.upper().replace('-', '_')}"
        ended = CliRunner().invoke(application(), arguments, env={variable: value})
        assert str(ended.exception).startswith(f"the environment variable {variable}: ")
        ended = CliRunner().invoke(application(), [*arguments, f"--{name}", value])
        assert str(ended.exception).startswith(f"--{name}: ")


def test_a_misspelt_command_is_answered_by_those_that_are_like_it():
    result = CliRunner().invoke(application(), ["hbu"])
    assert result.exit_code == 2
    assert result.output == "rsnotify: `rsnotify` has no command hbu; did you mean hub?\n"


def test_too_low_a_limit_of_files_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(processes, "allow_files", lambda wanted: 1_024)
    require_files("3 sets", 1_024)
    assert capsys.readouterr().err == ""
    require_files("30 sets", 2_000)
    assert capsys.readouterr().err == (
        "rsnotify: 30 sets may need 2,000 open files and connections, but the limit is 1,024; "
        "raise it with `ulimit -n`\n"
    )
