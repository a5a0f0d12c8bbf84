"""Applying changes: content is fetched, the handler called, state and progress committed.

Any number of changes are prepared at once; those that are ready while a commit runs make up the
next batch. So a single change waits for nothing but its own flushes, and many share them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from rsnotify.errors import RsnotifyError, StorageError
from rsnotify.format.coverage import Change
from rsnotify.selection.selection import Selection
from rsnotify.sync.actions import Progress
from rsnotify_subscriber.content.resolver import ContentResolver
from rsnotify_subscriber.handlers import (
    Handler,
    LocatedHandler,
    Received,
    TransactionalHandler,
    blocking_handler,
    deferred_handler,
)
from rsnotify_subscriber.storage.content_log import UnflushedContent
from rsnotify_subscriber.storage.destination_state import DestinationState
from rsnotify_subscriber.storage.resource_state import ResourceState
from rsnotify_subscriber.sync.preparation import Preparation
from rsnotify_subscriber.sync.prepared_change import (
    PreparedChange,
    modification_times,
    unflushed_contents,
    write,
)
from rsnotify_subscriber.tasks import Tasks

T = TypeVar("T")
_Apply = Callable[[Sequence[Received]], None]

logger = logging.getLogger("rsnotify.subscriber")


class ApplyOutcome(Protocol):
    """Receives the results of an `Applier`."""

    def progress_after(self, changes: Sequence[Change]) -> Progress | None:
        """Return the progress that holds once changes are committed; it is committed with them."""

    def applied(self, changes: Sequence[Change]) -> None:
        """Receive the changes that are durable, also those that needed no effect."""

    def committed(self, changes: Sequence[Change]) -> None:
        """Receive the changes that had an effect."""

    def failed(self, change: Change, error: RsnotifyError) -> None:
        """Receive a change that could not be applied."""


class Applier:
    """Applies the changes of a follower.

    Args:
        outcome: Receives the results.
        worker: Runs calls that block on the disk; one thread, so that commits keep their order.
        selection: The resources to be followed; others are removed from the copy.
    """

    def __init__(
        self,
        content: ContentResolver,
        state: DestinationState,
        handler: Handler | TransactionalHandler,
        outcome: ApplyOutcome,
        worker: Executor,
        tasks: Tasks,
        selection: Selection,
    ) -> None:
        self._state = state
        self._preparation = Preparation(content, state, tasks, selection, self._put, outcome.failed)
        self._handler = handler if isinstance(handler, Handler) else None
        self._within = handler if isinstance(handler, TransactionalHandler) else None
        blocking = blocking_handler(handler)
        self._blocking: _Apply | None = blocking.apply_blocking if blocking is not None else None
        if self._within is not None:
            self._blocking = self._apply_within
        #: For content that the state keeps until it is flushed.
        self._unflushed: _Apply | None = None
        if (deferred := deferred_handler(handler)) is not None and state.database.is_local:
            self._unflushed = deferred.apply_unflushed
        #: By URI, the modification times of the files that were written for the next commit.
        self._mtimes: dict[str, int] = {}
        self._has_files = isinstance(handler, LocatedHandler)
        self._outcome = outcome
        self._worker = worker
        self._ready: list[PreparedChange] = []
        #: Resources of changes that the handler failed to apply, and may have applied in part.
        self._refused: set[str] = set()
        self._wake = asyncio.Event()
        self._stopping = False
        self.idle = True
        #: Whether changes are being applied, to be committed with the progress after them.
        self.is_applying = False
        #: Whether the handler has been called and has not returned.
        self.is_in_handler = False

    def submit(self, changes: Sequence[Change]) -> None:
        self._preparation.submit(changes)

    def _put(self, ready: PreparedChange) -> None:
        self._ready.append(ready)
        self.idle = False
        self._wake.set()

    def stop(self) -> None:
        """Make `run` return once it has committed the current batch."""
        self._stopping = True
        self._wake.set()

    async def run(self) -> None:
        """Commit the changes that are ready, batch by batch, until a commit fails."""
        while not self._stopping:
            await self._wake.wait()
            self._wake.clear()
            batch, self._ready = self._ready, []
            if batch:
                self.is_applying = True
                await self._apply(batch)

    async def _apply(self, batch: list[PreparedChange]) -> None:
        new = [ready for ready in batch if ready.decided is not None]
        failed: dict[str, RsnotifyError] = {}
        if not await self._apply_together(batch, new):
            failed = await self._apply_alone(new)
            done = [ready for ready in batch if ready.change.uri not in failed]
            self._refused.update(failed)
            await self._in_worker(self._store_intent, new)
            # A change that was applied alone was flushed with all before it.
            unflushed = None if len(failed) < len(new) else ()
            await self._in_worker(self._commit, done, *self._to_store(done), unflushed)
        self._report(batch, failed)

    def _report(self, batch: list[PreparedChange], failed: Mapping[str, RsnotifyError]) -> None:
        done = [ready for ready in batch if ready.change.uri not in failed]
        self.is_applying = False
        self._outcome.applied([ready.change for ready in done])
        if self._refused:
            self._refused.difference_update(ready.change.uri for ready in done)
        self.idle = not self._ready
        self._outcome.committed([ready.decided for ready in done if ready.decided is not None])
        for ready in batch:
            if ready.change.uri in failed:
                self._outcome.failed(ready.change, failed[ready.change.uri])

    async def _apply_together(self, batch: list[PreparedChange], new: list[PreparedChange]) -> bool:
        """Apply the new changes of a batch, and commit it all; False if the handler failed."""
        if self._blocking is not None:
            stored = self._to_store(batch)
            return await self._in_worker(self._call_and_commit, self._blocking, new, batch, *stored)
        if new:
            await self._in_worker(self._store_intent, new)
            if await self._call(new) is not None:
                return False
        await self._in_worker(self._commit, batch, *self._to_store(batch))
        return True

    async def _apply_alone(self, new: list[PreparedChange]) -> dict[str, RsnotifyError]:
        """Call the handler with each change alone; return, by URI, why any could not be applied."""
        failed: dict[str, RsnotifyError] = {}
        for ready in new:
            if (reason := await self._call([ready])) is not None:
                uri = ready.change.uri
                failed[uri] = StorageError(
                    f"{ready.change.resource.uri} could not be applied: {reason}"
                )
        return failed

    async def _call(self, batch: list[PreparedChange]) -> str | None:
        """Return why the handler failed, if it did."""
        if self._blocking is not None:
            return await self._in_worker(self._call_blocking, self._blocking, batch)
        assert self._handler is not None
        try:
            await self._in_worker(self._write, batch)
            with self._handling():
                await self._handler.apply([ready.received() for ready in batch])
        except (Exception, asyncio.CancelledError) as error:
            if _is_cancelled():
                raise
            return _reason(error)
        return None

    def _apply_within(self, received: Sequence[Received]) -> None:
        within = self._within
        assert within is not None
        self._state.transactions.apply_within(
            lambda connection: within.apply_within(connection, received)
        )

    def _to_store(
        self, done: Sequence[PreparedChange]
    ) -> tuple[list[ResourceState], Progress | None]:
        states = [state for state in map(PreparedChange.new_state, done) if state is not None]
        return states, self._outcome.progress_after([ready.change for ready in done])

    # In the worker

    def _store_intent(self, new: Sequence[PreparedChange]) -> None:
        """Store which changes are about to be applied, in case of a crash before the commit."""
        if self._within is None:
            uris = [ready.decided.uri for ready in new if ready.decided is not None]
            self._state.store_intent(uris, self._refused)

    def _call_and_commit(
        self,
        apply: _Apply,
        new: Sequence[PreparedChange],
        batch: Sequence[PreparedChange],
        states: Sequence[ResourceState],
        progress: Progress | None,
    ) -> bool:
        """Do both without returning to the event loop, which would take part of a millisecond."""
        unflushed: Sequence[UnflushedContent] | None = ()
        if new:
            unflushed = unflushed_contents(new) if self._unflushed is not None else None
            if self._unflushed is not None and unflushed is not None:
                apply = self._unflushed
            self._store_intent(new)
            if self._call_blocking(apply, new) is not None:
                return False
        self._commit(batch, states, progress, unflushed)
        return True

    def _write(self, batch: Sequence[PreparedChange]) -> None:
        write(batch)
        if self._has_files:
            self._mtimes |= modification_times(batch)

    def _call_blocking(self, apply: _Apply, batch: Sequence[PreparedChange]) -> str | None:
        try:
            self._write(batch)
            with self._handling():
                apply([ready.received() for ready in batch])
        except (Exception, asyncio.CancelledError) as error:
            return _reason(error)
        return None

    @contextmanager
    def _handling(self) -> Iterator[None]:
        self.is_in_handler = True
        try:
            yield
        finally:
            self.is_in_handler = False

    def _commit(
        self,
        batch: Sequence[PreparedChange],
        states: Sequence[ResourceState],
        progress: Progress | None,
        unflushed: Sequence[UnflushedContent] | None = None,
    ) -> None:
        if mtimes := self._mtimes:
            self._mtimes = {}
            states = [replace(one, mtime=mtimes.get(one.uri, one.mtime)) for one in states]
        if states or progress is not None or self._within is not None:
            doubts = {ready.stored_uri: ready.doubt for ready in batch if ready.doubt}
            dated = {one.stored_uri: one.wanted.entry.length for one in batch if one.is_dated_only}
            self._state.commit(states, progress, doubts, unflushed, dated)
        for ready in batch:
            if ready.content is not None:
                ready.content.discard()

    async def _in_worker(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, work, *arguments)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _reason(error: BaseException) -> str:
    # The handler is not ours: whatever it raises, following must continue.
    logger.debug("the handler failed", exc_info=error)
    return str(error) or type(error).__name__
