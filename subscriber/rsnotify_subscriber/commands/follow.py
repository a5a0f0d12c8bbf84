"""The command `rsnotify follow`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rsnotify.errors import ConfigurationError, RsnotifyError
from rsnotify.runtime.command_line import complain, option, with_arguments
from rsnotify_subscriber.commands.follow_options import (
    FollowArguments,
    Json,
    MaybeDest,
    MaybeUrl,
    State,
)


@with_arguments
def follow(
    context: typer.Context,
    url: MaybeUrl = None,
    dest: MaybeDest = None,
    config: Annotated[
        Path | None,
        option(
            None,
            "FILE",
            "Follow all Sources in this file, .toml or .json; other options override its "
            "[defaults].",
            dir_okay=False,
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Catch up, then exit.")] = False,
    state: State = None,
    json: Json = False,
    *,
    arguments: FollowArguments,
) -> None:
    """Keep DEST a copy of the Source at URL.

    With --config: follow all Sources in a file, in one process.

    Examples:
        rsnotify follow https://source.example/ copy
        rsnotify follow https://source.example/ copy --once --only '*.ttl'
        rsnotify follow --config fleet.toml
    """
    from rsnotify_subscriber.commands.follow_fleet import follow_all, given_settings
    from rsnotify_subscriber.commands.report import (
        SubscriberReport,
        follow_and_show,
        not_level,
    )
    from rsnotify_subscriber.mirror import FolderMirror, default_state
    from rsnotify_subscriber.subscriber import Subscriber

    if config is not None:
        follow_all(config, given_settings(context), once=once, json=json)
        return
    if url is None or dest is None:
        raise ConfigurationError("name the Source and the folder of its mirror, or --config FILE")
    with arguments.callback_server() as server:
        subscriber = Subscriber(
            url,
            FolderMirror(dest),
            state=state or default_state(dest),
            options=arguments.options(server.callbacks),
        )
        report = SubscriberReport(url, json=json)
        failure = None
        try:
            follow_and_show(subscriber, server, report, once=once)
        except ConfigurationError:
            raise
        except RsnotifyError as error:
            if not once:
                raise
            failure = complain(error, 1)
    status = subscriber.status
    if once and json:
        report.show(status)
    elif once:
        report.name_source(status)
        typer.echo(report.outcome(status))
    if failure is None and once and (status.foreign or not status.level):
        failure = complain(not_level(status), 1)
    if failure is not None:
        raise failure
