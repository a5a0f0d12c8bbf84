"""Describes command-line errors: what is wrong, where, and what to write instead."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

from rsnotify.runtime.settings import describe_allowed

_SIMILARITY = 0.7
_EXTRA = re.compile(r"extra argument\S* \((.*)\)$", re.DOTALL)


def usage_sentence(error: Any, context: Any) -> str:
    """Return a sentence for an error that typer raised while parsing a command line."""
    kind = type(error).__name__  # typer does not export all of them
    path, parameter = context.command_path, getattr(error, "param", None)
    if kind == "NoSuchOption":
        return _unknown_option(error.option_name, context)
    if kind == "BadOptionUsage":
        return _wrong_use(error.option_name, context)
    if kind == "MissingParameter" and parameter is not None:
        return f"{_name(parameter)} is missing; write `{_usage(context)}`"
    if parameter is not None:
        allowed = _allowed(parameter, context)
        reason = error.message if allowed is None else f"it has to be {allowed}"
        return f"{_place(parameter, context)}: {reason}"
    if extra := _EXTRA.search(error.message):
        return f"there is no place for {extra[1]!r}; write `{_usage(context)}`"
    if error.message.startswith("Missing command"):
        return f"name a command; `{path} --help` lists them"
    return str(error.message)


def _unknown_option(name: str, context: Any) -> str:
    path = context.command_path
    names = [each for one in context.command.get_params(context) for each in one.opts]
    if name.removeprefix("--") in names:  # the name of an argument
        return f"`{path}` has no option {name}; write `{_usage(context)}`"
    near = get_close_matches(name, [each for each in names if each[0] == "-"], 1, _SIMILARITY)
    meant = f"did you mean {near[0]}?" if near else f"`{path} --help-all` lists the options"
    return f"`{path}` has no option {name}; {meant}"


def _wrong_use(name: str, context: Any) -> str:
    for parameter in context.command.get_params(context):
        if name in (*parameter.opts, *parameter.secondary_opts):
            if parameter.is_flag:
                return f"{name} takes no value; write only {name}"
            return f"{name} needs a value; write {name} {parameter.metavar or 'VALUE'}"
    return f"{name} needs a value"


def _usage(context: Any) -> str:
    pieces = context.command.collect_usage_pieces(context)
    names = [piece.strip("{}") for piece in pieces if piece != "[OPTIONS]"]
    return " ".join([context.command_path, *names])


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "option":
        return str(max(parameter.opts, key=len))
    return str(parameter.metavar or parameter.name.upper())


def _place(parameter: Any, context: Any) -> str:
    from rsnotify.runtime.command_line import environment_variable, from_environment

    if from_environment(context, parameter.name):
        return f"the environment variable {environment_variable(context, parameter)}"
    return _name(parameter)


def _allowed(parameter: Any, context: Any) -> str | None:
    """Describe the allowed values of a parameter, based on its type in the command's function."""
    hints = get_type_hints(context.command.callback, include_extras=True)
    return describe_parameter(hints.get(parameter.name))


def describe_parameter(hint: Any) -> str | None:
    """Describe the allowed values of a type annotated with a typer option or argument."""
    if get_origin(hint) is not Annotated:
        return None
    kind, info, *_ = get_args(hint)
    kinds = [each for each in get_args(kind) if each is not type(None)] or [kind]
    kinds = [get_args(each)[0] if get_origin(each) is list else each for each in kinds]
    if kinds == [Path]:
        if info.file_okay and info.dir_okay:
            return None
        return "a file, and not a folder" if info.file_okay else "a folder, and not a file"
    bounds = msgspec.Meta(ge=info.min, le=info.max)
    number = kinds[0] in (int, float)
    return describe_allowed(Annotated[kinds[0], bounds] if number else kinds[0], ())
