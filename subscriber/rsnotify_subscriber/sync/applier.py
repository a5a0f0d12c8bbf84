"""Applying changes: content is brought, the handler called, state and progress committed.

Any number of changes are brought at once; what is ready while a commit runs makes up the next
one. So a single change waits for nothing but its own flushes, and many share them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from rsnotify.errors import RsnotifyError, StorageError
from rsnotify.format.coverage import Change
from rsnotify.selection.selection import Selection
from rsnotify.sync.actions import Progress
from rsnotify_subscriber.content.resolver import ContentResolver
from rsnotify_subscriber.handlers import BlockingHandler, Handler, Received, TransactionalHandler
from rsnotify_subscriber.storage.resource_state import ResourceState
from rsnotify_subscriber.storage.state import DestinationState
from rsnotify_subscriber.sync.preparation import Preparation
from rsnotify_subscriber.sync.prepared_change import PreparedChange, write
from rsnotify_subscriber.tasks import Tasks

T = TypeVar("T")
_Apply = Callable[[Sequence[Received]], None]

logger = logging.getLogger("rsnotify.subscriber")


class ApplyOutcome(Protocol):
    """Who is told how it went."""

    def progress_after(self, changes: Sequence[Change]) -> Progress | None:
        """Return the progress that holds once changes are committed; it is committed with them."""

    def applied(self, changes: Sequence[Change]) -> None:
        """Hear which changes are durable, be it that nothing had to be done about them."""

    def committed(self, changes: Sequence[Change]) -> None:
        """Hear what was done of them."""

    def failed(self, change: Change, error: RsnotifyError) -> None:
        """Hear what could not be applied."""


class Applier:
    """Applies what a follower hands out.

    Args:
        bringer: Brings content.
        state: Knows what is held.
        handler: Applies.
        outcome: Is told how it went.
        worker: Runs what blocks on the disk; one thread, so that commits keep their order.
        tasks: Runs what is being brought.
        selection: What is to be applied; of the rest, only what is held goes.
    """

    def __init__(
        self,
        bringer: ContentResolver,
        state: DestinationState,
        handler: Handler | TransactionalHandler,
        outcome: ApplyOutcome,
        worker: Executor,
        tasks: Tasks,
        selection: Selection,
    ) -> None:
        self._state = state
        self._preparation = Preparation(bringer, state, tasks, selection, self._put, outcome.failed)
        self._handler = handler if isinstance(handler, Handler) else None
        self._within = handler if isinstance(handler, TransactionalHandler) else None
        blocking = handler.apply_blocking if isinstance(handler, BlockingHandler) else None
        self._blocking: _Apply | None = self._apply_within if self._within else blocking
        self._outcome = outcome
        self._worker = worker
        self._ready: list[PreparedChange] = []
        #: What the handler could not take. It may have had a part of its effect.
        self._refused: set[str] = set()
        self._wake = asyncio.Event()
        self._stopping = False
        self.idle = True
        #: Whether changes are being applied, to be committed with the progress after them.
        self.is_applying = False
        #: Whether the handler has been called and has not returned.
        self.is_in_handler = False

    def submit(self, changes: Sequence[Change]) -> None:
        """Begin to apply changes, each on its own."""
        self._preparation.submit(changes)

    def _put(self, ready: PreparedChange) -> None:
        self._ready.append(ready)
        self.idle = False
        self._wake.set()

    def stop(self) -> None:
        """Let `run` return once it has committed what it is at."""
        self._stopping = True
        self._wake.set()

    async def run(self) -> None:
        """Commit what is ready, again and again.

        Raises:
            StorageError: A commit failed. Nothing can be committed after that.
        """
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
            await self._in_worker(self._announce, new)
            await self._in_worker(self._commit, done, *self._to_keep(done))
        self._tell(batch, failed)

    def _tell(self, batch: list[PreparedChange], failed: Mapping[str, RsnotifyError]) -> None:
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
            self._preparation.done(ready.change)

    async def _apply_together(self, batch: list[PreparedChange], new: list[PreparedChange]) -> bool:
        """Apply what is new of a batch, and commit it all; False if the handler could not."""
        if self._blocking is not None:
            kept = self._to_keep(batch)
            return await self._in_worker(self._call_and_commit, self._blocking, new, batch, *kept)
        if new:
            await self._in_worker(self._announce, new)
            if await self._call(new) is not None:
                return False
        await self._in_worker(self._commit, batch, *self._to_keep(batch))
        return True

    async def _apply_alone(self, new: list[PreparedChange]) -> dict[str, RsnotifyError]:
        """Call the handler with each change alone, as it could not take them together.

        Returns:
            By URI, why a change could not be applied.
        """
        failed: dict[str, RsnotifyError] = {}
        for ready in new:
            if (reason := await self._call([ready])) is not None:
                uri = ready.change.uri
                failed[uri] = StorageError(f"{uri} could not be applied: {reason}")
        return failed

    async def _call(self, batch: list[PreparedChange]) -> str | None:
        """Call the handler; return why it failed, if it did."""
        if self._blocking is not None:
            return await self._in_worker(self._call_blocking, self._blocking, batch)
        assert self._handler is not None
        try:
            await self._in_worker(write, batch)
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
        self._state.apply_within(lambda connection: within.apply_within(connection, received))

    def _to_keep(
        self, done: Sequence[PreparedChange]
    ) -> tuple[list[ResourceState], Progress | None]:
        """Return how resources are held from now on, and the progress that then holds."""
        held = [one for one in map(PreparedChange.held, done) if one is not None]
        return held, self._outcome.progress_after([ready.change for ready in done])

    # In the worker

    def _announce(self, new: Sequence[PreparedChange]) -> None:
        """Keep what is about to be applied, in case that nobody lives to commit it."""
        if self._within is None:
            uris = [ready.decided.uri for ready in new if ready.decided is not None]
            self._state.intend(uris, self._refused)

    def _call_and_commit(
        self,
        apply: _Apply,
        new: Sequence[PreparedChange],
        batch: Sequence[PreparedChange],
        held: Sequence[ResourceState],
        progress: Progress | None,
    ) -> bool:
        """Do both without going back to the event loop, which takes part of a millisecond."""
        if new:
            self._announce(new)
            if self._call_blocking(apply, new) is not None:
                return False
        self._commit(batch, held, progress)
        return True

    def _call_blocking(self, apply: _Apply, batch: Sequence[PreparedChange]) -> str | None:
        """Call a handler that blocks; return why it failed, if it did."""
        try:
            write(batch)
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
        held: Sequence[ResourceState],
        progress: Progress | None,
    ) -> None:
        if held or progress is not None or self._within is not None:
            doubts = {ready.held_uri: ready.doubt for ready in batch if ready.doubt}
            self._state.commit(held, progress, doubts)
        for ready in batch:
            if ready.content is not None:
                ready.content.discard()

    async def _in_worker(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, work, *arguments)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _reason(error: BaseException) -> str:
    # The handler is not ours: whatever it raises, the rest must go on.
    logger.debug("the handler failed", exc_info=error)
    return str(error) or type(error).__name__
