"""The command `rsnotify`, and what all its subcommands share.

A package offers a subcommand as an entry point of the group `rsnotify.commands`: a typer
function with the name of the subcommand, or a typer application with subcommands of its own.
The help, and the completion in a shell, load the modules of all subcommands. So such a module may
import at its top only what the help needs.

Each option of a subcommand is an environment variable too: RSNOTIFY_SOURCE_PORT is `--port` of
`rsnotify source`. The name of the command is part of that of the variable, so that one environment
can hold settings of several commands. Names without it are accepted for one release. An option
that typer may not name itself (`allow_from_autoenv`) has the same variable in every command.

The help shows the options that most users need; `--help-all` shows those stated as `advanced`, too,
and the variables. The module of a subcommand may state a `ROLE`: the group that has the subcommand
in the help of `rsnotify`, one of `ROLES`.
"""

from __future__ import annotations

import functools
import gc
import inspect
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, TextIO, TypeVar, get_type_hints

import typer
from msgspec import Struct
from msgspec.structs import fields
from typer.core import TyperCommand, TyperGroup, TyperOption

from rsnotify import __version__
from rsnotify.errors import ConfigurationError, RsnotifyError, WrongOption
from rsnotify.runtime.settings import PREFIX, misspelt_variables, warn_of_misspelt

if TYPE_CHECKING:
    import asyncio

#: The meaning of the exit codes of every command.
EXIT_CODES = {
    0: "Done. Of a command that answers a question, yes: the copy is level or in step, the "
    "document is valid, the hub meets all requirements.",
    1: "The answer is no: a copy is not level after `--once`, whatever the reason, or not in step; "
    "a document is not valid; a requirement is not met. Also a forced shutdown.",
    2: "It could not be done, or the answer is not known: a wrong option, setting or file; a "
    "server that cannot be reached or refuses; a disk that is full. The message says what to do.",
    3: "An error in rsnotify, with its traceback.",
    130: "Ended by Ctrl-C or SIGTERM before there was a result. A program that runs until then, "
    "such as `rsnotify source`, exits with 0.",
}

#: The groups of the commands in the help of `rsnotify`; commands without one come last.
ROLES = ("try", "publish", "distribute", "follow", "check", "operate")

_EXAMPLES = "\n\nExamples:\n"
_HELP_ALL = "--help-all"
_VERBOSE = f"{PREFIX}VERBOSE"


class _Advanced(str):
    """The title of a group of options, for an option that only `--help-all` shows."""

    __slots__ = ()


def option(
    panel: str | None,
    metavar: str | None,
    text: str,
    *flags: str,
    advanced: bool = False,
    **settings: Any,
) -> Any:
    """Return an option in a group of the help (`panel`); `--help-all` shows an advanced one."""
    group = _Advanced(panel or "Options") if advanced else panel
    return typer.Option(*flags, metavar=metavar, help=text, rich_help_panel=group, **settings)


@functools.cache
def _types_of(kind: type[Struct]) -> dict[str, Any]:
    """Return the same types for each command, so that an option is the same everywhere."""
    return get_type_hints(kind, include_extras=True)


