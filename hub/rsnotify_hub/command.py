"""`rsnotify hub`: runs the hub. Its subcommands use a running hub's admin API, or its store."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Coroutine, Iterable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import typer

from rsnotify.errors import ConfigurationError, WrongOption, counted
from rsnotify.runtime.command_line import (
    Command,
    CommandGroup,
    from_environment,
    given_options,
    printable,
    run,
    run_until_stopped,
)
from rsnotify.runtime.settings import MIN_TOKEN, digest, warn_of_misspelt
from rsnotify_hub.admin import schemas, text_tables
from rsnotify_hub.websub_subscription import DeliveryState

if TYPE_CHECKING:
    import asyncio

    from rsnotify_hub.admin.client import AdminClient
    from rsnotify_hub.config.configuration import HubConfig
    from rsnotify_hub.export_file import ImportReport
    from rsnotify_hub.store.interface import Store

__all__ = ["hub"]

ROLE = "distribute"

T = TypeVar("T")

hub = typer.Typer(cls=CommandGroup, rich_markup_mode=None)
_command = partial(hub.command, cls=Command)


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


# Subcommands that use the admin API of a running hub.

_DEFAULT_URL = "http://127.0.0.1:8080/"

_Url = Annotated[
    str, typer.Option("--url", metavar="URL", envvar="RSNOTIFY_HUB_URL", help="The URL of the hub.")
]
_Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        metavar="TOKEN",
        envvar="RSNOTIFY_ADMIN_TOKEN",
        help="An admin's token. Prefer the variable, which other users cannot see.",
    ),
]
_Json = Annotated[
    bool, typer.Option("--json", envvar="RSNOTIFY_JSON", help="Print JSON, for programs.")
]
_Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Maximum number of rows.")]
_Id = Annotated[str, typer.Argument(metavar="ID", help="A subscription's id, or its first digits.")]


def _client(url: str, token: str | None) -> AdminClient:
    from rsnotify_hub.admin.client import AdminClient

    return AdminClient(url, token)


def _show(
    call: Coroutine[Any, Any, Any], table: Callable[[Any], Iterable[str]], json: bool
) -> None:
    import asyncio

    answer = asyncio.run(call)
    if json:
        typer.echo(msgspec.json.encode(answer))
        return
    for line in table(answer):
        typer.echo(printable(line))


@_command("status")
def status(url: _Url = _DEFAULT_URL, token: _Token = None, json: _Json = False) -> None:
    """Show the state of a hub.

    Examples:
        rsnotify hub status
        rsnotify hub status --url https://hub.example/ --json
    """
    _show(_client(url, token).call("status"), text_tables.status, json)


@_command("nodes")
def nodes(url: _Url = _DEFAULT_URL, token: _Token = None, json: _Json = False) -> None:
    """List the nodes of a hub.

    Examples:
        rsnotify hub nodes
        rsnotify hub nodes --url http://hub1.example:8080/ --json
    """
    _show(_client(url, token).call("nodes"), text_tables.nodes, json)


@_command("drain")
def drain(url: _Url = _DEFAULT_URL, token: _Token = None) -> None:
    """Hand the work of a node over to the other nodes, before stopping it.

    The node closes its WebSockets, whose clients reconnect to another node.

    Examples:
        rsnotify hub drain
        rsnotify hub drain --url http://hub1.example:8080/
    """
    _show(_client(url, token).call("drain"), lambda _: ["drained; stop it now"], False)


@_command("topics")
def topics(
    url: _Url = _DEFAULT_URL,
    token: _Token = None,
    json: _Json = False,
    limit: _Limit = 100,
    sort: Annotated[
        schemas.TopicOrder, typer.Option(metavar="topic|received", help="The order.")
    ] = schemas.TopicOrder.TOPIC,
) -> None:
    """List the topics of a hub, with their subscribers.

    Examples:
        rsnotify hub topics
        rsnotify hub topics --sort received --limit 10
    """
    call = _client(url, token).call_paged("topics", limit=limit, sort=sort.value)
    _show(call, text_tables.topics, json)


@_command("subscriptions")
def subscriptions(
    url: _Url = _DEFAULT_URL,
    token: _Token = None,
    json: _Json = False,
    limit: _Limit = 100,
    topic: Annotated[
        str | None, typer.Option(metavar="URI", help="Only subscriptions of this topic.")
    ] = None,
    state: Annotated[
        DeliveryState | None,
        typer.Option(
            metavar="active|retrying|given-up|suspended", help="Only subscriptions in this state."
        ),
    ] = None,
    sort: Annotated[
        schemas.SubscriptionOrder, typer.Option(metavar="topic|trouble", help="The order.")
    ] = schemas.SubscriptionOrder.TROUBLE,
) -> None:
    """List the WebSub subscriptions, by default those in trouble first.

    Examples:
        rsnotify hub subscriptions --state given-up
        rsnotify hub subscriptions --topic https://source.example/channel
    """
    call = _client(url, token).call_paged(
        "subscriptions", limit=limit, topic=topic, state=state, sort=sort.value
    )
    _show(call, text_tables.subscriptions, json)


@_command("connections")
def connections(
    url: _Url = _DEFAULT_URL,
    token: _Token = None,
    json: _Json = False,
    limit: _Limit = 100,
    topic: Annotated[
        str | None, typer.Option(metavar="URI", help="Only connections of this topic.")
    ] = None,
    role: Annotated[
        schemas.ClientRole | None,
        typer.Option(metavar="subscriber|publisher", help="Only connections with this role."),
    ] = None,
    sort: Annotated[
        schemas.ConnectionOrder, typer.Option(metavar="since|trouble", help="The order.")
    ] = schemas.ConnectionOrder.TROUBLE,
) -> None:
    """List the open WebSockets and event streams, by default slow ones first.

    Examples:
        rsnotify hub connections --role publisher
        rsnotify hub connections --topic https://source.example/channel
    """
    call = _client(url, token).call_paged(
        "connections", limit=limit, topic=topic, role=role, sort=sort.value
    )
    _show(call, text_tables.connections, json)


@_command("disconnect")
def disconnect(
    id: Annotated[str, typer.Argument(metavar="ID", help="The id of a connection.")],
    url: _Url = _DEFAULT_URL,
    token: _Token = None,
) -> None:
    """Close a WebSocket or event stream.

    The client may reconnect.

    Examples:
        rsnotify hub disconnect 0123456789abcdef0123456789abcdef
        rsnotify hub disconnect 0123456789abcdef0123456789abcdef --url https://hub.example/
    """
    _show(_client(url, token).call("disconnect", id), lambda _: (), False)


@_command("subscription")
def subscription(
    id: _Id, url: _Url = _DEFAULT_URL, token: _Token = None, json: _Json = False
) -> None:
    """Show a subscription and its last delivery attempts.

    This shows the complete callback, which may contain secrets.

    Examples:
        rsnotify hub subscription 6c1b5a0f7e3d4c2b9a8f7e6d5c4b3a29
        rsnotify hub subscription 6c1b5a --json
    """
    _show(_client(url, token).call("subscription", id), text_tables.details, json)


@_command("failures")
def failures(url: _Url = _DEFAULT_URL, token: _Token = None, json: _Json = False) -> None:
    """List the last failed deliveries, newest first.

    Examples:
        rsnotify hub failures
        rsnotify hub failures --json
    """
    _show(_client(url, token).call("failures"), text_tables.failures, json)


@_command("dead-letters")
def dead_letters(
    url: _Url = _DEFAULT_URL, token: _Token = None, json: _Json = False, limit: _Limit = 100
) -> None:
    """List the deliveries that the hub does not retry until their topic changes.

    Examples:
        rsnotify hub dead-letters
        rsnotify hub dead-letters --limit 10 --json
    """
    _show(
        _client(url, token).call_paged("deadLetters", limit=limit), text_tables.dead_letters, json
    )


@_command("redeliver")
def redeliver(
    id: _Id,
    since: Annotated[
        str | None,
        typer.Option(metavar="DATETIME", help="Redeliver all changes after this W3C Datetime."),
    ] = None,
    url: _Url = _DEFAULT_URL,
    token: _Token = None,
    json: _Json = False,
) -> None:
    """Deliver the pending fragments of a subscription now.

    With --since, redeliver everything after that datetime.

    Examples:
        rsnotify hub redeliver 6c1b5a
        rsnotify hub redeliver 6c1b5a --since 2026-03-01T00:00:00Z
    """
    body = schemas.Redelivery(since=since)
    _show(_client(url, token).call("redeliver", id, body), text_tables.subscription, json)


@_command("suspend")
def suspend(id: _Id, url: _Url = _DEFAULT_URL, token: _Token = None, json: _Json = False) -> None:
    """Suspend the deliveries to a subscription until it is resumed.

    Examples:
        rsnotify hub suspend 6c1b5a
        rsnotify hub suspend 6c1b5a0f7e3d4c2b9a8f7e6d5c4b3a29 --url https://hub.example/
    """
    _show(_client(url, token).call("suspend", id), text_tables.subscription, json)


@_command("resume")
def resume(id: _Id, url: _Url = _DEFAULT_URL, token: _Token = None, json: _Json = False) -> None:
    """Resume the deliveries to a suspended subscription.

    Examples:
        rsnotify hub resume 6c1b5a
        rsnotify hub resume 6c1b5a0f7e3d4c2b9a8f7e6d5c4b3a29 --url https://hub.example/
    """
    _show(_client(url, token).call("resume", id), text_tables.subscription, json)


@_command("drop")
def drop(
    id: _Id,
    topic: Annotated[
        bool,
        typer.Option("--topic", help="ID is a topic's: delete its log, and end its subscriptions."),
    ] = False,
    url: _Url = _DEFAULT_URL,
    token: _Token = None,
) -> None:
    """End a subscription, and send its callback the reason.

    Examples:
        rsnotify hub drop 6c1b5a
        rsnotify hub drop 6c1b5a0f7e3d4c2b9a8f7e6d5c4b3a29 --topic
    """
    _show(_client(url, token).call("dropTopic" if topic else "drop", id), lambda _: (), False)


@_command("token")
def make_token(
    existing: Annotated[
        bool, typer.Option("--existing", help="Read the token from standard input instead.")
    ] = False,
    json: _Json = False,
) -> None:
    """Generate a token, and its SHA-256 for the settings.

    Examples:
        rsnotify hub token
        rsnotify hub token --existing
    """
    import secrets

    token = sys.stdin.readline().strip() if existing else secrets.token_hex(32)
    if len(token) < MIN_TOKEN:
        raise ConfigurationError(f"a token must have at least {MIN_TOKEN} characters")
    if json:
        typer.echo(msgspec.json.encode({"token": token, "token_sha256": digest(token)}))
        return
    if not existing:
        typer.echo(f"token         {token}")
    typer.echo(f"token_sha256  {digest(token)}")


# Subcommands that use a hub's store, to move its subscriptions and contents to another store.

_Data = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        envvar="RSNOTIFY_HUB_DATA",
        help="The data folder of a stopped hub.",
        show_default="rsnotify-hub",
    ),
]
_StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        envvar="RSNOTIFY_HUB_STORE",
        help="A store such as nats://host:port, instead of --data; its nodes may be running.",
    ),
]
_Config = Annotated[
    str | None,
    typer.Option(metavar="FILE", envvar="RSNOTIFY_HUB_CONFIG", help="The hub's settings file."),
]


@_command("export")
def export_hub(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file.")],
    data: _Data = None,
    store: _StoreUrl = None,
    config: _Config = None,
) -> None:
    """Export a hub's subscriptions to a file.

    The export includes topics with a whole content instead of changes. Only the file's owner can
    read it, because it contains the subscriptions' secrets.

    Examples:
        rsnotify hub export hub.jsonl --data rsnotify-hub
        rsnotify hub export hub.jsonl --store nats://127.0.0.1:4222
    """
    from rsnotify_hub.export_file import (
        ExportedFragment,
        ExportedSubscription,
        write_export,
    )

    configuration = _configuration(context, config, data=data, store=store)
    folder = Path(configuration.log.data)
    if configuration.store is None and not (folder / "hub.sqlite").exists():
        raise ConfigurationError(f"the folder {folder} has no data of a hub")
    counts = _with_store(configuration, lambda opened: write_export(file, opened))
    typer.echo(
        f"exported {counted(counts[ExportedSubscription], 'subscription')} and "
        f"{counted(counts[ExportedFragment], 'whole content')} to {file}"
    )


@_command("import")
def import_hub(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file written by `export`.")],
    data: _Data = None,
    store: _StoreUrl = None,
    config: _Config = None,
) -> None:
    """Import a file with subscriptions and contents into a hub.

    The hub's logs, newer contents and newer leases are kept.

    Examples:
        rsnotify hub import hub.jsonl --store nats://127.0.0.1:4222
        rsnotify hub import hub.jsonl --data rsnotify-hub
    """
    from rsnotify_hub.export_file import check_export, read_export
    from rsnotify_hub.intake import limits_of

    configuration = _configuration(context, config, data=data, store=store)
    limits = limits_of(configuration.intake)
    check_export(file, limits)  # before the store is opened
    _report(_with_store(configuration, lambda opened: read_export(file, opened, limits)))


def _report(report: ImportReport) -> None:
    typer.echo(
        f"imported {counted(report.subscriptions, 'subscription')} and "
        f"{counted(report.contents, 'whole content')}"
    )
    for number, thing, reason in (
        (report.newer, "subscription", "the hub has the same or a newer lease"),
        (report.expired, "subscription", "the lease has expired"),
        (report.other_contents, "whole content", "the hub has the same content or a newer entry"),
    ):
        if number:
            typer.echo(f"skipped {counted(number, thing)}: {reason}")


def _configuration(context: typer.Context, config: str | None, **options: str | None) -> HubConfig:
    from msgspec.structs import replace

    from rsnotify_hub.config.loading import ConfigurationSource

    # `ConfigurationSource` reads the environment itself, so that its errors name the variable.
    given = {name: value for name, value in options.items() if not from_environment(context, name)}
    configuration = ConfigurationSource(config, os.environ, given).load()
    if given.get("data") is not None and given.get("store") is None:
        # --data takes precedence over a store in the settings file.
        return replace(configuration, store=None)
    return configuration


def _with_store(configuration: HubConfig, work: Callable[[Store], Coroutine[None, None, T]]) -> T:
    from rsnotify_hub.open_store import open_store

    async def main() -> T:
        async with open_store(configuration, lambda: datetime.now(UTC), "") as opened:
            return await work(opened.store)

    return run_until_stopped(main)
