"""Repairing a mirror: what an audit found is fetched again or removed, and audited again.

The state notes which resources the copy has lost, and a subscriber makes them right, as it does
after it has found damaged files itself. Files that are not part of the copy stay, unless their
removal is requested.
"""

from __future__ import annotations

import os
from asyncio import to_thread
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError, RsnotifyError
from rsnotify.format.coverage import Change
from rsnotify.format.model import ChangeType
from rsnotify_subscriber.auditing.auditor import Audit, audit
from rsnotify_subscriber.events import ActivityKind, SyncActivity
from rsnotify_subscriber.mirror import FolderMirror, MirrorTree, default_state
from rsnotify_subscriber.options import DEFAULT_OPTIONS, FollowOptions
from rsnotify_subscriber.storage.destination_state import DestinationState
from rsnotify_subscriber.storage.identity import Identity, read_held, read_identity
from rsnotify_subscriber.subscriber import Subscriber
from rsnotify_subscriber.terms import Via

_ABSENT = "the Source's server does not have it"
_FOREIGN = "it is not part of this copy; remove it, or move it away"


class Repair(Struct, frozen=True):
    """What a repair did, by the names in the audit before it.

    Args:
        found: The audit before.
        fetched: URIs of resources that were fetched again.
        removed: Files that were removed, as the Source has no such resource.
        left: By URI or file, why a difference is left, in a clause.
        after: The audit after; None of a dry run, for which the others are what would be done.
    """

    found: Audit
    fetched: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    left: dict[str, str] = {}
    after: Audit | None = None

    @property
    def in_step(self) -> bool | None:
        """Whether Source and mirror are equal now; None if that is unknown."""
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
    """Fetch again, or remove, what an audit finds, and audit again.

    Changes that the Source has made meanwhile are applied, too.

    Args:
        url: The Source, as it is followed.
        folder: The mirror.
        state: The folder of its state; by default the one that `rsnotify follow` uses.
        options: How the Source is followed for that; selection and preferred media types are those
            of the copy, and no push is used.
        dry_run: Whether to return only what would be done.
        remove_foreign: Whether files are removed, too, that are not part of the copy.
        pause: As for `audit`.
        activity: As for `audit`.

    Raises:
        ConfigurationError: There is no such folder, or no state of it; or it is being followed.
        RsnotifyError: The Source could not be read.
    """
    folder = Path(folder)
    place = default_state(folder) if state is None else Path(state)
    activity = activity or SyncActivity(ActivityKind.FINDING)
    known = await to_thread(read_identity, place)
    if known is None:
        raise ConfigurationError(
            f"{place} has no state of a copy in {folder}, so it cannot be repaired; "
            "name its state with --state, or follow the Source into an empty folder"
        )
    if not dry_run:
        await to_thread(_lose, place, (), (), lambda: None)  # refused while another process follows

    async def audited() -> Audit:
        return await audit(
            url,
            folder,
            state=place,
            options=options,
            pause=pause,
            activity=activity,
        )

    found = await audited()
    held = await to_thread(_held_uris, (*found.deleted, *found.gone), folder, known, place)
    foreign = found.foreign if remove_foreign else ()
    plan = _plan(found, (*held, *foreign))
    if dry_run:
        return plan
    if not (plan.fetched or plan.removed):
        return replace(plan, after=found)
    unknown = {*held.values(), *(plan.fetched if known.prefer else ())}
    mirror = FolderMirror(folder)
    await to_thread(_lose, place, plan.fetched, unknown, lambda: mirror.remove_files(foreign))
    changed: dict[str, ChangeType] = {}

    def repaired(done: Sequence[Change]) -> None:
        changed.update((one.uri, one.change) for one in done)
        activity.done = len(changed)

    activity.kind, activity.done = ActivityKind.REPAIRING, 0
    activity.total = len(plan.fetched)
    subscriber = Subscriber(
        url,
        mirror,
        state=place,
        options=replace(options, via=Via.POLL, selection=known.selection, prefer=known.prefer),
        on_committed=repaired,
    )
    failure = ""
    try:
        await subscriber.catch_up()
    except ConfigurationError:
        raise
    except RsnotifyError as error:
        failure = str(error)
    return _done(plan, await audited(), changed, failure)


def _plan(found: Audit, removed: tuple[str, ...]) -> Repair:
    doubt = next(iter(found.doubts), "it could not be compared")
    left = {name: found.reasons.get(name, doubt) for name in found.unknown}
    left |= dict.fromkeys(found.absent, _ABSENT)
    extra = (*found.deleted, *found.gone)
    left |= {name: _FOREIGN for name in extra if name not in removed}
    return Repair(found, (*found.created, *found.updated), removed, left)


def _done(plan: Repair, after: Audit, changed: Mapping[str, ChangeType], failure: str) -> Repair:
    """Return what has become of a plan, by the changes that were applied and the audit after."""
    differing = {
        *(*after.created, *after.updated, *after.deleted, *after.gone),
        *(*after.absent, *after.unknown),
    }
    left = {name: why for name, why in plan.left.items() if name in differing}
    for name in differing.intersection(plan.fetched + plan.removed):
        reason = _ABSENT if name in after.absent else after.reasons.get(name)
        left[name] = reason or failure or "it still differs"
    mended = [name for name in plan.fetched if name not in left]
    gone = [name for name in mended if changed.get(name) is ChangeType.DELETED]
    return Repair(
        plan.found,
        tuple(name for name in mended if name not in gone),
        (*(name for name in plan.removed if name not in left), *gone),
        left,
        after,
    )


def _held_uris(names: Iterable[str], folder: Path, known: Identity, place: Path) -> dict[str, str]:
    """Return, by name, the URI of each file or resource that the state has."""
    wanted = set(names)
    held: dict[str, str] = {}
    if wanted:
        tree = MirrorTree(folder, known.base, probe=False)
        for uri in read_held(place):
            both = uri, os.path.relpath(tree.find(uri), tree.root)
            held |= {name: uri for name in both if name in wanted}
    return held


def _lose(
    place: Path, lost: Iterable[str], unknown: Iterable[str], meanwhile: Callable[[], None]
) -> None:
    """Store that the copy has lost resources, and that nothing is known of others.

    No other process can follow while `meanwhile` is called.
    """
    state = DestinationState(place)
    try:
        held = {uri for uri, one in state.find_all(list(lost)).items() if one.exists}
        state.lose(held.difference(unknown))
        if forgotten := {*unknown, *lost} - held.difference(unknown):
            state.forget(sorted(forgotten))
        meanwhile()
    finally:
        state.close()