def with_arguments(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of a command that is a struct by one for each field, an option."""
    hints = get_type_hints(command, include_extras=True)
    kinds = {
        name: hint
        for name, hint in hints.items()
        if isinstance(hint, type) and issubclass(hint, Struct)
    }
    parameters = [
        parameter.replace(annotation=hints[name])
        for name, parameter in inspect.signature(command).parameters.items()
        if name not in kinds
    ] + [
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
    del wrapper.__wrapped__  # or typer would read the options there
    return wrapper


def _show_all(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.ensure_object(dict)[_HELP_ALL] = True
        typer.echo(context.get_help())
        raise typer.Exit


@functools.cache
def _help_all() -> Any:
    """Return the option `--help-all`, which each command has."""

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
    """Help with examples and groups of options, and errors as one sentence."""

    help: str | None

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, with `--help-all` before `--help`."""
        *own, last = super().get_params(ctx)  # type: ignore[misc]
        return [*own, _help_all(), last]

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
                    f"`{ctx.command_path} {_HELP_ALL}` shows {rest} more options, and the "
                    "environment variable of each."
                )

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse; an error is one sentence, which names the environment variable of a value."""
        with _one_sentence(ctx):
            return super().parse_args(ctx, args)  # type: ignore[misc, no-any-return]

    def invoke(self, ctx: Any) -> Any:
        """Run the command; its errors name the environment variable of a wrong value, too."""
        try:
            with _one_sentence(ctx):
                return super().invoke(ctx)  # type: ignore[misc]
        except WrongOption as error:
            for parameter in self.get_params(ctx):
                if error.option in parameter.opts and from_environment(ctx, parameter.name):
                    variable = environment_variable(ctx, parameter)
                    raise ConfigurationError(
                        f"the environment variable {variable}: {error.reason}"
                    ) from None
            raise


def _record(parameter: Any, ctx: Any, *, variables: bool) -> tuple[str, str] | None:
    """Return the line of a parameter in the help."""
    shown, parameter.show_envvar = parameter.show_envvar, variables and parameter.show_envvar
    try:
        record = parameter.get_help_record(ctx)
    finally:
        parameter.show_envvar = shown
    if record is None:
        return None
    name, text = record
    if parameter.param_type_name == "argument":  # typer adds the type to their names
        name = parameter.metavar or parameter.name.upper()
    default = getattr(parameter, "show_default", None)
    if isinstance(default, str):  # typer puts it in parentheses
        text = text.replace(f"default: ({default})", f"default: {default}")
    return name, text


#: Of typer, which does not export it.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]


@contextmanager
def _one_sentence(ctx: Any) -> Iterator[None]:
    """Return a context that prints an error of typer as one sentence, and exits."""
    try:
        yield
    except _UsageError as error:
        from rsnotify.runtime.command_errors import usage_sentence

        if ctx.resilient_parsing or type(error).__name__ == "NoArgsIsHelpError":
            raise
        raise complain(usage_sentence(error, ctx), 2) from None


class Command(_Layout, TyperCommand):
    """A command whose help has examples and groups of options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, and warn of variables with nearly the name of one of this command."""
        rest = super().parse_args(ctx, args)
        if not ctx.resilient_parsing:
            own = f"{ctx.auto_envvar_prefix}_"  # as RSNOTIFY_HUB_STATUS_ of `rsnotify hub status`
            root: Any = ctx.find_root()
            names = getattr(root.command, "list_commands", lambda _: ())(root)
            others = [name for name in names if not own.startswith(f"{PREFIX}{name.upper()}_")]
            known = [_VERBOSE, *(name for each in self.params for name in _variables(ctx, each))]
            for variable, meant in misspelt_variables(os.environ, known, own, others).items():
                warn_of_misspelt(variable, meant)
        return rest


class Subcommand(Command):
    """A command whose options are environment variables too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse; the names of the variables begin with that of the command."""
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
    """Commands with a help in groups: by `rich_help_panel`, in the order of `ROLES`."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {role: [] for role in ROLES}
        names = self.list_commands(ctx)
        width = max(map(len, names))  # the same in each group
        for name in names:
            command: Any = self.get_command(ctx, name)
            role = command.rich_help_panel or "commands"
            text = command.get_short_help_str(_WHOLE)
            groups.setdefault(role, []).append((name.ljust(width), text))
        for role, records in groups.items():
            if records:
                with formatter.section(role.capitalize()):
                    formatter.write_dl(records)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return a command and its arguments, or name those that are like it."""
        name = args[0]
        if self.get_command(ctx, name) is None and not ctx.resilient_parsing:
            near = get_close_matches(name, self.list_commands(ctx), 1)
            meant = (
                f"did you mean {near[0]}?" if near else f"`{ctx.command_path} --help` lists them"
            )
            raise complain(f"`{ctx.command_path}` has no command {name}; {meant}", 2)
        return super().resolve_command(ctx, args)


def given_options(context: Any, *, variables: bool = True) -> dict[str, Any]:
    """Return what the command line gives and, unless excluded, what variables give."""
    places = ("COMMANDLINE", "ENVIRONMENT") if variables else ("COMMANDLINE",)
    return {
        name: value
        for name, value in context.params.items()
        if (source := context.get_parameter_source(name)) is not None and source.name in places
    }


def from_environment(context: Any, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "ENVIRONMENT"


def environment_variable(ctx: Any, parameter: Any) -> str:
    """Return the variable that gives the value of a parameter, or could."""
    names = _variables(ctx, parameter)
    return next((name for name in names if os.environ.get(name)), names[0])


def _variables(ctx: Any, parameter: Any) -> list[str]:
    if parameter.envvar:
        return [parameter.envvar] if isinstance(parameter.envvar, str) else list(parameter.envvar)
    if parameter.param_type_name == "argument" or ctx.auto_envvar_prefix is None:
        return []
    prefix = f"{ctx.auto_envvar_prefix}_" if parameter.allow_from_autoenv else PREFIX
    return [prefix + parameter.name.upper()]


#: Seconds that a program has for a graceful shutdown.
PATIENCE = 30.0
_STDERR = 2


class ForcedShutdown:
    """Ends the process at a second signal, or when a graceful shutdown takes too long.

    This is like a crash: uncommitted work is lost, and nothing else. `explain` is called in any
    thread, and returns a sentence with the reason for the delay.
    """

    def __init__(self, explain: Callable[[], str], patience: float = PATIENCE) -> None:
        self._explain = explain
        self._patience = patience
        self._timer: threading.Timer | None = None
        self._others: dict[int, Any] = {}

    @contextmanager
    def after(self, signals: Sequence[signal.Signals]) -> Iterator[None]:
        """Return a context that handles signals; for the main thread.

        Enter it after the event loop has installed its own handlers, which it calls too. Unlike
        those, its handlers also run while blocking code holds up the loop.
        """
        self._others = {number: signal.signal(number, self._on_signal) for number in signals}
        try:
            yield
        finally:
            # The default handlers, which the loop restores when it ends.
            for number in signals:
                usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
                signal.signal(number, usual)
            if self._timer is not None:
                self._timer.cancel()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._timer is not None:
            self._exit()
        self._timer = threading.Timer(self._patience, self._exit)
        self._timer.daemon = True
        self._timer.start()
        other = self._others[number]
        if callable(other):
            other(number, frame)

    def _exit(self) -> None:
        # To the descriptor, since the interrupted code may hold the lock of the stream.
        os.write(_STDERR, f"rsnotify: {self._explain()}\n".encode())
        os._exit(1)


T = TypeVar("T")


#: The number of new objects after which Python collects garbage.
_GC_THRESHOLD = 50_000
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run(
    main: Callable[[asyncio.Event], Coroutine[None, None, T]], forced: ForcedShutdown | None = None
) -> T:
    """Run a coroutine until it returns, on uvloop if that is installed.

    Args:
        main: Called with an event that is set at SIGINT or SIGTERM; it then shuts down gracefully.
        forced: Ends the process if the graceful shutdown takes too long.
    """
    import asyncio  # takes an eighth of the time of `rsnotify --help`, which does not need it

    async def supervised() -> T:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, stop.set)
        if forced is not None:
            contexts.enter_context(forced.after(_SIGNALS))
        return await main(stop)

    _reduce_garbage_collection()
    # Closing the loop waits for threads as well, so it comes before the end of `forced`.
    with ExitStack() as contexts, asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(supervised())


def _reduce_garbage_collection() -> None:
    """Make Python's cycle collector run rarely, and ignore all present objects.

    A message to many subscribers creates thousands of objects at once, and so does a list with many
    resources; none of them is in a cycle. With the default threshold the collector took a quarter
    of the CPU time of a hub, and an eighth of that of a Destination.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, 20, 20)


