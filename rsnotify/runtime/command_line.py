"""The `rsnotify` command, and the code that all its subcommands share.

A package adds a subcommand through an entry point in the group `rsnotify.commands`. The entry point
has the name of the subcommand, and refers to a typer function, or to a typer application with
further subcommands. Help and shell completion import the modules of all subcommands, so these
modules must import at the top level only what the help needs.

Every option of a subcommand also has an environment variable: RSNOTIFY_SOURCE_PORT sets `--port` of
`rsnotify source`. Variable names include the command, so that one environment can contain the
settings of several commands. A name without the command is ignored, with a warning. An option with
`allow_from_autoenv=False` has the same variable in all commands.

The help shows the options that most users need. `--help-all` also shows `advanced` options, and the
environment variables. In a subcommand's module, `ROLE`, one of `ROLES`, selects the group in which
the help of `rsnotify` lists the subcommand.
"""

from __future__ import annotations

import functools
import gc
import inspect
import logging
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import datetime
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from types import FrameType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    TextIO,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import typer
from msgspec import Meta, Struct
from msgspec.structs import fields
from typer.core import TyperCommand, TyperGroup, TyperOption

from rsnotify import __version__
from rsnotify.errors import ConfigurationError, RsnotifyError, WrongOption
from rsnotify.runtime.extensions import offered
from rsnotify.runtime.settings import (
    PREFIX,
    describe_allowed,
    misspelt_variables,
    warn_of_misspelt,
)

if TYPE_CHECKING:
    import asyncio

#: The meaning of each exit code, for all commands.
EXIT_CODES = {
    0: "Success. The result of a check is positive: the copy is level or in step, the document is "
    "valid, the hub meets all requirements.",
    1: "The result of a check is negative: a copy is not level after `--once`, for any reason, or "
    "not in step; a document is invalid; a requirement is not met. Also a forced shutdown.",
    2: "Failure, without a result: a wrong option, setting or file; a server that is unreachable "
    "or refuses the request; a full disk. The message says what to do.",
    3: "An error in rsnotify, with a traceback.",
    130: "Interrupted by Ctrl-C or SIGTERM before there was a result. A program that runs until "
    "then, such as `rsnotify source`, exits with 0.",
}

#: The groups of commands in the help of `rsnotify`. Commands without a role are last.
ROLES = ("try", "publish", "distribute", "follow", "check", "operate")

_EXAMPLES = "\n\nExamples:\n"
_HELP_ALL = "--help-all"
_VERBOSE = f"{PREFIX}VERBOSE"


class _Advanced(str):
    """The title of an option group. The type marks options that only `--help-all` shows."""

    __slots__ = ()


def option(
    panel: str | None,
    metavar: str | None,
    text: str,
    *flags: str,
    advanced: bool = False,
    **settings: Any,
) -> Any:
    """Return an option in the help group `panel`. Only `--help-all` shows an advanced option."""
    group = _Advanced(panel or "Options") if advanced else panel
    return typer.Option(*flags, metavar=metavar, help=text, rich_help_panel=group, **settings)


@functools.cache
def _types_of(kind: type[Struct]) -> dict[str, Any]:
    """Return the type hints of a struct, cached so that all commands share its options."""
    return get_type_hints(kind, include_extras=True)


