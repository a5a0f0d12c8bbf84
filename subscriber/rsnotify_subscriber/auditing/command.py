"""The command `rsnotify audit`."""

from __future__ import annotations

import msgspec
import typer

from rsnotify.commands import printable, run_until_stopped
from rsnotify_subscriber.auditing.auditor import Audit
from rsnotify_subscriber.auditing.auditor import audit as audit_mirror
from rsnotify_subscriber.command_options import (
    Bearer,
    Dest,
    Header,
    Json,
    Login,
    Private,
    State,
    Url,
    credentials_of,
)


def audit(
    url: Url,
    dest: Dest,
    state: State = None,
    json: Json = False,
    allow_private_addresses: Private = False,
    login: Login = None,
    bearer: Bearer = None,
    header: Header = None,
) -> None:
    """Tell whether DEST is in step with the Source at URL: exit 0 if so, 1 if not, 2 if unknown."""
    credentials = credentials_of(login, bearer, header)
    result = run_until_stopped(
        lambda: audit_mirror(
            url,
            dest,
            state=state,
            allow_private_addresses=allow_private_addresses,
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
            typer.echo(f"{kind}  {printable(name)}")
    for doubt in result.doubts:
        typer.echo(f"doubt  {printable(doubt)}")
    verdict = {True: "in step", False: "not in step", None: "could not tell"}[result.in_step]
    typer.echo(f"{verdict}: {result.resources} resources at the Source")
