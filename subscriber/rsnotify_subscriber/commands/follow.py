"""The command `rsnotify follow`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rsnotify.errors import ConfigurationError, RsnotifyError
from rsnotify.runtime.command_line import complain, option, with_arguments
from rsnotify.runtime.command_reports import Quiet, print_result
from rsnotify.runtime.command_status import StatusArguments
from rsnotify_subscriber.commands.follow_options import (
    FollowArguments,
    Json,
    MaybeDest,
    MaybeUrl,
    State,
)

ROLE = "follow"


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
            "Follow all Sources in this file (.toml or .json); other options override its "
            "[defaults].",
            dir_okay=False,
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Catch up, then exit.")] = False,
    state: State = None,
    json: Json = False,
    status: Annotated[
        str | None,
        option(
            "Status",
            "PORT|URL",
            "Show the status of another `rsnotify follow`, given its --status-port, and exit; "
            "with code 1 unless all copies are level.",
        ),
    ] = None,
    quiet: Quiet = False,
    *,
    serving: StatusArguments,
    arguments: FollowArguments,
) -> None:
    """Keep the folder DEST a copy of the Source at URL.

    With --config, follow all Sources in a file, in one process.

    Examples:
        rsnotify follow https://source.example/ copy
        rsnotify follow https://source.example/ copy --once --only '*.ttl'
        rsnotify follow --config fleet.toml --status-port 9090
    """
    from rsnotify_subscriber.commands.follow_fleet import follow_all, given_settings
    from rsnotify_subscriber.commands.follow_report import (
        SubscriberReport,
        follow_and_show,
        not_level,
    )
    from rsnotify_subscriber.commands.follow_status import serving_follower, show_status
    from rsnotify_subscriber.mirror import FolderMirror, default_state
    from rsnotify_subscriber.subscriber import Subscriber

    if status is not None:
        show_status(status, json=json)
        return
    if config is not None:
        with serving.server() as served:
            settings = given_settings(context)
            follow_all(config, settings, once=once, json=json, quiet=quiet, status=served)
        return
    if url is None or dest is None:
        raise ConfigurationError("URL and DEST are required, unless you give --config FILE")
    with arguments.callback_server() as server, serving.server() as served:
        subscriber = Subscriber(
            url,
            FolderMirror(dest),
            state=state or default_state(dest),
            options=arguments.options(server.callbacks),
        )
        report = SubscriberReport(url, json=json, quiet=quiet, transient=once)
        failure = None
        try:
            follow_and_show(
                subscriber, server, report, once=once, serving=serving_follower(subscriber, served)
            )
        except ConfigurationError:
            raise
        except RsnotifyError as error:
            if not once:
                raise
            failure = complain(error, 1)
    last = subscriber.status
    if once:
        report.name_source(last)
        print_result(report.facts(last), [report.outcome(last)], json=json)
    if failure is None and once and (last.foreign or not last.level):
        failure = complain(not_level(last), 1)
    if failure is not None:
        raise failure
