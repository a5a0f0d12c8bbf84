"""Detects files of a copy that were changed or removed by others, and restores them.

    at start   changes that were committed but not flushed before a crash are reapplied
               (`apply_unfinished`); a folder without the copy is refused (`check_folder`)
    running    the folder has to stay the same (`watch_place`), and the files are compared with
               the state (`CopyCheck`): immediately, at each comparison with the whole set, and
               at intervals. For a store, its `CheckedHandler` compares them.

The state contains the size and modification time of each file. A file with a different time is
read. If its content is unchanged, for example after a copy to a new disk, only the new time is
stored. Otherwise the file counts as lost until its content is refetched.

The resource itself has to serve exactly the lost content. If it does not, the lists are read to
find out why: a change may have been missed, or the content may be in a dump. If they list no
change, the Source may have changed the resource without listing it, and the served content is
accepted.
"""

from __future__ import annotations

import asyncio
import logging
import os
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from itertools import islice, takewhile
from pathlib import Path
from random import Random
from threading import Event
from time import monotonic
from typing import TypeVar

from msgspec.structs import replace

from rsnotify.errors import (
    ConfigurationError,
    ContentMismatch,
    NotFound,
    RsnotifyError,
    StorageError,
    counted,
)
from rsnotify.format.coverage import EARLIEST, Change
from rsnotify.format.hashes import matches
from rsnotify.format.model import ChangeType, Resource
from rsnotify.runtime.tasks import call_in, wait_for_event
from rsnotify.sync.actions import Action
from rsnotify.sync.follower import Follower
from rsnotify_subscriber.following.push_monitor import RunContext
from rsnotify_subscriber.handlers import CheckedHandler, LocatedHandler, Received, deferred_handler
from rsnotify_subscriber.mirror.paths import pieces_of
from rsnotify_subscriber.status import foreign_files
from rsnotify_subscriber.storage.destination_state import DestinationState, HeldFile
from rsnotify_subscriber.storage.identity import Identity
from rsnotify_subscriber.storage.resource_state import LOST

T = TypeVar("T")

logger = logging.getLogger("rsnotify.subscriber")

#: Seconds between two checks that the folder is still the same.
_PLACE_CHECK_INTERVAL = 5.0
#: Seconds for which a check of the files is not repeated by comparisons with the whole set.
_RECENT_CHECK_AGE = 300.0
#: Number of files to compare in one call in a thread.
_BATCH_SIZE = 1_000
#: Number of arrays that contain the hashes of paths.
_HASH_ARRAYS = 64
#: Maximum number of concurrent file checks in a process, for all its Sources together.
_MAX_CONCURRENT_CHECKS = 2
#: Number of lost resources to read from the state in one query.
_LOST_PAGE_SIZE = 500
#: Seconds between two checks of resources that are being refetched.
_MIN_POLL_INTERVAL, _MAX_POLL_INTERVAL = 0.05, 1.0
#: Seconds between two log messages about the progress of a check that reads all files.
_PROGRESS_LOG_INTERVAL = 10.0
#: Maximum number of foreign files to list by name.
_MAX_LISTED_FILES = 10


def check_folder(handler: object, state: DestinationState, identity: Identity, adopt: bool) -> None:
    """Refuse a folder without any file of the copy, or a folder with files for a first copy.

    With `adopt`, the folder of a first copy may contain files. If the handler is not a
    `LocatedHandler`, a state that was restored from a backup is only invalidated.
    """
    if not isinstance(handler, LocatedHandler):
        if state.is_restored:
            logger.warning("the state was restored from a backup; refetching everything")
            state.invalidate()
        return
    if not state.resources and not identity.place and not adopt:
        # Files of changes that a crash interrupted are part of the copy.
        unknown = {path for path, _ in handler.find_files(state.unknown_uris())}
        other = next((path for path in handler.paths() if path not in unknown), None)
        if other is not None:
            raise ConfigurationError(
                f"the folder of a first copy must be empty, but it contains {other}; remove its "
                "files, or choose another folder. If they are an earlier copy, restore its state, "
                f"{state.database.name}, or adopt them with --adopt"
            )
    example, held = "", state.held_uris()
    while uris := list(islice(held, _BATCH_SIZE)):
        example = example or uris[0]
        if any(found for _, found in handler.find_files(uris)):
            break
    else:
        if example:
            raise ConfigurationError(_missing_files_message(state, f", for example {example}"))
    if state.is_restored:
        logger.warning("the state was restored from a backup; comparing everything with the Source")
        state.compare_restored()


