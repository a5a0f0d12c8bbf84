"""The page of the reference with every command, from the commands themselves."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer

from rsnotify.runtime.command_line import EXIT_CODES, ROLES, application
from rsnotify_hub_check.run import app as hub_check

_INTRODUCTION = """# Command line

`rsnotify COMMAND --help` shows the common options of a command, and `--help-all` every option. With
`--json`, a command writes JSON. `rsnotify --install-completion` enables completion in the shell.

The environment variable below an option sets it too: `1` or `0` for a flag, and values separated by
spaces for an option that may be repeated. The command line overrides the variable, and both
override the file of `--config`.
"""
#: These come first in their role, the others in the order of the alphabet.
_FIRST = ("source", "hub", "inspect")
_FACTS = re.compile(r"  \[([^\[]*)\]$")
_LIMIT = re.compile(r"^x([<>]=?)(.+)$")
_WORDS = {">=": "At least", ">": "More than", "<=": "At most", "<": "Less than"}


def command_line() -> str:
    """Return the commands by role, each with its examples and options."""
    root, context = _opened(application(), "rsnotify")
    commands = {name: root.get_command(context, name) for name in root.list_commands(context)}
    by_role: dict[str, list[str]] = {role: [] for role in ROLES}
    for name in sorted(commands, key=lambda name: (name not in _FIRST, name)):
        by_role[commands[name].rich_help_panel].append(name)
    check, check_context = _opened(hub_check, "rsnotify-hub-check")
    lines = [_INTRODUCTION, *_overview(commands, by_role), *_exit_codes()]
    lines += ["## rsnotify\n", *_options(root, context, ["rsnotify"])]
    for role, names in by_role.items():
        lines.append(f"## {role.capitalize()}\n")
        for name in names:
            lines += _command(commands[name], context, ["rsnotify", name])
        if role == "check":
            lines += _section(check, check_context, ["rsnotify-hub-check"])
    return "\n".join(lines)


def _opened(app: typer.Typer, name: str) -> tuple[Any, Any]:
    command = typer.main.get_command(app)
    return command, command.make_context(name, [], resilient_parsing=True)


def _overview(commands: dict[str, Any], by_role: dict[str, list[str]]) -> Iterator[str]:
    yield "| to | command | |\n| --- | --- | --- |"
    for role, names in by_role.items():
        for name in names:
            title = role if name == names[0] else ""
            short = commands[name].get_short_help_str(200)
            yield f"| {title} | [`rsnotify {name}`](#rsnotify-{name}) | {_prose(short)} |"
    yield ""


def _exit_codes() -> Iterator[str]:
    yield "## Exit codes\n\n| code | meaning |\n| --- | --- |"
    yield from (f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items())
    yield ""


def _command(command: Any, parent: Any, words: list[str]) -> Iterator[str]:
    """Yield the section of a command, and those of its subcommands."""
    context = command.make_context(words[-1], [], parent=parent, resilient_parsing=True)
    yield from _section(command, context, words)
    for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
        yield from _command(command.get_command(context, name), context, [*words, name])


def _section(command: Any, context: Any, words: list[str]) -> Iterator[str]:
    yield f"{'#' * max(len(words) + 1, 3)} {' '.join(words)}\n"
    text, _, examples = inspect.cleandoc(command.help or "").partition("\n\nExamples:\n")
    yield f"{_prose(text)}\n"
    if examples:
        # They are alternatives, of other hosts: nothing to copy.
        yield f"```{{ .sh .no-copy }}\n{inspect.cleandoc(examples)}\n```\n"
    yield from _options(command, context, words)


def _options(command: Any, context: Any, words: list[str]) -> Iterator[str]:
    """Yield the arguments, the common options, and the others in the groups of the help."""
    groups: dict[str, list[str]] = {"Arguments": [], "Options": [], "Other options": []}
    for one in command.params:
        if (record := one.get_help_record(context)) is not None:
            groups.setdefault(_group(one), []).append(_entry(one, record, words))
    for title, entries in groups.items():
        if entries:
            yield f"**{title}**\n"
            yield from entries


def _group(one: Any) -> str:
    if one.param_type_name == "argument":
        return "Arguments"
    panel = getattr(one, "rich_help_panel", None)
    if panel is None or type(panel) is str:  # `--help` shows it, so it is common
        return "Options"
    return "Other options" if panel == "Options" else str(panel)


def _entry(one: Any, record: tuple[str, str], words: list[str]) -> str:
    """Return an item of a definition list, with an anchor."""
    shown, text = record
    text, facts = _facts(text)
    if one.param_type_name == "argument":
        name = shown = one.metavar or one.name.upper()
    else:
        name = max([*one.opts, *one.secondary_opts], key=len).removeprefix("--")
        shown = shown.replace(" / ", ", ")
    anchor = f"{'-'.join(words)}--{name.lower()}"
    return f"[`{shown}`](#{anchor}){{ #{anchor} }}\n:   {_prose(text)} {' '.join(facts)}\n"


def _facts(text: str) -> tuple[str, list[str]]:
    """Return the text of an option, and its default, limits and variables as sentences."""
    found = _FACTS.search(text)
    if found is None:
        return text, []
    variables, facts = "", []
    for fact in re.split("; (?=default|required|x[<>])", found[1]):
        name, _, value = fact.partition(": ")
        if name == "env var":
            variables = ", ".join(f"`{one}`" for one in value.split(", "))
        elif name == "default":
            value = value.removeprefix("(").removesuffix(")")
            facts.append(f"Default: {_value(value)}.")
        elif limit := _LIMIT.match(fact):
            facts.append(f"{_WORDS[limit[1]]} {limit[2]}.")
        elif fact != "required":
            facts.append(f"{fact}.")
    return text[: found.start()], [*facts, f"<br>{variables}"] if variables else facts


def _value(value: str) -> str:
    return _prose(value) if " " in value else f"`{value}`"


def _prose(text: str) -> str:
    """Return a text as Markdown, in which options are code."""
    parts = re.split(r"(`[^`]+`)", text)
    parts[::2] = [
        re.sub(r"(?<![\w-])(--[a-z][\w-]*)", r"`\1`", re.sub(r"([*_<\[\]|])", r"\\\1", part))
        for part in parts[::2]
    ]
    return "".join(parts)
