"""`rsnotify hub`: runs the hub. Its subcommands use a running hub's admin API, or its store."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Annotated

import typer

from rsnotify.errors import WrongOption
from rsnotify.runtime.command_line import Command, given_options, run
from rsnotify.runtime.settings import warn_of_misspelt
from rsnotify_hub.admin.command import commands as hub
from rsnotify_hub.transfer.command import export_hub, import_hub

if TYPE_CHECKING:
    import asyncio

__all__ = ["hub"]

ROLE = "distribute"

hub.command("export", cls=Command)(export_hub)
hub.command("import", cls=Command)(import_hub)


@hub.callback(invoke_without_command=True)
def run_hub(
    context: typer.Context,
    host: Annotated[
        str | None,
        typer.Option(metavar="HOST", help="The address to listen on.", show_default="127.0.0.1"),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(metavar="PORT", help="The port; 0 chooses a free one.", show_default="8080"),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="The folder for all data.", show_default="rsnotify-hub"),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Share nats://host:port with other nodes of this hub, instead of --data.",
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            envvar="RSNOTIFY_HUB_CONFIG",
            metavar="FILE",
            help="A file with settings, .toml or .json.",
        ),
    ] = None,
    public_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="The URL of this hub for others.", show_default="from host and port"
        ),
    ] = None,
    allow_private_addresses: Annotated[
        bool,
        typer.Option(
            "--allow-private-addresses",
            help="Allow callbacks and topics at loopback and private addresses.",
        ),
    ] = False,
) -> None:
    """Run a hub, which passes changes from Sources to Destinations.

    With a subcommand: show the state of a running hub, or change it.

    Examples:
        rsnotify hub --data hub-data
        rsnotify hub --config hub.toml --public-url https://hub.example/
        rsnotify hub --store nats://127.0.0.1:4222 --port 8081
    """
    if context.invoked_subcommand is not None:
        _refuse_options_before(context, context.invoked_subcommand)
        return

    from rsnotify_hub.application import serve, use_json_logs
    from rsnotify_hub.config.loading import ConfigurationSource

    # The configuration reads the environment itself, because any setting may be there.
    options = given_options(context, variables=False)
    options.pop("config", None)
    source = ConfigurationSource(config, os.environ, options)
    configuration = source.load()
    if configuration.server.log_format == "json":
        use_json_logs(logging.getLogger())
    for variable, meant in source.misspelt().items():
        warn_of_misspelt(variable, meant)

    async def main(stop: asyncio.Event) -> None:
        async with serve(configuration, source=source) as url:
            typer.echo(f"rsnotify hub listening on {url}")
            await stop.wait()

    run(main)


def _refuse_options_before(context: typer.Context, command: str) -> None:
    """Refuse options that would have no effect, such as the folder of another hub."""
    for name in given_options(context, variables=False):
        raise WrongOption(name, f"options of `{command}` come after it")