def check_location(handler: object, state: DestinationState) -> None:
    """Refuse a state with resources if their folder is missing."""
    if isinstance(handler, LocatedHandler) and state.resources and not handler.place:
        raise ConfigurationError(_missing_files_message(state))


def _missing_files_message(state: DestinationState, example: str = "") -> str:
    files, name = state.resources, state.database.name
    return (
        f"the copy lacks all {files} files listed in {name}{example}; mount or restore the "
        f"folder of the copy, or remove the folder and {name} to copy everything again"
    )


async def is_in_place(context: RunContext) -> bool:
    """Return whether a `LocatedHandler` has the same place as at the start of the run."""
    handler = context.handler
    return not isinstance(handler, LocatedHandler) or (
        await call_in(context.worker, lambda: handler.place) == context.identity.place
    )


async def check_place(context: RunContext) -> None:
    if not await is_in_place(context):
        raise StorageError(
            "the folder of the copy was removed, unmounted or replaced while it was followed"
        )


async def watch_place(context: RunContext, on_changed: Callable[[], None]) -> None:
    """Wait until the place has changed, then call `on_changed`."""
    while await is_in_place(context):  # noqa: ASYNC110 - there is no event
        await asyncio.sleep(_PLACE_CHECK_INTERVAL)
    on_changed()


class _PathHashes:
    """A set of paths, stored as hashes to save memory.

    There are many arrays, because sorting creates a temporary list of each.
    """

    def __init__(self) -> None:
        self._arrays = [array("q") for _ in range(_HASH_ARRAYS)]

    def __len__(self) -> int:
        return sum(map(len, self._arrays))

    def add(self, path: str) -> None:
        key = hash(path)
        self._arrays[key % _HASH_ARRAYS].append(key)

    def sort(self) -> None:
        """Prepare for membership tests. Call this after adding all paths."""
        for index, each in enumerate(self._arrays):
            self._arrays[index] = array("q", sorted(each))

    def __contains__(self, path: str) -> bool:
        key = hash(path)
        keys = self._arrays[key % _HASH_ARRAYS]
        index = bisect_left(keys, key)
        return index < len(keys) and keys[index] == key


class FileScan:
    """One comparison of all files with the state, in batches. Not reusable.

    With `verify`, all files are read, not only those with a different modification time.
    """

    def __init__(self, handler: LocatedHandler, state: DestinationState, *, verify: bool) -> None:
        self._handler = handler
        self._state = state
        self.verify = verify
        self._place = handler.place
        self._after = ""
        self._known = _PathHashes()
        self._missing = 0
        self._begun_at = state.commits
        self._stopped = Event()
        #: Number of files compared so far.
        self.compared = 0

    def stop(self) -> None:
        """Make calls in other threads return early."""
        self._stopped.set()

    def compare_next(self) -> tuple[list[tuple[HeldFile, int]], list[HeldFile]] | None:
        """Compare the next files. Return those with a new time, and lost ones.

        None at the end, or if the scan was stopped or the folder was unmounted.
        """
        held = self._state.held_files(self._after, _BATCH_SIZE)
        if not held or self._stopped.is_set():
            return None
        self._after = held[-1].uri
        touched, lost = [], []
        files = self._handler.find_files([each.uri for each in held])
        for each, (path, found) in zip(held, files, strict=True):
            self._known.add(path)
            self._missing += found is None
            if each.hash is None:  # unknown after a crash, so it is refetched
                continue
            if found is None or found.st_size != (each.length or found.st_size):
                lost.append(each)
            elif self.verify or found.st_mtime_ns != each.mtime:
                if self._is_same(path, found.st_size, each):
                    touched.append((each, found.st_mtime_ns))
                else:
                    lost.append(each)
            if self._stopped.is_set():
                return None
        self.compared += len(held)
        if lost and self._handler.place != self._place:
            return None  # the folder was unmounted during the comparison
        return (
            [(each, mtime) for each, mtime in touched if mtime != each.mtime],
            [each for each in lost if each.mtime != LOST],
        )

    def _is_same(self, path: str, size: int, held: HeldFile) -> bool:
        pieces = takewhile(lambda _: not self._stopped.is_set(), pieces_of(path, size))
        try:
            return matches(held.hash, pieces)
        except OSError:
            return False  # unreadable, or just removed

    def unknown_paths(self) -> set[str]:
        """Return the paths of files that the state did not contain during the comparison."""
        is_same = self._state.commits == self._begun_at
        if is_same and sum(1 for _ in self._paths()) == len(self._known) - self._missing:
            return set()
        self._known.sort()
        return {path for path in self._paths() if path not in self._known}

    def without_known(self, paths: set[str], applying: Sequence[str]) -> list[str]:
        """Return those unknown paths that are not part of the copy now.

        Changes applied since the comparison have created files. They are committed in the state,
        or `applying` has the URIs of their resources.
        """
        uris, after = list(applying), ""
        while paths and not self._stopped.is_set():
            paths.difference_update(path for path, _ in self._handler.find_files(uris))
            uris = [each.uri for each in self._state.held_files(after, _BATCH_SIZE)]
            if not uris:
                break
            after = uris[-1]
        return sorted(filter(os.path.lexists, paths))

    def _paths(self) -> Iterator[str]:
        return takewhile(lambda _: not self._stopped.is_set(), self._handler.paths())


