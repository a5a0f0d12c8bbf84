"""The command `rsnotify audit`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from rsnotify.errors import WrongOption, counted
from rsnotify.runtime.command_line import option, run_until_stopped, with_arguments
from rsnotify.runtime.command_reports import Quiet, print_result, progress_of
from rsnotify_subscriber.commands.follow_options import Dest, Json, NetworkArguments, State, Url

if TYPE_CHECKING:
    from rsnotify_subscriber.auditing.auditor import Audit
    from rsnotify_subscriber.auditing.repair import Repair

ROLE = "check"

#: Maximum number of lines of each kind, unless `--all` is given.
_MAX_SHOWN_PER_KIND = 20


@with_arguments
def audit(
    url: Url,
    dest: Dest,
    state: State = None,
    repair: Annotated[
        bool,
        option(None, None, "Refetch or remove what differs, and audit again.", "--repair"),
    ] = False,
    dry_run: Annotated[
        bool, option(None, None, "With --repair: only show what it would do.", "--dry-run")
    ] = False,
    remove_foreign: Annotated[
        bool,
        option(
            None,
            None,
            "With --repair: also remove files that are not part of the copy.",
            "--remove-foreign",
        ),
    ] = False,
    verify: Annotated[
        bool,
        option(None, None, "Has no effect: an audit always verifies all hashes.", "--verify"),
    ] = False,
    everything: Annotated[
        bool,
        option(
            None,
            None,
            f"List all differences, not only {_MAX_SHOWN_PER_KIND} of each kind.",
            "--all",
        ),
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
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
    from rsnotify_subscriber.commands.follow_report import work_of
    from rsnotify_subscriber.options import FollowOptions
    from rsnotify_subscriber.status import ActivityKind, SyncActivity

    if dry_run and not repair:
        raise WrongOption("dry_run", "it requires --repair")
    if remove_foreign and not repair:
        raise WrongOption("remove_foreign", "it requires --repair")
    options = FollowOptions(
        allow_private_addresses=arguments.allow_private_addresses, credentials=arguments.credentials
    )

    activity = SyncActivity(ActivityKind.FINDING)

    async def audit_or_repair() -> Audit | Repair:
        if repair:
            return await repair_mirror(
                url,
                dest,
                state=state,
                options=options,
                dry_run=dry_run,
                remove_foreign=remove_foreign,
                activity=activity,
            )
        return await audit_mirror(url, dest, state=state, options=options, activity=activity)

    with progress_of(lambda: work_of(activity, compared="files"), quiet=quiet):
        result = run_until_stopped(audit_or_repair)
    lines = _result_lines(result, url, None if everything else _MAX_SHOWN_PER_KIND)
    print_result(_json_fields(result), lines, json=json)
    raise typer.Exit({True: 0, False: 1, None: 2}[result.in_step])


def _json_fields(result: Audit | Repair) -> dict[str, Any]:
    """Return the last audit as JSON fields, including the repair before it, if any."""
    from rsnotify_subscriber.auditing.repair import Repair

    if not isinstance(result, Repair):
        return msgspec.structs.asdict(result) | {"in_step": result.in_step}
    done = {
        "found": _json_fields(result.found),
        "fetched": result.fetched,
        "removed": result.removed,
        "left": result.left,
        "dry_run": result.after is None,
    }
    return _json_fields(result.after or result.found) | {"repair": done}


#: The width of the column with the kind of each line.
_KIND_WIDTH = 14
_UNKNOWN = "unknown"
_UNLISTED_REASON = "not listed, but the lists may be incomplete"


def _result_lines(result: Audit | Repair, url: str, shown: int | None) -> Iterator[str]:
    """Yield the audit, any repair of each difference (done or planned), and the audit after it.

    `shown` is the maximum number of lines of each kind, or None.
    """
    from rsnotify_subscriber.auditing.repair import Repair

    found = result.found if isinstance(result, Repair) else result
    if found.source not in (None, url):
        yield f"the Source was found at {found.source}"
    yield from audit_lines(found, shown)
    if not isinstance(result, Repair):
        return
    is_done = result.after is not None
    yield from _limited_lines("fetched" if is_done else "would fetch", result.fetched, shown)
    yield from _limited_lines("removed" if is_done else "would remove", result.removed, shown)
    left = [f"{name}: {reason}" for name, reason in result.left.items()]
    yield from _limited_lines("left" if is_done else "would leave", left, shown)
    if result.after is not None:
        yield from audit_lines(result.after, shown)


def _limited_lines(kind: str, names: Sequence[str], shown: int | None) -> Iterator[str]:
    for name in names[:shown]:
        yield f"{kind:{_KIND_WIDTH}}  {name}"
    if shown is not None and len(names) > shown:
        yield f"{kind:{_KIND_WIDTH}}  … and {len(names) - shown:,} more; --all shows all"


def audit_lines(result: Audit, shown: int | None = None) -> Iterator[str]:
    """Yield the differences by kind, at most `shown` of each, and a summary."""
    for kind, names in _differences_by_kind(result).items():
        yield from _limited_lines(kind, names, shown)
    yield from _limited_lines("doubt", result.doubts, None)
    yield from _limited_lines("limit", result.limits, None)
    yield _summary(result)


def _differences_by_kind(result: Audit) -> dict[str, list[str]]:
    """Return the names of differing files and resources, with reasons, by kind of difference."""
    from rsnotify_subscriber.auditing.auditor import NOT_FOUND_REASON

    foreign = dict.fromkeys(result.foreign, "not part of this copy")
    kinds: dict[str, dict[str, str | None]] = {
        "missing": dict.fromkeys(result.created),
        "different": dict.fromkeys(result.updated),
        "not listed": {name: foreign.get(name) for name in result.deleted},
        "gone": dict.fromkeys(result.gone, NOT_FOUND_REASON),
        "unavailable": dict.fromkeys(result.absent, NOT_FOUND_REASON),
        _UNKNOWN: {name: result.reasons.get(name, _UNLISTED_REASON) for name in result.unknown},
    }
    return {
        kind: [f"{name}: {reason}" if reason else name for name, reason in reasons.items()]
        for kind, reasons in kinds.items()
        if reasons
    }


def _summary(result: Audit) -> str:
    listed = f"{counted(result.resources, 'resource')} at the Source"
    if result.in_step:
        return f"in step: {listed}"
    verdict = _UNKNOWN if result.in_step is None else "not in step"
    counts = [
        f"{len(names):,} {'could not be compared' if kind == _UNKNOWN else kind}"
        for kind, names in _differences_by_kind(result).items()
    ]
    return f"{verdict}: {listed}, {', '.join([f'{result.equal:,} equal in the copy', *counts])}"
