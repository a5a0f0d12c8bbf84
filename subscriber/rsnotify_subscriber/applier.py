"""Applying changes: content is brought, the handler called, state and progress committed.

Any number of changes are brought at once; what is ready while a commit runs makes up the next
one. So a single change waits for nothing but its own flushes, and many share them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Protocol

from msgspec import Struct

from rsnotify.actions import Progress
from rsnotify.coverage import Change
from rsnotify.datetimes import to_microseconds
from rsnotify.errors import FetchError, RsnotifyError, StorageError
from rsnotify.vocabulary import ChangeType
from rsnotify_subscriber.fetching import Content, Fetcher
from rsnotify_subscriber.inline import inline_content
from rsnotify_subscriber.received import Handler, Received
from rsnotify_subscriber.state import Held, State
from rsnotify_subscriber.tasks import Tasks

logger = logging.getLogger("rsnotify.subscriber")


class Outcome(Protocol):
    """Who is told how it went."""

    def applied(self, changes: Sequence[Change]) -> Progress | None:
        """Hear what is about to be committed; return the progress that then holds."""

    def committed(self, changes: Sequence[Change]) -> None:
        """Hear what is durable."""

    def failed(self, change: Change, error: RsnotifyError) -> None:
        """Hear what could not be applied."""


class _Ready(Struct, frozen=True):
    """A change whose content is at hand, or that the state covers already."""

    change: Change
    content: Content | None = None
    covered: bool = False

    def received(self) -> Received:
        change = self.change
        path = self.content.path if self.content else None
        return Received(change.change, change.uri, change.at, change.resource, path)

    def held(self) -> Held:
        change, content = self.change, self.content
        at = to_microseconds(change.at)
        if content is None:
            return Held(change.uri, at, change.change.value)
        lastmod = change.resource.lastmod
        return Held(
            change.uri,
            at,
            change.change.value,
            content.hashes,
            content.length,
            to_microseconds(lastmod) if lastmod else None,
        )

    def discard(self) -> None:
        if self.content is not None:
            self.content.path.unlink(missing_ok=True)


class Applier:
    """Applies what a follower hands out.

    Args:
        fetcher: Brings content.
        state: Knows what is held.
        handler: Applies.
        outcome: Is told how it went.
        worker: Runs what blocks on the disk; one thread, so that commits keep their order.
        tasks: Runs what is being brought.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        state: State,
        handler: Handler,
        outcome: Outcome,
        worker: Executor,
        tasks: Tasks,
    ) -> None:
        self._fetcher = fetcher
        self._state = state
        self._handler = handler
        self._outcome = outcome
        self._worker = worker
        self._tasks = tasks
        self._ready: list[_Ready] = []
        self._wake = asyncio.Event()
        self._stopping = False
        self.idle = True

    def submit(self, changes: Sequence[Change]) -> None:
        """Begin to apply changes, each on its own."""
        for change in changes:
            held = self._state.find(change.uri)
            if held is not None and held.covers(change):
                self._put(_Ready(change, covered=True))
            elif change.change is ChangeType.DELETED:
                self._put(_Ready(change))
            else:
                self._bring(change)

    def _bring(self, change: Change) -> None:
        data = inline_content(change.resource)
        if data is None:
            self._tasks.spawn(self._download(change))
            return
        try:
            self._put(_Ready(change, self._fetcher.store(data, change.resource.hash)))
        except OSError as error:
            # Heard later, as every outcome is: the follower is not told from within a call to it.
            self._tasks.spawn(self._fail(change, StorageError(f"{change.uri}: {error}")))

    async def _download(self, change: Change) -> None:
        try:
            content = await self._fetcher.content(change.resource)
        except FetchError as error:
            self._outcome.failed(change, error)
        except OSError as error:
            self._outcome.failed(change, StorageError(f"{change.uri}: {error}"))
        else:
            self._put(_Ready(change, content))

    async def _fail(self, change: Change, error: RsnotifyError) -> None:
        self._outcome.failed(change, error)

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
                await self._apply(batch)

    async def _apply(self, batch: list[_Ready]) -> None:
        failed = await self._hand_over([ready for ready in batch if not ready.covered])
        done = [ready for ready in batch if ready.change.uri not in failed]
        changes = [ready.change for ready in done]
        held = [ready.held() for ready in done if not ready.covered]
        progress = self._outcome.applied(changes)
        if held or progress is not None:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._worker, self._state.commit, held, progress)
        self.idle = not self._ready
        self._outcome.committed([ready.change for ready in done if not ready.covered])
        for ready in batch:
            if ready.change.uri in failed:
                self._outcome.failed(ready.change, failed[ready.change.uri])

    async def _hand_over(self, batch: list[_Ready]) -> dict[str, RsnotifyError]:
        """Call the handler, with each change alone if it cannot take them together.

        Returns:
            By URI, why a change could not be applied.
        """
        failed: dict[str, RsnotifyError] = {}
        if batch and not await self._call([ready.received() for ready in batch], {}):
            for ready in batch:
                await self._call([ready.received()], failed)
        for ready in batch:
            ready.discard()
        return failed

    async def _call(self, received: list[Received], failed: dict[str, RsnotifyError]) -> bool:
        try:
            await self._handler.apply(received)
        except Exception as error:
            # The handler is not ours: whatever it raises, the rest must go on.
            logger.debug("the handler failed", exc_info=True)
            for one in received:
                failed[one.uri] = StorageError(f"{one.uri} could not be applied: {error}")
            return False
        return True