class CopyCheck:
    """Finds resources that the copy has lost, and refetches them through the follower.

    Args:
        perform: Performs the follower's actions.
        errors: The last errors of resources that could not be fetched, keyed by URI.
    """

    def __init__(
        self,
        context: RunContext,
        follower: Follower,
        perform: Callable[[Iterable[Action]], None],
        errors: Mapping[str, RsnotifyError],
    ) -> None:
        handler = context.handler
        self._handler = handler if isinstance(handler, LocatedHandler) else None
        self._store = handler if isinstance(handler, CheckedHandler) else None
        self._once, self._options = context.once, context.options
        self._state, self._worker = context.state, context.worker
        self._can_accept = not context.identity.prefer
        self._follower, self._perform, self._errors = follower, perform, errors
        self._failed = ""
        self._scan_requested = asyncio.Event()
        self._has_lost = asyncio.Event()
        self._checked_at = -_RECENT_CHECK_AGE
        self._scan: FileScan | None = None
        self.has_compared = self._handler is None and self._store is None
        self._has_tried_all = False
        self._scans = self._last_scan = 0
        #: Number of resources found changed or removed since the start.
        self.damaged = 0
        #: Number of files that are not part of the copy, and the first paths.
        self.foreign = 0
        self.foreign_files: tuple[str, ...] = ()

    @property
    def verified(self) -> int | None:
        """Number of files read so far by a scan that reads all files; otherwise None."""
        return self._scan.compared if self._scan is not None and self._scan.verify else None

    @property
    def doubt(self) -> str:
        """A sentence that says why the copy may be wrong, or an empty string."""
        if not self.has_compared and self._store is not None:
            return self._failed or "the store has not been compared with the state of the copy yet"
        if not self.has_compared:
            return "the files of the copy have not been compared with its state yet"
        if self._state.lost:
            lost = counted(self._state.lost, "resource was", "resources were")
            return f"{lost} changed or removed here, and not refetched yet"
        return ""

    @property
    def has_ended(self) -> bool:
        """Whether all files were compared, and every lost resource was restored or tried.

        If nothing of a first copy can be stored, there is nothing to compare.
        """
        is_level = self._follower.level
        if not self.has_compared:
            return self._follower.progress is None and not is_level
        return not self._state.lost or (self._has_tried_all and not is_level)

    def has_confirmed_foreign(self) -> bool:
        """Return whether a scan that began after the first call has confirmed the foreign files.

        The first call requests that scan, because a file that was foreign at the start may belong
        to a resource that was fetched since.
        """
        if self.foreign and not self._last_scan:
            self._last_scan = self._scans + 1
            self._scan_requested.set()
        return self._scans >= self._last_scan

    def request(self) -> None:
        """Request a comparison of the files, unless the last one is recent."""
        has_files = self._handler is not None or self._store is not None
        if has_files and monotonic() - self._checked_at > _RECENT_CHECK_AGE:
            self._scan_requested.set()

    def find_lost(self) -> None:
        """Schedule another fetch of all lost resources."""
        if self._state.lost:
            self._has_tried_all = False
            self._has_lost.set()

    async def run(self) -> None:
        """Compare the files now, at intervals, and on request."""
        self.find_lost()
        if self._store is not None or self._options.adopt:
            # With an empty state, everything in the store or folder would seem foreign.
            while self._follower.progress is None:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(_MIN_POLL_INTERVAL)
        verify = self._options.verify
        while True:
            self._scan_requested.clear()
            if self._store is not None:
                await self._compare_store(self._store)
            if self._handler is not None:
                await self._compare_files(self._handler, verify=verify)
            elif self._store is None:
                return
            verify = False
            await wait_for_event(self._scan_requested, self._options.check_files or None)

    async def _compare_store(self, store: CheckedHandler) -> None:
        """Compare the store with the state. Retry failures unless this run only catches up."""

        def find_lost() -> int:
            before = self._state.lost
            return self._state.lose(list(store.find_lost(self._state.held()))) - before

        failures = 0
        while True:
            self._checked_at = monotonic()
            try:
                lost = await call_in(self._worker, find_lost)
                break
            except Exception as error:  # the handler is user code
                reason = str(error) or type(error).__name__
                self._failed = f"the store cannot be compared with the state of the copy: {reason}"
                if self._once:
                    raise StorageError(self._failed) from error
                failures += 1
                self.has_compared = False
                logger.log(logging.INFO if failures > 1 else logging.WARNING, "%s", self._failed)
                self._perform(())
                at_least = getattr(error, "retry_after", None) or 0.0
                delay = self._options.pace.retry.delay(failures, Random(), at_least=at_least)
                await asyncio.sleep(delay)
        if lost:
            self.damaged += lost
            logger.warning(
                "%s changed or removed in the store; refetching",
                counted(lost, "resource was", "resources were"),
            )
        self.has_compared, self._failed = True, ""
        self.find_lost()
        self._perform(())

    async def _compare_files(self, handler: LocatedHandler, *, verify: bool) -> None:
        scan = self._scan = FileScan(handler, self._state, verify=verify)
        begun = reported = self._checked_at = monotonic()
        lost = 0
        try:
            while (part := await self._in_thread(scan, scan.compare_next)) is not None:
                touched, missing = part
                if touched or missing:
                    lost += await call_in(self._worker, self._state.record_files, touched, missing)
                if verify and monotonic() - reported > _PROGRESS_LOG_INTERVAL:
                    reported = monotonic()
                    logger.info("%d of %d files verified", scan.compared, self._state.resources)
            foreign: Sequence[str] = ()
            if unknown := await self._in_thread(scan, scan.unknown_paths):
                applying = await call_in(self._worker, self._state.applying)
                foreign = await self._in_thread(scan, lambda: scan.without_known(unknown, applying))
        finally:
            self._scan = None
            scan.stop()
        logger.debug("%d files compared in %.3f s", scan.compared, monotonic() - begun)
        self._report_files(lost, foreign)
        self._scans += 1
        self.has_compared = True
        self.find_lost()
        self._perform(())

    def _report_files(self, lost: int, foreign: Sequence[str]) -> None:
        if lost > 0:  # negative if more files were restored than lost
            self.damaged += lost
            logger.warning(
                "%s changed or removed here since they were written; refetching",
                counted(lost, "file was", "files were"),
            )
        before = self.foreign, self.foreign_files
        self.foreign, self.foreign_files = len(foreign), tuple(foreign[:_MAX_LISTED_FILES])
        if foreign and before != (self.foreign, self.foreign_files):
            # A run that only catches up reports them at its end.
            level = logging.INFO if self._once else logging.WARNING
            logger.log(level, "%s", foreign_files(self.foreign, self.foreign_files))

    async def fetch_lost(self) -> None:
        """Refetch lost resources whenever there are any."""
        while True:
            await self._has_lost.wait()
            self._has_lost.clear()
            refetch = _Refetch(self._follower, self._perform, self._errors, self._can_accept)
            wait = _MIN_POLL_INTERVAL
            while self._state.lost:
                is_left = await self._fetch_round(refetch)
                if is_left is self._has_tried_all:
                    self._has_tried_all = not is_left
                    self._perform(())
                wait = _MIN_POLL_INTERVAL if is_left else min(_MAX_POLL_INTERVAL, 2 * wait)
                await asyncio.sleep(wait)
            self._perform(())

    async def _fetch_round(self, refetch: _Refetch) -> bool:
        """Try all lost resources, a page at a time. Return whether anything is left to try."""
        after, is_left = "", False
        # Otherwise, resources with changes in the backlog would be fetched twice.
        while self._follower.state.pending.backlog:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(_MIN_POLL_INTERVAL)
        while changes := await call_in(
            self._worker, self._state.lost_changes, after, _LOST_PAGE_SIZE
        ):
            after = next(reversed(changes))
            is_left = refetch.proceed(changes.values()) or is_left
            most = 2 * self._options.pace.in_flight
            while self._follower.state.untried >= most:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(_MIN_POLL_INTERVAL)
        return is_left

    async def _in_thread(self, scan: FileScan, work: Callable[[], T]) -> T:
        """Run a call outside the worker. Wait even if cancelled, as the call uses the state."""

        def call() -> T:
            with self._state.transactions.storage_errors():
                return work()

        loop = asyncio.get_running_loop()
        called = loop.run_in_executor(_check_executor(os.getpid()), call)
        try:
            return await asyncio.shield(called)
        except asyncio.CancelledError:
            scan.stop()
            await asyncio.wait([called])
            raise


