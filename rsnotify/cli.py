"""The command `rsnotify`: one shell around the subcommands that the packages bring.

A package offers a subcommand as an entry point of the group `rsnotify.commands`: a typer
function, named as the subcommand, or a typer application where it has subcommands of its own.
So nothing here knows the packages.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points

import typer

from rsnotify.commands import complain, printable
from rsnotify.commands.variables import Command
from rsnotify.errors import RsnotifyError


def application(arguments: Sequence[str] = ()) -> typer.Typer:
    """Make the command line.

    Args:
        arguments: What the user typed. Of the subcommands only the one that is named is
            loaded; all are where none is, for the help.
    """
    app = typer.Typer(
        name="rsnotify",
        help="Push-extended ResourceSync: keep copies of web resources in step.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_common)
    points = {point.name: point for point in entry_points(group="rsnotify.commands")}
    named = next((argument for argument in arguments if argument in points), None)
    for name in [named] if named else sorted(points):
        _mount(app, name, points[name].load())
    return app


def _mount(app: typer.Typer, name: str, command: Callable[..., None] | typer.Typer) -> None:
    if isinstance(command, typer.Typer):
        settings = {"auto_envvar_prefix": f"RSNOTIFY_{name.upper()}"}
        app.add_typer(command, name=name, context_settings=settings)
    else:
        app.command(name, cls=Command)(command)


def _common(
    verbose: bool = typer.Option(
        False, "--verbose", "-v", envvar="RSNOTIFY_VERBOSE", help="Log what is done, and why."
    ),
) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Line("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler])
    for noisy in ("apscheduler", "aiohttp.access", "watchfiles", "websockets"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


class _Line(logging.Formatter):
    """Keeps what is logged on one line: much of it was written by strangers."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))


def main() -> None:
    """Run the command line. An error we know gets one sentence and exit code 2."""
    try:
        application(sys.argv[1:])()
    except RsnotifyError as error:
        sys.exit(complain(error, 2).exit_code)
