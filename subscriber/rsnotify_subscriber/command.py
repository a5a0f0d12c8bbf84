"""The command `rsnotify follow`."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer

from rsnotify.commands import complain, run
from rsnotify.errors import ConfigurationError, RsnotifyError
from rsnotify.pace import Pace
from rsnotify_subscriber.command_options import (
    CallbackHost,
    CallbackPort,
    CallbackUrl,
    Change,
    Collection,
    Dest,
    Exact,
    Except,
    Hearing,
    Json,
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
    Url,
    ViaOption,
    brokered,
    selection,
)
from rsnotify_subscriber.mirror import FolderMirror, default_state
from rsnotify_subscriber.push.choosing import Via
from rsnotify_subscriber.report import JsonReport, LineReport, Report, TerminalReport
from rsnotify_subscriber.subscriber import Subscriber

_REPORT_EVERY = 1.0


def follow(
    url: Url,
    dest: Dest,
    once: Annotated[bool, typer.Option("--once", help="Catch up, then exit.")] = False,
    via: ViaOption = Via.AUTO,
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
    mqtt_url: MqttUrl = None,
    mqtt_user: MqttUser = None,
    mqtt_password: MqttPassword = None,
    mqtt_ca: MqttCa = None,
    mqtt_certificate: MqttCertificate = None,
    mqtt_key: MqttKey = None,
    mqtt_session: MqttSession = "",
    mqtt_version: MqttVersion = "5",
) -> None:
    """Keep DEST a mirror of the Source at URL."""
    with Hearing(callback_url, callback_host, callback_port) as hearing:
        subscriber = Subscriber(
            url,
            FolderMirror(dest),
            state=state or default_state(dest),
            via=via,
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
    report = _report_for(json=json)
    failure = None
    with report:
        try:
            run(lambda stop: _follow(subscriber, hearing, report, stop, once=once))
        except ConfigurationError:
            raise
        except RsnotifyError as error:
            if not once:
                raise
            failure = complain(error, 1)
    if once and json:
        report.show(subscriber.status)
    if failure is not None:
        raise failure


def _report_for(*, json: bool) -> Report:
    if json:
        return JsonReport()
    return TerminalReport() if sys.stdout.isatty() else LineReport()


async def _follow(
    subscriber: Subscriber, hearing: Hearing, report: Report, stop: asyncio.Event, *, once: bool
) -> None:
    beside = [
        asyncio.create_task(_stop_when_asked(stop, subscriber)),
        asyncio.create_task(_show(subscriber, report)),
    ]
    try:
        async with hearing.answering():
            await (subscriber.catch_up() if once else subscriber.run())
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)


async def _stop_when_asked(stop: asyncio.Event, subscriber: Subscriber) -> None:
    await stop.wait()
    subscriber.stop()


async def _show(subscriber: Subscriber, report: Report) -> None:
    while True:
        await asyncio.sleep(_REPORT_EVERY)
        report.show(subscriber.status)
