"""`rsnotify gateway`: publish origins without push as Sources with push."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rsnotify.runtime.command_line import forced_shutdown, option, run, with_arguments
from rsnotify.runtime.command_status import StatusArguments, StatusServer
from rsnotify.runtime.listening import address, listen
from rsnotify_publisher.commands.source import PublishingArguments

if TYPE_CHECKING:
    import asyncio
    import socket

    from rsnotify_gateway.gateway import Gateway

ROLE = "publish"

_FORCED = "the gateway did not shut down cleanly; recorded changes are kept"
_SHUTDOWN_TIMEOUT_SECONDS = 60.0
_DEFAULT_STATE = "rsnotify-gateway"
#: Number of open files per origin: its journal, opened three times, and connections.
_FILES_PER_ORIGIN = 20
_OTHER_FILES = 256


@with_arguments
def gateway(
    config: Annotated[
        Path, typer.Argument(metavar="FILE", help="The origins and settings, .toml or .json.")
    ],
    data: Annotated[
        Path | None, option(None, "DIR", "Folder for the state.", show_default=_DEFAULT_STATE)
    ] = None,
    *,
    serving: StatusArguments,
    publishing: PublishingArguments,
) -> None:
    """Add push to origins that lack it.

    FILE lists the origins: Sitemaps, OAI-PMH repositories, feeds, pull-only Sources, IIIF, LDES,
    streams of events, and databases.
    The gateway copies no content: its documents refer to the origins' URIs.

    Examples:
        rsnotify gateway gateway.toml
        rsnotify gateway gateway.toml --data /var/lib/gateway --port 8001
        rsnotify gateway gateway.toml --base-url https://push.example/ --hub https://hub.example/
    """
    from rsnotify.runtime.processes import allow_files
    from rsnotify_gateway.config import load_gateway
    from rsnotify_gateway.gateway import Gateway

    settings = load_gateway(
        config, **publishing.settings(), data=None if data is None else str(data)
    )
    allow_files(len(settings.origins) * _FILES_PER_ORIGIN + _OTHER_FILES)
    with listen(settings.host, settings.port) as listening, serving.server() as status:
        at = address(settings.host, listening)
        app = Gateway(
            settings.data or _DEFAULT_STATE,
            settings.base_url or at,
            settings.origins,
            contact=settings.contact,
            hubs=settings.known_hubs(),
            options=settings.options_of(),
            described_by=settings.described_by,
        )
        leaving = forced_shutdown(lambda: _FORCED, _SHUTDOWN_TIMEOUT_SECONDS)
        run(lambda stop: _serve(app, listening, at, status, stop), leaving)


async def _serve(
    gateway: Gateway, listening: socket.socket, at: str, status: StatusServer, stop: asyncio.Event
) -> None:
    from rsnotify.errors import counted
    from rsnotify.runtime.serving import serving
    from rsnotify.runtime.tasks import first_completed
    from rsnotify_publisher.commands.source_run import serving_source

    async with AsyncExitStack() as stack:
        publishers = [watch.publisher for watch in gateway.watches]
        await stack.enter_async_context(serving_source(publishers, status))

        async def serve() -> None:
            app = gateway.application()
            await stack.enter_async_context(serving(app, listening, shutdown_timeout=2))
            origins = counted(len(gateway.watches), "origin")
            base_url = gateway.source.base_url
            typer.echo(f"rsnotify gateway serving {base_url} ({origins}), listening on {at}")

        async with first_completed(gateway.run(serve), stop.wait()) as tasks:
            following = tasks[0]
            if following.done():
                following.result()
