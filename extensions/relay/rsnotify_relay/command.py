"""`rsnotify relay`: follow a Source, and publish the copy as a Source of its own."""

from __future__ import annotations

import socket
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.command_line import ForcedShutdown, option, run
from rsnotify.runtime.listening import address, listen
from rsnotify_subscriber.commands.follow_options import (
    CallbackServer,
    FollowArguments,
    Url,
    with_arguments,
)

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
        option("URL", "URL of the copy for others; http://HOST:PORT/ if not given.", _COPY),
    ] = None,
    host: Annotated[
        str | None, option("HOST", "Address to listen on.", _COPY, show_default="127.0.0.1")
    ] = None,
    port: Annotated[
        int | None,
        option("PORT", "Port to listen on; 0 takes a free one.", _COPY, show_default="8000"),
    ] = None,
    hub: Annotated[
        list[str] | None,
        option(
            "URL",
            "URL of a hub to push to, or of its nodes with commas between them; may be repeated.",
            _COPY,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        option("FILE", "A file with settings, .toml or .json, as for `rsnotify source`.", _COPY),
    ] = None,
    data: Annotated[
        Path | None, option("DIR", "Folder for the state.", show_default="DIR.rsnotify")
    ] = None,
    token: Annotated[str | None, option("TOKEN", "Bearer token for the hubs.", _COPY)] = None,
    described_by: Annotated[
        str | None, option("URL", "URL of a document about the copy.", _COPY)
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
    from rsnotify_subscriber.commands.report import unfinished_work

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
    from rsnotify.runtime.serving import serving
    from rsnotify.runtime.tasks import first_completed

    async with AsyncExitStack() as stack:

        async def serve() -> None:
            app = relaying.application()
            await stack.enter_async_context(serving(app, listening, shutdown_timeout=2))
            base_url = relaying.publisher.source.base_url
            typer.echo(f"rsnotify relay serving {base_url} (listening on {at})")

        async with server.serving(), first_completed(relaying.run(serve), stop.wait()) as tasks:
            relaying.stop()
            await tasks[0]
