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

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.actions import Progress
from rsnotify.coverage import Change
from rsnotify.datetimes import to_microseconds
from rsnotify.errors import FetchError, RsnotifyError, StorageError
from rsnotify.selection import Selection
from rsnotify.vocabulary import ChangeType
from rsnotify.ways import Wanted
from rsnotify_subscriber.bringing.bringer import Bringer
from rsnotify_subscriber.fetching.contents import Content
from rsnotify_subscriber.held import Held
from rsnotify_subscriber.received import Blocking, Handler, Received, Within
from rsnotify_subscriber.state import State
from rsnotify_subscriber.tasks import Tasks

T = TypeVar("T")
_Apply = Callable[[Sequence[Received]], None]

logger = logging.getLogger("rsnotify.subscriber")


class Outcome(Protocol):
    """Who is told how it went."""

    def progress_after(self, changes: Sequence[Change]) -> Progress | None:
        """Return the progress that holds once changes are committed; it is committed with them."""

    def applied(self, changes: Sequence[Change]) -> None:
        """Hear which changes are durable, be it that nothing had to be done about them."""

    def committed(self, changes: Sequence[Change]) -> None:
        """Hear what was done of them."""

    def failed(self, change: Change, error: RsnotifyError) -> None:
        """Hear what could not be applied."""


