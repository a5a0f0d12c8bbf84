"""The command `rsnotify follow`."""

from __future__ import annotations

from typing import Annotated

import typer

from rsnotify.commands import complain
from rsnotify.errors import ConfigurationError, RsnotifyError
from rsnotify.pace import Pace
from rsnotify_subscriber.command_options import (
    CallbackHost,
    CallbackLease,
    CallbackPatience,
    CallbackPort,
    CallbackQuiet,
    CallbackRefuse,
    CallbackSecret,
    CallbackSettle,
    CallbackSignature,
    CallbackUrl,
    Change,
    Collection,
    Config,
    Exact,
    Except,
    Hearing,
    Hubs,
    Json,
    MaybeDest,
    MaybeUrl,
    MqttCa,
    MqttCertificate,
    MqttKey,
    MqttPassword,
    MqttSession,
    MqttUrl,
    MqttUser,
    MqttVersion,
    Only,
    Poll,
    Prefer,
    Private,
    Rate,
    Spread,
    State,
    Type,
    ViaOption,
    brokered,
    selection,
)
from rsnotify_subscriber.command_running import follow_and_show, report_for
from rsnotify_subscriber.fleet.command import follow_all, given
from rsnotify_subscriber.mirror import FolderMirror, default_state
from rsnotify_subscriber.push.choosing import Via
from rsnotify_subscriber.push.websub.terms import DEFAULT_TERMS, WebSubTerms
from rsnotify_subscriber.report import JsonReport, LineReport, TerminalReport
from rsnotify_subscriber.subscriber import Subscriber


def follow(
    context: typer.Context,
    url: MaybeUrl = None,
    dest: MaybeDest = None,
    config: Config = None,
    once: Annotated[bool, typer.Option("--once", help="Catch up, then exit.")] = False,
    via: ViaOption = Via.AUTO,
    hubs: Hubs = 1,
    poll: Poll = 10,
    spread: Spread = None,
    rate: Rate = None,
    only: Only = None,
    excluded: Except = None,
    type: Type = None,
    change: Change = None,
    collection: Collection = None,
    prefer: Prefer = None,
    exact: Exact = False,
    state: State = None,
    json: Json = False,
    allow_private_addresses: Private = False,
    callback_url: CallbackUrl = None,
    callback_host: CallbackHost = "127.0.0.1",
    callback_port: CallbackPort = None,
    callback_lease: CallbackLease = DEFAULT_TERMS.lease,
    callback_secret: CallbackSecret = DEFAULT_TERMS.secret,
    callback_signature: CallbackSignature = None,
    callback_refuse: CallbackRefuse = DEFAULT_TERMS.refuse,
    callback_patience: CallbackPatience = DEFAULT_TERMS.patience,
    callback_settle: CallbackSettle = DEFAULT_TERMS.settle,
    callback_quiet: CallbackQuiet = DEFAULT_TERMS.quiet,
    mqtt_url: MqttUrl = None,
    mqtt_user: MqttUser = None,
    mqtt_password: MqttPassword = None,
    mqtt_ca: MqttCa = None,
    mqtt_certificate: MqttCertificate = None,
    mqtt_key: MqttKey = None,
    mqtt_session: MqttSession = "",
    mqtt_version: MqttVersion = "5",
) -> None:
    """Keep DEST a mirror of the Source at URL, or follow all Sources of a file."""
    if config is not None:
        follow_all(config, given(context), once=once, json=json)
        return
    if url is None or dest is None:
        raise ConfigurationError("name the Source and the folder of its mirror, or --config FILE")
    terms = WebSubTerms(
        lease=callback_lease,
        secret=callback_secret,
        signatures=tuple(callback_signature or DEFAULT_TERMS.signatures),
        refuse=callback_refuse,
        patience=callback_patience,
        settle=callback_settle,
        quiet=callback_quiet,
    )
    with Hearing(callback_url, callback_host, callback_port, terms) as hearing:
        subscriber = Subscriber(
            url,
            FolderMirror(dest),
            state=state or default_state(dest),
            via=via,
            hubs=hubs,
            pace=Pace(poll=poll, spread=spread, rate=rate),
            selection=selection(only, excluded, type, change, collection),
            prefer=prefer or (),
            exact=exact,
            allow_private_addresses=allow_private_addresses,
            callbacks=hearing.callbacks,
            mqtt=brokered(
                mqtt_url,
                mqtt_user,
                mqtt_password,
                mqtt_ca,
                mqtt_certificate,
                mqtt_key,
                mqtt_session,
                mqtt_version,
            ),
        )
        _run(subscriber, hearing, once=once, json=json)


def _run(subscriber: Subscriber, hearing: Hearing, *, once: bool, json: bool) -> None:
    report = report_for(JsonReport, TerminalReport, LineReport, wants_json=json)
    failure = None
    try:
        follow_and_show(subscriber, hearing, report, once=once)
    except ConfigurationError:
        raise
    except RsnotifyError as error:
        if not once:
            raise
        failure = complain(error, 1)
    if once and json:
        report.show(subscriber.status)
    if failure is None and once and not subscriber.status.level:
        failure = complain("it was stopped before the copy was level", 1)
    if failure is not None:
        raise failure