@dataclass
class _Refetch:
    """Refetches lost resources in up to three steps.

    1. Only the lost content is accepted.
    2. The lists are read, which may announce other content.
    3. If they do not, any content is accepted, unless `can_accept` is False.
    """

    follower: Follower
    perform: Callable[[Iterable[Action]], None]
    errors: Mapping[str, RsnotifyError]
    can_accept: bool
    _sent: dict[str, Change] = field(default_factory=dict, init=False)
    _accepted: set[str] = field(default_factory=set, init=False)
    _has_compared: bool = field(default=False, init=False)

    def proceed(self, changes: Iterable[Change]) -> bool:
        """Try the next step for each lost resource. Return whether any step is left."""
        follower, now = self.follower, asyncio.get_running_loop().time()
        pending = follower.state.pending
        self._sent = {uri: one for uri, one in self._sent.items() if pending.holds(one)}
        new, is_left = [], False
        for change in changes:
            if change.uri not in pending:
                new.append(change)
            elif (error := self.errors.get(change.uri)) is None:
                is_left = True
            elif (
                change.uri in self._sent
                and change.uri not in self._accepted
                and isinstance(error, ContentMismatch | NotFound)
            ):
                if not self._has_compared:
                    self._has_compared = is_left = True
                    self.perform(follower.compare_lost(now))
                    continue
                if follower.catch_up.lacks_comparison:
                    continue  # no list can show whether the content is right
                if not follower.state.settled or follower.catch_up.is_comparing:
                    is_left = is_left or not follower.is_stuck(now)
                    continue
                is_left = True
                self._accepted.add(change.uri)
                if isinstance(error, ContentMismatch) and self.can_accept:
                    any_content = replace(change.resource, hash=None, length=None)
                    new.append(replace(change, resource=any_content))
        if new:
            self._sent |= {change.uri: change for change in new}
            self.perform(follower.verify(new, now))
        return is_left or bool(new)


