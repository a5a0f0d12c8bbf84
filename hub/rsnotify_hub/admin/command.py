"""`rsnotify hub …`: to look into a hub and act on it, over its admin API."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from rsnotify.commands import printable
from rsnotify.errors import ConfigurationError
from rsnotify_hub.admin import questions, shapes, tables
from rsnotify_hub.settings.tokens import MIN_TOKEN, digest
from rsnotify_hub.websub.delivering.delivery import State

if TYPE_CHECKING:
    from rsnotify_hub.admin.remote import Remote

commands = typer.Typer(rich_markup_mode=None, add_completion=False)

_DEFAULT_URL = "http://127.0.0.1:8080/"

_Url = Annotated[str, typer.Option("--url", envvar="RSNOTIFY_HUB_URL", help="The hub.")]
_Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="RSNOTIFY_ADMIN_TOKEN",
        help="An admin's token; in the environment other users cannot see it.",
    ),
]
_Json = Annotated[
    bool, typer.Option("--json", envvar="RSNOTIFY_JSON", help="Print JSON, for programs.")
]
_Limit = Annotated[int, typer.Option("--limit", min=1, help="How many rows at most.")]
_Id = Annotated[str, typer.Argument(metavar="ID", help="A subscription, by its id.")]


def _remote(url: str, token: str | None) -> Remote:
    from rsnotify_hub.admin.remote import Remote

    return Remote(url, token)


def _show(
    asking: Coroutine[Any, Any, Any], table: Callable[[Any], Iterable[str]], json: bool
) -> None:
    """Ask, and print the answer."""
    answer = asyncio.run(asking)
    if json:
        typer.echo(msgspec.json.encode(answer))
        return
    for line in table(answer):
        typer.echo(printable(line))


def _row(subscription: shapes.Subscription) -> Iterable[str]:
    return tables.subscriptions(shapes.Subscriptions((subscription,), 1, None))


@commands.command("status")
def status(url: _Url = _DEFAULT_URL, token: _Token = None, json: _Json = False) -> None:
    """Tell of a hub as a whole."""
    _show(_remote(url, token).ask("status"), tables.status, json)


@commands.command("topics")
def topics(
    url: _Url = _DEFAULT_URL,
    token: _Token = None,
    json: _Json = False,
    limit: _Limit = 100,
    sort: Annotated[
        questions.TopicOrder, typer.Option(help="The order.")
    ] = questions.TopicOrder.TOPIC,
) -> None:
    """List the topics of a hub, and who listens."""
    asking = _remote(url, token).collect("topics", limit=limit, sort=sort.value)
    _show(asking, tables.topics, json)


@commands.command("subscriptions")
def subscriptions(
    url: _Url = _DEFAULT_URL,
    token: _Token = None,
    json: _Json = False,
    limit: _Limit = 100,
    topic: Annotated[str | None, typer.Option(help="Only those of this topic.")] = None,
    state: Annotated[State | None, typer.Option(help="Only those that stand so.")] = None,
    sort: Annotated[
        questions.SubscriptionOrder, typer.Option(help="The order.")
    ] = questions.SubscriptionOrder.TROUBLE,
) -> None:
    """List the WebSub subscriptions of a hub, those in trouble first."""
    asking = _remote(url, token).collect(
        "subscriptions", limit=limit, topic=topic, state=state, sort=sort.value
    )
    _show(asking, tables.subscriptions, json)


@commands.command("failures")
def failures(url: _Url = _DEFAULT_URL, token: _Token = None, json: _Json = False) -> None:
    """List the last deliveries that failed, newest first."""
    _show(_remote(url, token).ask("failures"), tables.failures, json)


@commands.command("dead-letters")
def dead_letters(
    url: _Url = _DEFAULT_URL, token: _Token = None, json: _Json = False, limit: _Limit = 100
) -> None:
    """List what is not delivered any more until its topic changes."""
    _show(_remote(url, token).collect("deadLetters", limit=limit), tables.dead_letters, json)


@commands.command("redeliver")
def redeliver(
    id: _Id,
    since: Annotated[
        str | None,
        typer.Option(help="Go back in the log: deliver all that changed after this W3C Datetime."),
    ] = None,
    url: _Url = _DEFAULT_URL,
    token: _Token = None,
    json: _Json = False,
) -> None:
    """Deliver now what waits for a subscription, or again from an instant on."""
    body = questions.Redelivery(since=since)
    _show(_remote(url, token).ask("redeliver", id, body), _row, json)


@commands.command("suspend")
def suspend(id: _Id, url: _Url = _DEFAULT_URL, token: _Token = None, json: _Json = False) -> None:
    """Hold back the deliveries of a subscription until `resume`."""
    _show(_remote(url, token).ask("suspend", id), _row, json)


@commands.command("resume")
def resume(id: _Id, url: _Url = _DEFAULT_URL, token: _Token = None, json: _Json = False) -> None:
    """Deliver again to a suspended subscription, from where it stopped."""
    _show(_remote(url, token).ask("resume", id), _row, json)


@commands.command("drop")
def drop(
    id: Annotated[str, typer.Argument(metavar="ID", help="A subscription, by its id.")],
    topic: Annotated[
        bool,
        typer.Option("--topic", help="ID is a topic's: forget its log, and end its subscriptions."),
    ] = False,
    url: _Url = _DEFAULT_URL,
    token: _Token = None,
) -> None:
    """End a subscription; its callback is told why."""
    _show(_remote(url, token).ask("dropTopic" if topic else "drop", id), lambda _: (), False)


@commands.command("token")
def make_token(
    existing: Annotated[
        bool, typer.Option("--existing", help="Take the token from standard input instead.")
    ] = False,
    json: _Json = False,
) -> None:
    """Make a token, and the SHA-256 of it that the hub's configuration keeps."""
    token = sys.stdin.readline().strip() if existing else secrets.token_urlsafe(32)
    if len(token) < MIN_TOKEN:
        raise ConfigurationError(f"a token has at least {MIN_TOKEN} characters")
    if json:
        typer.echo(msgspec.json.encode({"token": token, "token_sha256": digest(token)}))
        return
    if not existing:
        typer.echo(f"token         {token}")
    typer.echo(f"token_sha256  {digest(token)}")