def with_arguments(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each struct parameter of a command with one option per field."""
    own = inspect.signature(command, eval_str=True).parameters
    kinds = {
        name: parameter.annotation
        for name, parameter in own.items()
        if isinstance(parameter.annotation, type) and issubclass(parameter.annotation, Struct)
    }
    parameters = [parameter for name, parameter in own.items() if name not in kinds] + [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=_types_of(kind)[field.name],
        )
        for kind in kinds.values()
        for field in fields(kind)
    ]
    signature = inspect.Signature(parameters)

    @functools.wraps(command)
    def wrapper(*positional: Any, **named: Any) -> None:
        bound = signature.bind(*positional, **named)
        structs = {
            name: kind(
                **{
                    field: bound.arguments.pop(field)
                    for field in kind.__struct_fields__
                    if field in bound.arguments
                }
            )
            for name, kind in kinds.items()
        }
        command(*bound.args, **bound.kwargs, **structs)

    wrapper.__signature__ = signature  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del wrapper.__wrapped__  # otherwise typer would read the original signature
    return wrapper


def _show_all(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.ensure_object(dict)[_HELP_ALL] = True
        typer.echo(context.get_help())
        raise typer.Exit


@functools.cache
def _help_all() -> Any:
    """Return the `--help-all` option, which every command has."""

    def command(
        everything: Annotated[
            bool,
            typer.Option(
                _HELP_ALL,
                is_eager=True,
                expose_value=False,
                callback=_show_all,
                allow_from_autoenv=False,
                help="Show all options, and their environment variables.",
            ),
        ] = False,
    ) -> None: ...

    app = typer.Typer(add_completion=False)
    app.command()(command)
    return typer.main.get_command(app).params[0]


def _is_advanced(parameter: Any) -> bool:
    return isinstance(getattr(parameter, "rich_help_panel", None), _Advanced)


class _Layout:
    """Adds examples and option groups to the help, and reports errors as sentences."""

    help: str | None

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, with `--help-all` inserted before `--help`."""
        *own, last = super().get_params(ctx)  # type: ignore[misc]
        return [*own, _help_all(), last]

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the docstring, keeping the line breaks of its `Examples:` section."""
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
        """Write each parameter in its group. Parameters without a group are first."""
        shows_all = isinstance(ctx.obj, dict) and _HELP_ALL in ctx.obj
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        parameters = self.get_params(ctx)
        for parameter in parameters:
            if shows_all or not _is_advanced(parameter):
                kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
                group = getattr(parameter, "rich_help_panel", None) or kind
                if (record := _record(parameter, ctx, variables=shows_all)) is not None:
                    groups.setdefault(str(group), []).append(record)
        for name, records in groups.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)
        if not shows_all and (rest := sum(map(_is_advanced, parameters))):
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(
                    f"`{ctx.command_path} {_HELP_ALL}` shows {rest} more options, and all "
                    "environment variables."
                )

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, and report an error as a sentence.

        If an environment variable has the wrong value, the sentence names that variable.
        """
        with _one_sentence(ctx):
            return super().parse_args(ctx, args)  # type: ignore[misc, no-any-return]

    def invoke(self, ctx: Any) -> Any:
        """Run the command. If a variable has a wrong value, the error names that variable."""
        try:
            with _one_sentence(ctx):
                return super().invoke(ctx)  # type: ignore[misc]
        except WrongOption as error:
            for parameter in self.get_params(ctx):
                if error.option in parameter.opts and from_environment(ctx, parameter.name):
                    place = _place(parameter, ctx)
                    raise ConfigurationError(f"{place}: {error.reason}") from None
            raise


def _record(parameter: Any, ctx: Any, *, variables: bool) -> tuple[str, str] | None:
    """Return the name and description of a parameter for the help."""
    shown, parameter.show_envvar = parameter.show_envvar, variables and parameter.show_envvar
    try:
        record = parameter.get_help_record(ctx)
    finally:
        parameter.show_envvar = shown
    if record is None:
        return None
    name, text = record
    if parameter.param_type_name == "argument":  # typer appends the type to an argument's name
        name = _name(parameter)
    default = getattr(parameter, "show_default", None)
    if isinstance(default, str):  # typer encloses it in parentheses
        text = text.replace(f"default: ({default})", f"default: {default}")
    return name, text


#: Click's UsageError, which typer does not export.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]


@contextmanager
def _one_sentence(ctx: Any) -> Iterator[None]:
    """Print a usage error in the context as one sentence, and exit with code 2."""
    try:
        yield
    except _UsageError as error:
        if ctx.resilient_parsing or type(error).__name__ == "NoArgsIsHelpError":
            raise
        raise complain(_usage_sentence(error, ctx), 2) from None


class Command(_Layout, TyperCommand):
    """A command whose help has examples and option groups."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, and warn about variables that are probably misspelled."""
        rest = super().parse_args(ctx, args)
        if not ctx.resilient_parsing:
            own = f"{ctx.auto_envvar_prefix}_"  # RSNOTIFY_HUB_STATUS_ for `rsnotify hub status`
            root: Any = ctx.find_root()
            names = getattr(root.command, "list_commands", lambda _: ())(root)
            others = [name for name in names if not own.startswith(f"{PREFIX}{name.upper()}_")]
            known = [_VERBOSE, *(name for each in self.params for name in _variables(ctx, each))]
            for variable, meant in misspelt_variables(os.environ, known, own, others).items():
                warn_of_misspelt(variable, meant)
        return rest


class Subcommand(Command):
    """A command whose options can also be set by environment variables."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Name the options' variables after the command, then parse the arguments."""
        for option in self.params:
            if (
                isinstance(option, TyperOption)
                and option.name is not None
                and option.expose_value
                and option.allow_from_autoenv
            ):
                name = max(option.opts, key=len).lstrip("-").replace("-", "_").upper()
                option.envvar = f"{PREFIX}{ctx.info_name.upper()}_{name}"
        return super().parse_args(ctx, args)


class CommandGroup(_Layout, TyperGroup):
    """A group whose help lists commands by `rich_help_panel`, in the order of `ROLES`."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {role: [] for role in ROLES}
        names = self.list_commands(ctx)
        width = max(map(len, names))  # the same in all groups
        for name in names:
            command: Any = self.get_command(ctx, name)
            role = command.rich_help_panel or "commands"
            text = command.get_short_help_str(_MAX_SUMMARY_LENGTH)
            groups.setdefault(role, []).append((name.ljust(width), text))
        for role, records in groups.items():
            if records:
                with formatter.section(role.capitalize()):
                    formatter.write_dl(records)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command and its arguments, or exit and suggest a similar name."""
        name = args[0]
        if self.get_command(ctx, name) is None and not ctx.resilient_parsing:
            near = get_close_matches(name, self.list_commands(ctx), 1)
            meant = (
                f"did you mean {near[0]}?" if near else f"`{ctx.command_path} --help` lists them"
            )
            raise complain(f"`{ctx.command_path}` has no command {name}; {meant}", 2)
        return super().resolve_command(ctx, args)


def given_options(context: Any, *, variables: bool = True) -> dict[str, Any]:
    """Return the values set on the command line and, unless excluded, in the environment."""
    places = ("COMMANDLINE", "ENVIRONMENT") if variables else ("COMMANDLINE",)
    return {
        name: value
        for name, value in context.params.items()
        if (source := context.get_parameter_source(name)) is not None and source.name in places
    }


def from_environment(context: Any, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "ENVIRONMENT"


def _variables(ctx: Any, parameter: Any) -> list[str]:
    if parameter.envvar:
        return [parameter.envvar] if isinstance(parameter.envvar, str) else list(parameter.envvar)
    if parameter.param_type_name == "argument" or ctx.auto_envvar_prefix is None:
        return []
    prefix = f"{ctx.auto_envvar_prefix}_" if parameter.allow_from_autoenv else PREFIX
    return [prefix + parameter.name.upper()]


#: Similarity above which one option is probably a misspelling of another.
_SIMILARITY = 0.7
_EXTRA = re.compile(r"extra argument\S* \((.*)\)$", re.DOTALL)


def _usage_sentence(error: Any, context: Any) -> str:
    """Return a sentence for an error raised by typer while parsing a command line."""
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
        return f"unexpected argument {extra[1]!r}; write `{_usage(context)}`"
    if error.message.startswith("Missing command"):
        return f"a command is missing; `{path} --help` lists them"
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
    """Return the name of a parameter, or of the variable that sets it."""
    if not from_environment(context, parameter.name):
        return _name(parameter)
    names = _variables(context, parameter)
    variable = next((name for name in names if os.environ.get(name)), names[0])
    return f"the environment variable {variable}"


def _allowed(parameter: Any, context: Any) -> str | None:
    """Describe the allowed values of a parameter, based on its type in the command's function."""
    hint = get_type_hints(context.command.callback, include_extras=True).get(parameter.name)
    if get_origin(hint) is not Annotated:
        return None
    kind, info, *_ = get_args(hint)
    kinds = [each for each in get_args(kind) if each is not type(None)] or [kind]
    kinds = [get_args(each)[0] if get_origin(each) is list else each for each in kinds]
    if kinds == [Path]:
        if info.file_okay and info.dir_okay:
            return None
        return "a file, not a folder" if info.file_okay else "a folder, not a file"
    if kinds[0] in (int, float):
        return describe_allowed(Annotated[kinds[0], Meta(ge=info.min, le=info.max)], ())
    return describe_allowed(kinds[0], ())


#: Maximum time for a graceful shutdown, in seconds.
SHUTDOWN_TIMEOUT = 30.0
_STDERR = 2
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def forced_shutdown(
    explain: Callable[[], str], patience: float = SHUTDOWN_TIMEOUT
) -> Iterator[None]:
    """End the process at a second signal, or if a graceful shutdown takes too long.

    The effect is the same as that of a crash: only uncommitted work is lost. `explain` returns a
    sentence with the reason for the delay, and may be called in any thread.

    Enter the context in the main thread, after the event loop has installed its signal handlers.
    These are also called, but unlike them, the handlers of this context run even while blocking
    code delays the loop.
    """
    timer = threading.Timer(patience, _end_process, [explain])
    timer.daemon = True
    is_requested = False

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal is_requested
        if is_requested:
            _end_process(explain)
        is_requested = True
        timer.start()
        if callable(other := others[number]):
            other(number, frame)

    others: dict[int, Any] = {number: signal.signal(number, on_signal) for number in _SIGNALS}
    try:
        yield
    finally:
        # Restore the default handlers, as the loop does when it ends.
        for number in _SIGNALS:
            usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, usual)
        timer.cancel()


def _end_process(explain: Callable[[], str]) -> None:
    # Write to the file descriptor, because the interrupted code may hold the stream's lock.
    os.write(_STDERR, f"rsnotify: {explain()}\n".encode())
    os._exit(1)


T = TypeVar("T")


#: Number of new objects after which Python's garbage collector runs.
_GC_THRESHOLD = 50_000


def run(
    main: Callable[[asyncio.Event], Coroutine[None, None, T]],
    forced: AbstractContextManager[None] | None = None,
) -> T:
    """Run a coroutine to completion, on uvloop if that is installed.

    `main` is called with an event, which SIGINT or SIGTERM sets to request a graceful shutdown.
    `forced` is a `forced_shutdown` for it, if any.
    """
    import asyncio  # `rsnotify --help` does not need it, and is an eighth faster without

    async def supervised() -> T:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, stop.set)
        if forced is not None:
            contexts.enter_context(forced)
        return await main(stop)

    _reduce_garbage_collection()
    # Closing the loop also waits for threads, so `forced` stays active until then.
    with ExitStack() as contexts, asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(supervised())