@cache
def _check_executor(process: int) -> ThreadPoolExecutor:
    """Return the executor that compares files for all copies, one for each (forked) process."""
    return ThreadPoolExecutor(_MAX_CONCURRENT_CHECKS, "rsnotify-check")


def apply_unfinished(handler: object, state: DestinationState, folder: Path) -> None:
    """Durably reapply the changes that an earlier run has committed but not flushed.

    Their resources are refetched instead if the handler flushes each change, or if its place has
    changed: an empty folder may be the mount point of the right one. The handler must be prepared
    for the state's set of resources. Temporary content is written to `folder`.
    """
    unfinished = state.contents.unfinished
    if not unfinished:
        return
    identity = state.identity()
    is_elsewhere = (
        isinstance(handler, LocatedHandler)
        and identity is not None
        and handler.place != identity.place
    )
    deferred = deferred_handler(handler)
    if deferred is not None and not is_elsewhere:
        with state.transactions.storage_errors():
            changes = [
                _as_received(uri, data, folder / f"again-{number}")
                for number, (uri, data) in enumerate(unfinished.items())
            ]
            deferred.apply_again(changes)
        logger.info("%d changes were reapplied after a crash", len(changes))
    else:
        state.forget(list(unfinished))
    state.contents.set_flushed(state.contents.last)
    state.delete_flushed()


def _as_received(uri: str, data: bytes | None, path: Path) -> Received:
    resource = Resource(uri)
    if data is None:
        return Received(ChangeType.DELETED, uri, EARLIEST, resource, None)
    path.write_bytes(data)
    return Received(ChangeType.UPDATED, uri, EARLIEST, resource, path)