class _Ready(Struct, frozen=True):
    """A change whose content is at hand, or about which nothing has to be done.

    Args:
        change: The change as it was handed out.
        decided: What is done about it; None if the state covers it, or it is not selected.
        wanted: What it takes to do it.
        content: The content, if it takes one.
        unchanged: How the resource is held, if its content turned out to be still the same.
    """

    change: Change
    decided: Change | None
    wanted: Wanted
    content: Content | None = None
    unchanged: Held | None = None

    def received(self) -> Received:
        change, content = self.decided, self.content
        assert change is not None
        return Received(
            change.change,
            change.uri,
            change.at,
            change.resource,
            content.path if content else None,
            self.wanted.alternate if content else None,
            content.hashes if content else None,
            content.length if content else None,
        )

    def held(self) -> Held | None:
        """Return how the resource is held from now on, if that is new."""
        change, content = self.decided, self.content
        at = to_microseconds(self.change.at)
        entry = self.wanted.entry
        lastmod = to_microseconds(entry.lastmod) if entry.lastmod else None
        if self.unchanged is not None:
            kind = self.change.change.value
            return replace(self.unchanged, changed_at=at, change=kind, lastmod=lastmod)
        if change is None:
            return None
        kind = change.change.value
        if content is None:
            return Held(change.uri, at, kind)
        hashes, length = content.hashes, content.length
        return Held(change.uri, at, kind, hashes, length, lastmod, content.validator)


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
        bringer: Bringer,
        state: State,
        handler: Handler | Within,
        outcome: Outcome,
        worker: Executor,
        tasks: Tasks,
        selection: Selection,
    ) -> None:
        self._bringer = bringer
        self._state = state
        self._handler = handler if isinstance(handler, Handler) else None
        self._within = handler if isinstance(handler, Within) else None
        blocking = handler.apply_blocking if isinstance(handler, Blocking) else None
        self._blocking: _Apply | None = self._apply_within if self._within else blocking
        self._outcome = outcome
        self._worker = worker
        self._tasks = tasks
        self._selection = selection
        self._ready: list[_Ready] = []
        self._wake = asyncio.Event()
        self._stopping = False
        self.idle = True
        #: Whether changes are being applied, to be committed with the progress after them.
        self.is_applying = False
        #: Whether the handler has been called and has not returned.
        self.is_in_handler = False

    def submit(self, changes: Sequence[Change]) -> None:
        """Begin to apply changes, each on its own."""
        if not self._state.is_local:
            self._tasks.spawn(self._submit_unknown(changes))
            return
        for change in changes:
            self._submit_known(change, self._state.find(change.uri))

    async def _submit_unknown(self, changes: Sequence[Change]) -> None:
        """Look up how resources are held where that takes a while, then begin."""
        found = await asyncio.to_thread(self._state.find_all, [change.uri for change in changes])
        for change in changes:
            self._submit_known(change, found.get(change.uri))

    def _submit_known(self, change: Change, held: Held | None) -> None:
        wanted = self._bringer.wanted(change)
        decided = self._decide(change, wanted, held)
        if decided is None or decided.change is ChangeType.DELETED:
            self._put(_Ready(change, decided, wanted))
        else:
            self._bring(_Ready(change, decided, wanted), held)

    def _decide(self, change: Change, wanted: Wanted, held: Held | None) -> Change | None:
        """Return what has to be done about a change, if something has."""
        decided = self._selection.decide(change, held=held is not None and held.is_there)
        if decided is None or held is None:
            return decided
        return None if held.covers(replace(decided, resource=wanted.entry)) else decided

    def _bring(self, ready: _Ready, held: Held | None) -> None:
        content = self._bringer.at_hand(ready.wanted)
        if content is None:
            self._tasks.spawn(self._fetch(ready, held))
        else:
            self._put(replace(ready, content=content))

    async def _fetch(self, ready: _Ready, held: Held | None) -> None:
        change = ready.change
        try:
            content = await self._bringer.bring(ready.wanted, held)
        except FetchError as error:
            self._outcome.failed(change, error)
        except OSError as error:
            self._outcome.failed(change, StorageError(f"{change.uri}: {error}"))
        else:
            if content is None:
                ready = replace(ready, decided=None, unchanged=held)
            self._put(replace(ready, content=content))

    def _put(self, ready: _Ready) -> None:
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

    async def _apply(self, batch: list[_Ready]) -> None:
        new = [ready for ready in batch if ready.decided is not None]
        failed: dict[str, RsnotifyError] = {}
        if not await self._apply_together(batch, new):
            failed = await self._apply_alone(new)
            done = [ready for ready in batch if ready.change.uri not in failed]
            await self._in_worker(self._commit, done, *self._to_keep(done))
        self._tell(batch, failed)

    def _tell(self, batch: list[_Ready], failed: Mapping[str, RsnotifyError]) -> None:
        done = [ready for ready in batch if ready.change.uri not in failed]
        self.is_applying = False
        self._outcome.applied([ready.change for ready in done])
        self.idle = not self._ready
        self._outcome.committed([ready.decided for ready in done if ready.decided is not None])
        for ready in batch:
            if ready.change.uri in failed:
                self._outcome.failed(ready.change, failed[ready.change.uri])

    async def _apply_together(self, batch: list[_Ready], new: list[_Ready]) -> bool:
        """Apply what is new of a batch, and commit it all; False if the handler could not."""
        if self._blocking is not None:
            kept = self._to_keep(batch)
            return await self._in_worker(self._call_and_commit, self._blocking, new, batch, *kept)
        if new and await self._call(new) is not None:
            return False
        await self._in_worker(self._commit, batch, *self._to_keep(batch))
        return True

    async def _apply_alone(self, new: list[_Ready]) -> dict[str, RsnotifyError]:
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

    async def _call(self, batch: list[_Ready]) -> str | None:
        """Call the handler; return why it failed, if it did."""
        if self._blocking is not None:
            return await self._in_worker(self._call_blocking, self._blocking, batch)
        assert self._handler is not None
        try:
            await self._in_worker(_write, batch)
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

    def _to_keep(self, done: Sequence[_Ready]) -> tuple[list[Held], Progress | None]:
        """Return how resources are held from now on, and the progress that then holds."""
        held = [one for one in map(_Ready.held, done) if one is not None]
        return held, self._outcome.progress_after([ready.change for ready in done])

    # In the worker

    def _call_and_commit(
        self,
        apply: _Apply,
        new: Sequence[_Ready],
        batch: Sequence[_Ready],
        held: Sequence[Held],
        progress: Progress | None,
    ) -> bool:
        """Do both without going back to the event loop, which takes part of a millisecond."""
        if new and self._call_blocking(apply, new) is not None:
            return False
        self._commit(batch, held, progress)
        return True

    def _call_blocking(self, apply: _Apply, batch: Sequence[_Ready]) -> str | None:
        """Call a handler that blocks; return why it failed, if it did."""
        try:
            _write(batch)
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
        self, batch: Sequence[_Ready], held: Sequence[Held], progress: Progress | None
    ) -> None:
        if held or progress is not None or self._within is not None:
            self._state.commit(held, progress)
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


def _write(batch: Sequence[_Ready]) -> None:
    for ready in batch:
        if ready.content is not None:
            ready.content.write()
