"""The command `rsnotify`, with the subcommands of the installed packages.

A package offers a subcommand as an entry point of the group `rsnotify.commands`: a typer
function with the name of the subcommand, or a typer application with subcommands of its own.
The help, and the completion in a shell, load the modules of all subcommands. So such a module may
import at its top only what the help needs.
"""

from __future__ import annotations

import logging
import sys
from datetime import datetime
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, TextIO

import typer

from rsnotify import __version__
from rsnotify.errors import RsnotifyError
from rsnotify.runtime.cli.commands import CommandGroup, Subcommand
from rsnotify.runtime.cli.running import complain, printable

_HELP = """Push-extended ResourceSync: keep copies of web resources in step.

Examples:
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

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self._points:  # typer suggests those that are loaded
            for name in self._points:
                self.get_command(ctx, name)
        return super().resolve_command(ctx, args)


def _load(point: EntryPoint) -> Any:
    # Each option is an environment variable too: --port of source is RSNOTIFY_SOURCE_PORT.
    settings = {**_SETTINGS, "auto_envvar_prefix": f"RSNOTIFY_{point.name.upper()}"}
    loaded = point.load()
    app = typer.Typer(rich_markup_mode=None)
    if isinstance(loaded, typer.Typer):
        app.add_typer(loaded, name=point.name, context_settings=settings)
    else:
        app.command(point.name, cls=Subcommand, context_settings=settings)(loaded)
    return typer.main.get_group(app).commands[point.name]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rsnotify {__version__}")
        raise typer.Exit


def _common(
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", envvar="RSNOTIFY_VERBOSE", help="Log each step, with its reason."
        ),
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
    """Run the command line. An `RsnotifyError` ends it with one sentence and exit code 2."""
    try:
        application()()
    except RsnotifyError as error:
        sys.exit(complain(error, 2).exit_code)