def _reduce_garbage_collection() -> None:
    """Make Python's cycle collector run rarely, and ignore all existing objects.

    A message to many subscribers, or a list of many resources, creates thousands of objects, but no
    cycles. With the default threshold, the collector used a quarter of a hub's CPU time, and an
    eighth of a Destination's.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, 20, 20)


def run_until_stopped(work: Callable[[], Coroutine[None, None, T]]) -> T:
    """Run a coroutine as `run` does. Exit with code 130 if SIGINT or SIGTERM cancels it."""
    from rsnotify.runtime.tasks import first_completed

    async def main(stop: asyncio.Event) -> T:
        async with first_completed(work(), stop.wait()) as (working, _):
            if working.done():
                result: T = working.result()
                return result
        raise typer.Exit(130)

    return run(main)


def printable(text: str) -> str:
    """Replace nonprintable characters, with which untrusted text could control the terminal."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def complain(what: Exception | str, code: int) -> typer.Exit:
    """Print an error as a sentence, perhaps with lines of detail. Return the exit to raise."""
    lines = map(printable, str(what).split("\n"))
    typer.echo("rsnotify: " + "\n".join(lines), err=True)
    return typer.Exit(code)


def require_files(what: str, needed: int) -> None:
    """Raise the open-file limit to `needed`, and warn if the system does not allow it."""
    from rsnotify.runtime.processes import allow_files

    allowed = allow_files(needed)
    if allowed < needed:
        complain(
            f"{what} may need {needed:,} open files and connections, but the limit is {allowed:,}; "
            "raise it with `ulimit -n`",
            0,
        )


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