def run_until_stopped(work: Callable[[], Coroutine[None, None, T]]) -> T:
    """Run a coroutine as `run` does; exit with 130 if SIGINT or SIGTERM cancelled it."""
    from rsnotify.runtime.tasks import first_completed

    async def main(stop: asyncio.Event) -> T:
        async with first_completed(work(), stop.wait()) as (working, _):
            result: list[T] = [working.result()] if working.done() else []
        if not result:
            raise typer.Exit(130)
        return result[0]

    return run(main)


def printable(text: str) -> str:
    """Replace control characters, which untrusted text could send to the terminal."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def complain(what: Exception | str, code: int) -> typer.Exit:
    """Print an error as one sentence, maybe with lines of details; return the exit to raise."""
    lines = map(printable, str(what).split("\n"))
    typer.echo("rsnotify: " + "\n".join(lines), err=True)
    return typer.Exit(code)


def require_files(what: str, needed: int) -> None:
    """Raise the limit of open files to this number; complain if the system does not allow it."""
    from rsnotify.runtime.processes import allow_files

    allowed = allow_files(needed)
    if allowed < needed:
        complain(
            f"{what} may need {needed:,} files and connections at once, and the system allows "
            f"{allowed:,}; raise that (ulimit -n)",
            0,
        )


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


#: How long the sentence about a command may be.
_WHOLE = 200

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
        epilog="`rsnotify COMMAND --help` shows its options, and examples.",
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
        self._points = {point.name: point for point in entry_points(group="rsnotify.commands")}

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(self._points)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in self._points and cmd_name not in self.commands:
            self.commands[cmd_name] = _load(self._points[cmd_name])
        return self.commands.get(cmd_name)


def _load(point: EntryPoint) -> Any:
    # Each option is an environment variable too: --port of source is RSNOTIFY_SOURCE_PORT.
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
        typer.Option("--verbose", "-v", envvar=_VERBOSE, help="Log each step, with its reason."),
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
    """Writes to the current `sys.stderr`, which a live display replaces while it is shown."""

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
    """Run a command line, and exit; an error is one sentence with an exit code of `EXIT_CODES`."""
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
    return complain("this is an error in rsnotify; report it with the lines above", 3)
