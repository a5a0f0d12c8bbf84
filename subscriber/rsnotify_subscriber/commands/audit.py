"""The command `rsnotify audit`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from rsnotify.errors import WrongOption, counted
from rsnotify.runtime.command_line import option, run_until_stopped, with_arguments
from rsnotify.runtime.command_reports import print_result, progress_bar
from rsnotify_subscriber.commands.follow_options import (
    Dest,
    Json,
    NetworkArguments,
    State,
    Url,
)

if TYPE_CHECKING:
    from rsnotify_subscriber.auditing.auditor import Audit
    from rsnotify_subscriber.auditing.repair import Repair


@with_arguments
def audit(
    url: Url,
    dest: Dest,
    state: State = None,
    repair: Annotated[
        bool,
        option(None, None, "Fetch again, or remove, what differs; then audit again.", "--repair"),
    ] = False,
    dry_run: Annotated[
        bool, option(None, None, "With --repair: only show what would be done.", "--dry-run")
    ] = False,
    remove_foreign: Annotated[
        bool,
        option(
            None,
            None,
            "With --repair: remove files, too, that are not part of the copy.",
            "--remove-foreign",
        ),
    ] = False,
    verify: Annotated[
        bool,
        option(None, None, "Compare the hashes of all files; an audit always does.", "--verify"),
    ] = False,
    json: Json = False,
    *,
    arguments: NetworkArguments,
) -> None:
    """Compare DEST with the resources that the Source at URL lists.

    Exit code 0: in step. 1: not in step. 2: unknown.

    Examples:
        rsnotify audit https://source.example/ copy
        rsnotify audit https://source.example/ copy --json
        rsnotify audit https://source.example/ copy --repair --dry-run
    """
    from rsnotify_subscriber.auditing.auditor import audit as audit_mirror
    from rsnotify_subscriber.auditing.repair import repair as repair_mirror
    from rsnotify_subscriber.options import FollowOptions

    if dry_run and not repair:
        raise WrongOption("dry_run", "it shows what --repair would do; give both")
    if remove_foreign and not repair:
        raise WrongOption("remove_foreign", "it extends --repair; give both")
    options = FollowOptions(
        allow_private_addresses=arguments.allow_private_addresses,
        credentials=arguments.credentials,
    )

    async def compare(progress: Callable[[int, int], None] | None) -> Audit | Repair:
        if repair:
            return await repair_mirror(
                url,
                dest,
                state=state,
                options=options,
                dry_run=dry_run,
                remove_foreign=remove_foreign,
                progress=progress,
            )
        return await audit_mirror(
            url,
            dest,
            state=state,
            allow_private_addresses=options.allow_private_addresses,
            credentials=options.credentials,
            progress=progress,
        )

    with ExitStack() as stack:
        progress = None
        if not json and sys.stdout.isatty():
            progress = stack.enter_context(progress_bar("files compared"))
        result = run_until_stopped(lambda: compare(progress))
    if result is None:
        raise typer.Exit(2)
    print_result(_facts(result), _lines(result, url), json=json)
    raise typer.Exit({True: 0, False: 1, None: 2}[result.in_step])


def _facts(result: Audit | Repair) -> dict[str, Any]:
    """Return the last audit for JSON, with what was repaired before."""
    from rsnotify_subscriber.auditing.repair import Repair

    if not isinstance(result, Repair):
        return msgspec.structs.asdict(result) | {"in_step": result.in_step}
    done = {
        "found": _facts(result.found),
        "fetched": result.fetched,
        "removed": result.removed,
        "left": result.left,
        "dry_run": result.after is None,
    }
    return _facts(result.after or result.found) | {"repair": done}


def _lines(result: Audit | Repair, url: str) -> Iterator[str]:
    """Yield the audit before, what was done about each difference, or would be, and the last."""
    from rsnotify_subscriber.auditing.repair import Repair

    source = result.found.source if isinstance(result, Repair) else result.source
    if source not in (None, url):
        yield f"the Source was found at {source}"
    if not isinstance(result, Repair):
        yield from _audit_lines(result)
        return
    yield from _audit_lines(result.found)
    is_done = result.after is not None
    for name in result.fetched:
        yield f"{'fetched' if is_done else 'would fetch'}  {name}"
    for name in result.removed:
        yield f"{'removed' if is_done else 'would remove'}  {name}"
    for name, reason in result.left.items():
        yield f"{'left' if is_done else 'would leave'}  {name}: {reason}"
    if result.after is not None:
        yield from _audit_lines(result.after)


def _audit_lines(result: Audit) -> Iterator[str]:
    for kind in ("created", "updated", "deleted", "absent", "unknown"):
        for name in getattr(result, kind):
            reason = result.reasons.get(name) if kind == "unknown" else None
            if kind == "deleted" and name in result.foreign:
                reason = "not listed, and not part of this copy"
            yield f"{kind}  {name}" + (f": {reason}" if reason else "")
    for doubt in result.doubts:
        yield f"doubt  {doubt}"
    for limit in result.limits:
        yield f"limit  {limit}"
    yield _verdict(result)


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