#: Maximum length of a command's summary in the help, in characters.
_MAX_SUMMARY_LENGTH = 200

_HELP = """Push-extended ResourceSync: keep copies of web resources in step.

Examples:
    rsnotify hub
    rsnotify source data --hub http://127.0.0.1:8080/
    rsnotify --verbose follow http://127.0.0.1:8000/ copy
"""
_SETTINGS = {"help_option_names": ["--help", "-h"]}


def application() -> typer.Typer:
    app = typer.Typer(
        name="rsnotify",
        cls=_Subcommands,
        help=_HELP,
        epilog="`rsnotify COMMAND --help` shows the options of a command, and examples.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings=_SETTINGS,
    )
    app.callback()(_common)
    return app


class _Subcommands(CommandGroup):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._points = offered("commands")

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(self._points)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in self._points and cmd_name not in self.commands:
            self.commands[cmd_name] = _load(self._points[cmd_name])
        return self.commands.get(cmd_name)


def _load(point: EntryPoint) -> Any:
    # Every option also has a variable: RSNOTIFY_SOURCE_PORT sets --port of `source`.
    settings = {**_SETTINGS, "auto_envvar_prefix": f"RSNOTIFY_{point.name.upper()}"}
    loaded = point.load()
    app = typer.Typer(rich_markup_mode=None)
    if isinstance(loaded, typer.Typer):
        app.add_typer(loaded, name=point.name, context_settings=settings)
    else:
        app.command(point.name, cls=Subcommand, context_settings=settings)(loaded)
    command: Any = typer.main.get_group(app).commands[point.name]
    command.rich_help_panel = getattr(import_module(point.module), "ROLE", None)
    return command


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rsnotify {__version__}")
        raise typer.Exit


