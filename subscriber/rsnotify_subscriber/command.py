"""The commands `rsnotify follow` and `rsnotify audit`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from rsnotify.commands import printable, run, run_until_stopped
from rsnotify.errors import ConfigurationError, RsnotifyError
from rsnotify.pace import Pace
from rsnotify_subscriber.auditing import Audit
from rsnotify_subscriber.auditing import audit as audit_mirror
from rsnotify_subscriber.command_options import (
    Change,
    Collection,
    Except,
    Only,
    Private,
    Type,
    selection,
)
from rsnotify_subscriber.mirror import FolderMirror, default_state
from rsnotify_subscriber.report import JsonReport, LineReport, Report, TerminalReport
from rsnotify_subscriber.subscriber import Subscriber, Via

_REPORT_EVERY = 1.0

Url = Annotated[str, typer.Argument(help="A site, a Capability List, a Change List, ...")]
Dest = Annotated[Path, typer.Argument(help="The folder of the mirror.", file_okay=False)]
State = Annotated[
    Path | None, typer.Option(help="The folder of the state.", show_default="DEST.rsnotify")
]
Json = Annotated[bool, typer.Option("--json", help="Write JSON.")]


def follow(
    url: Url,
    dest: Dest,
    once: Annotated[bool, typer.Option("--once", help="Catch up, then exit.")] = False,
    via: Annotated[Via, typer.Option(help="How changes are heard of.")] = Via.AUTO,
    poll: Annotated[float, typer.Option(help="Seconds between polls without push.", min=0.1)] = 10,
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
            raise _sentence(error, 1) from None


def audit(
    url: Url,
    dest: Dest,
    state: State = None,
    json: Json = False,
    allow_private_addresses: Private = False,
) -> None:
    """Tell whether DEST is in step with the Source at URL: exit 0 if so, 1 if not, 2 if unknown."""
    result = run_until_stopped(
        lambda: audit_mirror(
            url, dest, state=state, allow_private_addresses=allow_private_addresses
        )
    )
    if result is None:
        raise typer.Exit(2)
    if json:
        facts = msgspec.structs.asdict(result) | {"in_step": result.in_step}
        typer.echo(msgspec.json.encode(facts).decode())
    else:
        _print_audit(result)
    raise typer.Exit({True: 0, False: 1, None: 2}[result.in_step])


def _print_audit(result: Audit) -> None:
    for kind in ("created", "updated", "deleted", "unknown"):
        for name in getattr(result, kind):
            typer.echo(f"{kind}  {printable(name)}")
    for doubt in result.doubts:
        typer.echo(f"doubt  {printable(doubt)}")
    verdict = {True: "in step", False: "not in step", None: "could not tell"}[result.in_step]
    typer.echo(f"{verdict}: {result.resources} resources at the Source")


def _sentence(error: RsnotifyError, code: int) -> typer.Exit:
    typer.echo(f"rsnotify: {error}", err=True)
    return typer.Exit(code)


def _on_terminal() -> bool:
    return sys.stdout.isatty()


async def _stop_when_asked(stop: asyncio.Event, subscriber: Subscriber) -> None:
    await stop.wait()
    subscriber.stop()


async def _report(subscriber: Subscriber, report: Report) -> None:
    while True:
        await asyncio.sleep(_REPORT_EVERY)
        report.show(subscriber.status)
