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
    Change,
    Collection,
    Dest,
    Except,
    Json,
    Only,
    Poll,
    Private,
    State,
    Type,
    Url,
    ViaOption,
    selection,
)
from rsnotify_subscriber.mirror import FolderMirror, default_state
from rsnotify_subscriber.report import JsonReport, LineReport, Report, TerminalReport
from rsnotify_subscriber.subscriber import Subscriber, Via

_REPORT_EVERY = 1.0


def follow(
    url: Url,
    dest: Dest,
    once: Annotated[bool, typer.Option("--once", help="Catch up, then exit.")] = False,
    via: ViaOption = Via.AUTO,
    poll: Poll = 10,
    only: Only = None,
    excluded: Except = None,
    type: Type = None,
    change: Change = None,
    collection: Collection = None,
    state: State = None,
    json: Json = False,
    allow_private_addresses: Private = False,
) -> None:
    """Keep DEST a mirror of the Source at URL."""
    subscriber = Subscriber(
        url,
        FolderMirror(dest),
        state=state or default_state(dest),
        via=via,
        pace=Pace(poll=poll),
        selection=selection(only, excluded, type, change, collection),
        allow_private_addresses=allow_private_addresses,
    )
    report: Report = JsonReport() if json else TerminalReport() if _on_terminal() else LineReport()

    async def main(stop: asyncio.Event) -> None:
        work = asyncio.create_task(subscriber.catch_up() if once else subscriber.run())
        stopper = asyncio.create_task(_stop_when_asked(stop, subscriber))
        reporter = asyncio.create_task(_report(subscriber, report))
        try:
            await work
        finally:
            for task in (stopper, reporter):
                task.cancel()
            await asyncio.gather(stopper, reporter, return_exceptions=True)

    with report:
        try:
            run(main)
        except ConfigurationError:
            raise
        except RsnotifyError as error:
            if not once:
                raise
            raise complain(error, 1) from None


def _on_terminal() -> bool:
    return sys.stdout.isatty()


async def _stop_when_asked(stop: asyncio.Event, subscriber: Subscriber) -> None:
    await stop.wait()
    subscriber.stop()


async def _report(subscriber: Subscriber, report: Report) -> None:
    while True:
        await asyncio.sleep(_REPORT_EVERY)
        report.show(subscriber.status)
