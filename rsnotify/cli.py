"""The command `rsnotify`: one shell around the subcommands that the packages bring.

A package offers a subcommand as an entry point of the group `rsnotify.commands`: a typer
function, named as the subcommand. So nothing here knows the packages.
"""

from __future__ import annotations

import logging
import sys
from importlib.metadata import entry_points

import typer

from rsnotify.errors import RsnotifyError


def application() -> typer.Typer:
    """Collect the installed subcommands."""
    app = typer.Typer(
        name="rsnotify",
        help="Push-extended ResourceSync: keep copies of web resources in step.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_common)
    for point in sorted(entry_points(group="rsnotify.commands"), key=lambda point: point.name):
        # Each option is an environment variable too: --base-url is RSNOTIFY_BASE_URL.
        app.command(point.name, context_settings={"auto_envvar_prefix": "RSNOTIFY"})(point.load())
    return app


def _common(
    verbose: bool = typer.Option(
        False, "--verbose", "-v", envvar="RSNOTIFY_VERBOSE", help="Log what is done, and why."
    ),
) -> None:
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    for noisy in ("apscheduler", "aiohttp.access", "watchfiles", "websockets"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def main() -> None:
    """Run the command line. An error we know gets one sentence and exit code 2."""
    try:
        application()()
    except RsnotifyError as error:
        typer.echo(f"rsnotify: {error}", err=True)
        sys.exit(2)
