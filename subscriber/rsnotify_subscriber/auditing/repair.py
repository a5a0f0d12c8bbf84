"""Repairs a mirror: refetches or removes everything that differs, and repeats the audit.

Differing resources are recorded as lost in the state, and a subscriber restores them in the same
way as damaged files. Files that are not part of the copy are only removed on request.
"""

from __future__ import annotations

import os
from asyncio import to_thread
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError, RsnotifyError
from rsnotify.format.coverage import Change
from rsnotify.format.model import ChangeType
from rsnotify.format.uris import normalize
from rsnotify_subscriber.auditing.auditor import NOT_FOUND_REASON, Audit, audit
from rsnotify_subscriber.mirror import FolderMirror, MirrorTree, default_state
from rsnotify_subscriber.options import DEFAULT_OPTIONS, FollowOptions
from rsnotify_subscriber.push_options import Via
from rsnotify_subscriber.status import ActivityKind, SyncActivity
from rsnotify_subscriber.storage.destination_state import DestinationState
from rsnotify_subscriber.storage.identity import Identity, read_held, read_identity
from rsnotify_subscriber.subscriber import Subscriber

_FOREIGN_REASON = "it is not part of this copy; remove it, or move it away"


class Repair(Struct, frozen=True):
    """The result of a repair, with the names from the audit before it.

    Args:
        found: The audit before the repair.
        fetched: URIs of resources that were refetched.
        removed: Files that were removed because the Source has no such resource.
        left: Why differences remain, keyed by URI or file.
        after: The audit after the repair. None for a dry run, where the other fields are a plan.
    """

    found: Audit
    fetched: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    left: dict[str, str] = {}
    after: Audit | None = None

    @property
    def in_step(self) -> bool | None:
        """Whether Source and mirror are equal now; None if unknown."""
        return (self.after or self.found).in_step


async def repair(
    url: str,
    folder: str | os.PathLike[str],
    *,
    state: str | os.PathLike[str] | None = None,
    options: FollowOptions = DEFAULT_OPTIONS,
    dry_run: bool = False,
    remove_foreign: bool = False,
    pause: float = 1.0,
    activity: SyncActivity | None = None,
) -> Repair:
    """Audit a mirror, refetch or remove everything that differs, and repeat the audit.

    This also applies changes that the Source has made in the meantime.

    Args:
        url: The URL at which the Source is followed.
        folder: The mirror.
        state: The folder of the mirror's state; by default the one that `rsnotify follow` uses.
        options: The options for following the Source during the repair. The selection and the
            preferred media types are taken from the copy, and push is not used.
        dry_run: Whether to return what a repair would do, without changing anything.
        remove_foreign: Whether to also remove files that are not part of the copy.
        pause: Seconds to wait before comparing differences again.
        activity: Updated during the repair with the current activity and its progress.

    Raises:
        ConfigurationError: The folder or its state does not exist, or the mirror is being followed.
        RsnotifyError: The Source could not be read.
    """
    folder = Path(folder)
    state_folder = default_state(folder) if state is None else Path(state)
    activity = activity or SyncActivity(ActivityKind.FINDING)
    known = await to_thread(read_identity, state_folder)
    if known is None:
        raise ConfigurationError(
            f"{state_folder} has no state of a copy in {folder}, so it cannot be repaired; "
            "name its state with --state, or follow the Source into an empty folder"
        )
    if not dry_run:
        await to_thread(_check_lock, state_folder)

    run_audit = partial(
        audit, url, folder, state=state_folder, options=options, pause=pause, activity=activity
    )
    found = await run_audit()
    held = await to_thread(_held_uris, (*found.deleted, *found.gone), folder, known, state_folder)
    foreign = found.foreign if remove_foreign else ()
    plan = _repair_plan(found, (*held, *foreign))
    if dry_run:
        return plan
    if not (plan.fetched or plan.removed):
        return replace(plan, after=found)
    unknown = {*held.values(), *(plan.fetched if known.prefer else ())}
    mirror = FolderMirror(folder)
    await to_thread(
        _record_lost, state_folder, plan.fetched, unknown, lambda: mirror.remove_files(foreign)
    )
    changed: dict[str, ChangeType] = {}

    def on_repaired(done: Sequence[Change]) -> None:
        changed.update((one.uri, one.change) for one in done)
        activity.done = len(changed)

    activity.kind, activity.done = ActivityKind.REPAIRING, 0
    activity.total = len(plan.fetched)
    subscriber = Subscriber(
        url,
        mirror,
        state=state_folder,
        options=replace(options, via=Via.POLL, selection=known.selection, prefer=known.prefer),
        on_committed=on_repaired,
    )
    failure = ""
    try:
        await subscriber.catch_up()
    except ConfigurationError:
        raise
    except RsnotifyError as error:
        failure = str(error)
    return _repair_result(plan, await run_audit(), changed, failure)


