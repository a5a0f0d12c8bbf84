"""`rsnotify relay`: follow a Source, and publish the copy as a Source of its own."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.cli.forced_shutdown import ForcedShutdown
from rsnotify.runtime.cli.listening import address, listen
from rsnotify.runtime.cli.running import run
from rsnotify_subscriber.commands.callback_server import CallbackServer
from rsnotify_subscriber.commands.follow_options import FollowArguments
from rsnotify_subscriber.commands.options import Url, with_arguments

if TYPE_CHECKING:
    import asyncio

    from rsnotify_relay.relay import Relay

#: The group of these options in the help.
_COPY = "Publishing the copy"


@with_arguments
def relay(
    url: Url,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of the copy.", file_okay=False)
    ],
    base_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            rich_help_panel=_COPY,
            help="URL of the copy for others; http://HOST:PORT/ if not given.",
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            metavar="HOST",
            rich_help_panel=_COPY,
            help="Address to listen on.",
            show_default="127.0.0.1",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            rich_help_panel=_COPY,
            help="Port to listen on; 0 takes a free one.",
            show_default="8000",
        ),
    ] = None,
    hub: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            rich_help_panel=_COPY,
            help="URL of a hub to push to, or of its nodes with commas between them; "
            "may be repeated.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=_COPY,
            help="A file with settings, .toml or .json, as for `rsnotify source`.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for the state.", show_default="DIR.rsnotify"),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(metavar="TOKEN", rich_help_panel=_COPY, help="Bearer token for the hubs."),
    ] = None,
    described_by: Annotated[
        str | None,
        typer.Option(
            metavar="URL", rich_help_panel=_COPY, help="URL of a document about the copy."
        ),
    ] = None,
    *,
    arguments: FollowArguments,
) -> None:
    """Follow a Source into DIR, and publish DIR as a Source.

    The entries of its documents name the resources that they are copies of.

    Examples:
        rsnotify relay https://source.example/ copy --base-url https://relay.example/
        rsnotify relay https://source.example/ copy --hub https://hub.example/
    """
    from rsnotify_publisher.config import load_configuration
    from rsnotify_relay.relay import Relay
    from rsnotify_subscriber.commands.running import unfinished_work

    settings = load_configuration(
        config,
        base_url=base_url,
        host=host,
        port=port,
        hubs=hub or None,
        data=None if data is None else str(data),
        token=token,
        described_by=described_by,
    )
    if settings.sets:
        raise ConfigurationError(f"a relay has one set of resources; {config} names several")
    with listen(settings.host, settings.port) as listening, arguments.callback_server() as server:
        at = address(settings.host, listening)
        relaying = Relay(
            url,
            folder,
            settings.base_url or at,
            state=Path(settings.data) if settings.data else None,
            hubs=settings.known_hubs(),
            options=settings.options_of(),
            described_by=settings.described_by,
            follow=arguments.options(server.callbacks),
        )
        leaving = ForcedShutdown(lambda: unfinished_work(relaying.subscriber.in_handler))
        run(lambda stop: _relay(relaying, listening, at, server, stop), leaving)


async def _relay(
    relaying: Relay, listening: socket.socket, at: str, server: CallbackServer, stop: asyncio.Event
) -> None:
    import asyncio

    from aiohttp import web

    runner = web.AppRunner(relaying.application(), access_log=None, shutdown_timeout=2)
    await runner.setup()

    async def serve() -> None:
        await web.SockSite(runner, listening).start()
        base_url = relaying.publisher.source.base_url
        typer.echo(f"rsnotify relay serving {base_url} (listening on {at})")

    work = asyncio.create_task(relaying.run(serve))
    stopped = asyncio.create_task(stop.wait())
    try:
        async with server.serving():
            await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
            relaying.stop()
            await work
    finally:
        stopped.cancel()
        await runner.cleanup()
