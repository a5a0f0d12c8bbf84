"""The command `rsnotify audit`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import typer

from rsnotify.plural import counted
from rsnotify.runtime.cli.running import printable, run_until_stopped
from rsnotify_subscriber.commands.options import (
    Dest,
    Json,
    NetworkArguments,
    State,
    Url,
    with_arguments,
)

if TYPE_CHECKING:
    from rsnotify_subscriber.auditing.auditor import Audit


@with_arguments
def audit(
    url: Url, dest: Dest, state: State = None, json: Json = False, *, arguments: NetworkArguments
) -> None:
    """Compare DEST with the resources that the Source at URL lists.

    Exit code 0: in step. 1: not in step. 2: unknown.

    Examples:
        rsnotify audit https://source.example/ copy
        rsnotify audit https://source.example/ copy --json
    """
    from rsnotify_subscriber.auditing.auditor import audit as audit_mirror

    credentials = arguments.credentials
    result = run_until_stopped(
        lambda: audit_mirror(
            url,
            dest,
            state=state,
            allow_private_addresses=arguments.allow_private_addresses,
            credentials=credentials,
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
    for kind in ("created", "updated", "deleted", "absent", "unknown"):
        for name in getattr(result, kind):
            reason = result.reasons.get(name) if kind == "unknown" else None
            if kind == "deleted" and name in result.foreign:
                reason = "not listed, and not part of this copy"
            typer.echo(printable(f"{kind}  {name}" + (f": {reason}" if reason else "")))
    for doubt in result.doubts:
        typer.echo(f"doubt  {printable(doubt)}")
    for limit in result.limits:
        typer.echo(f"limit  {printable(limit)}")
    typer.echo(_verdict(result))


def _verdict(result: Audit) -> str:
    listed = f"{counted(result.resources, 'resource')} at the Source"
    if result.in_step:
        return f"in step: {listed}"
    counts = [f"{result.equal:,} of them equal in the copy"]
    if result.differences:
        counts.append(counted(result.differences, "difference"))
    if result.unjudged:
        counts.append(f"{result.unjudged:,} could not be compared")
    verdict = "could not tell" if result.in_step is None else "not in step"
    return f"{verdict}: {listed}, {', '.join(counts)}"