def _repair_plan(found: Audit, removed: tuple[str, ...]) -> Repair:
    doubt = next(iter(found.doubts), "it could not be compared")
    left = {name: found.reasons.get(name, doubt) for name in found.unknown}
    left |= dict.fromkeys(found.absent, NOT_FOUND_REASON)
    extra = (*found.deleted, *found.gone)
    left |= {name: _FOREIGN_REASON for name in extra if name not in removed}
    return Repair(found, (*found.created, *found.updated), removed, left)


def _repair_result(
    plan: Repair, after: Audit, changed: Mapping[str, ChangeType], failure: str
) -> Repair:
    """Return the result of a repair.

    Args:
        plan: What the repair intended to do.
        after: The audit after it.
        changed: The changes that were applied, by URI.
        failure: Why the subscriber failed, or an empty string.
    """
    differing = {
        *(*after.created, *after.updated, *after.deleted, *after.gone),
        *(*after.absent, *after.unknown),
    }
    left = {name: why for name, why in plan.left.items() if name in differing}
    for name in differing.intersection(plan.fetched + plan.removed):
        reason = NOT_FOUND_REASON if name in after.absent else after.reasons.get(name)
        left[name] = reason or failure or "it still differs"
    repaired = [name for name in plan.fetched if name not in left]
    gone = [name for name in repaired if changed.get(name) is ChangeType.DELETED]
    return Repair(
        plan.found,
        tuple(name for name in repaired if name not in gone),
        (*(name for name in plan.removed if name not in left), *gone),
        left,
        after,
    )


def _held_uris(
    names: Iterable[str], folder: Path, known: Identity, state_folder: Path
) -> dict[str, str]:
    """Return the URIs of those resources, named by URI or file, that the state contains."""
    wanted = set(names)
    held: dict[str, str] = {}
    if wanted:
        tree = MirrorTree(folder, known.base, probe=False)
        for uri in read_held(state_folder):
            names_of_resource = uri, os.path.relpath(tree.find(uri), tree.root)
            held |= {name: uri for name in names_of_resource if name in wanted}
    return held


def _check_lock(state_folder: Path) -> None:
    """Raise `ConfigurationError` if the mirror is being followed."""
    DestinationState(state_folder).close()


def _record_lost(
    state_folder: Path,
    lost: Iterable[str],
    unknown: Iterable[str],
    while_locked: Callable[[], None],
) -> None:
    """Record resources as lost, and forget the `unknown` ones.

    Then call `while_locked`, before another process can follow the Source.
    """
    with closing(DestinationState(state_folder)) as state:
        known = state.find_all([*lost, *unknown])

        def stored(uris: Iterable[str]) -> set[str]:
            # The documents may spell URIs differently than when the resources were stored.
            return {known[uri].uri if uri in known else normalize(uri) for uri in uris}

        forgotten = stored(unknown)
        differing = stored(lost) - forgotten
        held = {one.uri for one in known.values() if one.exists}
        state.lose(differing & held)
        forgotten |= differing - held
        if forgotten:
            state.forget(sorted(forgotten))
        while_locked()
