"""`rsnotify relay`: mirror a Source, and publish the copy as another Source."""

from __future__ import annotations

import socket
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.command_line import forced_shutdown, option, printable, run, with_arguments
from rsnotify.runtime.command_status import StatusArguments, StatusServer
from rsnotify.runtime.listening import address, listen
from rsnotify_publisher.commands.source import PublishingArguments
from rsnotify_subscriber.commands.follow_options import CallbackServer, FollowArguments, Url

if TYPE_CHECKING:
    import asyncio

    from rsnotify_relay.relay import Relay

ROLE = "distribute"

#: The heading of the options of `PublishingArguments` in the help.
_PUBLISHING = "Publishing"


@with_arguments
def relay(
    url: Url,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of the copy.", file_okay=False)
    ],
    config: Annotated[
        Path | None,
        option(
            _PUBLISHING,
            "FILE",
            "A file with settings, .toml or .json, as for `rsnotify source`.",
            advanced=True,
        ),
    ] = None,
    data: Annotated[
        Path | None, option(None, "DIR", "Folder for the state.", show_default="DIR.rsnotify")
    ] = None,
    described_by: Annotated[
        str | None, option(_PUBLISHING, "URL", "URL of a document about the copy.", advanced=True)
    ] = None,
    *,
    serving: StatusArguments,
    publishing: PublishingArguments,
    arguments: FollowArguments,
) -> None:
    """Mirror a Source to DIR, and publish DIR as another Source.

    Each entry links to the original resource.

    Examples:
        rsnotify relay https://source.example/ copy --base-url https://relay.example/
        rsnotify relay https://source.example/ copy --hub https://hub.example/
        rsnotify relay https://source.example/ copy --only '*.ttl' --port 8001
    """
    from rsnotify_publisher.config import load_configuration
    from rsnotify_relay.relay import Relay
    from rsnotify_subscriber.commands.follow_report import unfinished_work

    settings = load_configuration(
        config,
        **publishing.settings(),
        data=None if data is None else str(data),
        described_by=described_by,
    )
    if settings.sets:
        raise ConfigurationError(
            f"a relay publishes one set of resources; remove [[set]] in {config}"
        )
    with (
        listen(settings.host, settings.port) as listening,
        serving.server() as status,
        arguments.callback_server() as server,
    ):
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
        leaving = forced_shutdown(lambda: unfinished_work(relaying.subscriber.in_handler))
        serving_status = _serving_status(relaying, status)
        run(lambda stop: _serve(relaying, listening, at, server, serving_status, stop), leaving)


def _serving_status(relaying: Relay, status: StatusServer) -> AbstractAsyncContextManager[None]:
    """Return a context that serves the status, and the metrics of both halves."""
    if not status.is_listening:
        return nullcontext()
    from rsnotify_publisher.metrics import SourceMetrics
    from rsnotify_subscriber.commands.follow_status import routes
    from rsnotify_subscriber.metrics import FollowMetrics, not_ready

    follower = relaying.subscriber
    both = FollowMetrics(follower), SourceMetrics(relaying.publisher)
    return status.serving(
        lambda: chain.from_iterable(one.collect() for one in both),
        lambda: not_ready(follower),
        *routes(follower),
    )


async def _serve(
    relaying: Relay,
    listening: socket.socket,
    at: str,
    server: CallbackServer,
    serving_status: AbstractAsyncContextManager[None],
    stop: asyncio.Event,
) -> None:
    from rsnotify.runtime.serving import serving
    from rsnotify.runtime.tasks import first_completed, running

    async def print_source() -> None:
        subscriber = relaying.subscriber
        if await subscriber.until(lambda status: status.source is not None):
            typer.echo(f"rsnotify relay following {printable(str(subscriber.status.source))}")

    async with AsyncExitStack() as stack:

        async def serve() -> None:
            app = relaying.application()
            await stack.enter_async_context(serving(app, listening, shutdown_timeout=2))
            base_url = relaying.publisher.source.base_url
            typer.echo(f"rsnotify relay serving {base_url} (listening on {at})")

        async with (
            server.serving(),
            serving_status,
            running(print_source()),
            first_completed(relaying.run(serve), stop.wait()) as tasks,
        ):
            relaying.stop()
            await tasks[0]
