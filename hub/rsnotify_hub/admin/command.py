"""The subcommands of `rsnotify hub` that use the admin API of a running hub."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.command_line import Command, CommandGroup, printable
from rsnotify.runtime.settings import MIN_TOKEN, digest
from rsnotify_hub.admin import schemas, text_tables
from rsnotify_hub.websub_subscription import DeliveryState

if TYPE_CHECKING:
    from rsnotify_hub.admin.client import AdminClient

commands = typer.Typer(cls=CommandGroup, rich_markup_mode=None)
_command = partial(commands.command, cls=Command)

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