def _common(
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", envvar=_VERBOSE, help="Log each step and its reason."),
    ] = False,
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version."),
    ] = False,
) -> None:
    handler = _Stderr()
    handler.setFormatter(_OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler])
    for noisy in ("apscheduler", "aiohttp.access", "watchfiles", "websockets"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to the current `sys.stderr`, because a live display replaces it temporarily."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, _: TextIO) -> None: ...


class _OneLine(logging.Formatter):
    """Formats a record, which may quote untrusted text, as one line with an RFC 3339 datetime."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        when = datetime.fromtimestamp(record.created).astimezone()
        return when.isoformat(timespec="milliseconds")

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))


def main() -> None:
    run_application(application(), "rsnotify")


def run_application(app: typer.Typer, name: str) -> None:
    """Run a command-line application, print any error as a sentence, and exit (`EXIT_CODES`)."""
    try:
        app(prog_name=name)
    except Exception as error:
        sys.exit(_failed(error).exit_code)


def _failed(error: Exception) -> typer.Exit:
    from rsnotify.runtime.reasons import reason_of
    from rsnotify.runtime.tasks import first_cause

    cause = first_cause(error)
    if isinstance(cause, RsnotifyError):
        return complain(cause, 2)
    logging.getLogger("rsnotify").debug("", exc_info=error)
    if isinstance(cause, OSError):
        place = f"{cause.filename}: " if cause.filename else ""
        return complain(place + reason_of(cause), 2)
    traceback.print_exception(error)
    return complain("this is a bug in rsnotify; please report it with the traceback above", 3)
