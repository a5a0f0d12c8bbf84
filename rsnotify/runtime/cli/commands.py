"""The classes of commands for typer: their help, environment variables, and wrong arguments.

Each option of a subcommand is an environment variable too: RSNOTIFY_SOURCE_PORT is `--port` of
`rsnotify source`. The name of the command is part of that of the variable, so that one environment
can hold settings of several commands. Names without it are accepted for one release. An option
that typer may not name itself (`allow_from_autoenv`) has the same variable in every command.
"""

from __future__ import annotations

import inspect
import os
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from rsnotify.errors import ConfigurationError, WrongOption
from rsnotify.runtime.config.deprecated_variables import is_former, warn_of_former

_EXAMPLES = "\n\nExamples:\n"
_PREFIX = "RSNOTIFY_"


def option(metavar: str, help: str, panel: str | None = None, **settings: Any) -> Any:
    """Return an option with a value, in a group of the help (`panel`)."""
    return typer.Option(metavar=metavar, help=help, rich_help_panel=panel, **settings)


class _Layout:
    """Help with examples and groups of options, and errors that name environment variables."""

    help: str | None
    get_params: Any

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the docstring; its section `Examples:` keeps its lines."""
        text, _, examples = inspect.cleandoc(self.help or "").partition(_EXAMPLES)
        if text:
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(text)
        if examples:
            with formatter.section("Examples"):
                for line in inspect.cleandoc(examples).splitlines():
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write each parameter in its group; those without a group come first."""
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
                group = getattr(parameter, "rich_help_panel", None) or kind
                if kind == "Arguments":  # typer adds the type to their names
                    record = (parameter.metavar or parameter.name.upper(), record[1])
                default = getattr(parameter, "show_default", None)
                if isinstance(default, str):  # typer puts it in parentheses
                    text = record[1].replace(f"default: ({default})", f"default: {default}")
                    record = (record[0], text)
                groups.setdefault(group, []).append(record)
        for name, records in groups.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse; an error names the environment variable that a wrong value came from."""
        try:
            return super().parse_args(ctx, args)  # type: ignore[misc, no-any-return]
        except typer.BadParameter as error:
            parameter: Any = error.param
            if parameter is not None and from_environment(ctx, parameter.name):
                error.param_hint = f"the environment variable {_variable(ctx, parameter)}"
            elif parameter is not None and parameter.param_type_name == "option":
                error.param_hint = [*parameter.opts]  # without its variable
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command; its errors name the environment variable of a wrong value, too."""
        try:
            return super().invoke(ctx)  # type: ignore[misc]
        except WrongOption as error:
            for parameter in self.get_params(ctx):
                if error.option in parameter.opts and from_environment(ctx, parameter.name):
                    variable = _variable(ctx, parameter)
                    raise ConfigurationError(
                        f"the environment variable {variable}: {error.reason}"
                    ) from None
            raise


class Command(_Layout, TyperCommand):
    """A command whose help has examples and groups of options."""


class Subcommand(Command):
    """A command whose options are environment variables too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, and warn of former names of variables that were used."""
        former: dict[str, tuple[str, str]] = {}
        for option in self.params:
            if (
                isinstance(option, TyperOption)
                and option.name is not None
                and option.expose_value
                and option.allow_from_autoenv
            ):
                name = max(option.opts, key=len).lstrip("-").replace("-", "_").upper()
                new = f"{_PREFIX}{ctx.info_name.upper()}_{name}"
                old = option.envvar or f"{_PREFIX}{option.name.upper()}"
                option.envvar = new
                if isinstance(old, str) and is_former(os.environ, old, new):
                    option.envvar = [new, old]
                    former[option.name] = old, new
        rest = super().parse_args(ctx, args)
        for parameter, names in former.items():
            if from_environment(ctx, parameter):
                warn_of_former(*names)
        return rest


class CommandGroup(_Layout, TyperGroup):
    def format_options(self, ctx: Any, formatter: Any) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


def from_environment(context: Any, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "ENVIRONMENT"


def _variable(ctx: Any, parameter: Any) -> str:
    named = parameter.envvar or f"{ctx.auto_envvar_prefix}_{parameter.name.upper()}"
    names = [named] if isinstance(named, str) else list(named)
    return next((name for name in names if os.environ.get(name)), names[0])
