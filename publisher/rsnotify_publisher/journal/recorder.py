"""Records changes by group commit: changes that arrive at the same time share one flush.

One connection of the process writes, in one thread at a time. A thread that records while no other
is committing commits itself, on behalf of all waiting callers. Changes that arrive during a commit
wait for it to finish and form the next group, which a thread of the executor commits. The executor
also commits for callers that cannot: an event loop must not wait for the disk, and a
KeyboardInterrupt may occur at any instruction of the main thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from rsnotify.errors import StorageError
from rsnotify.runtime.tasks import settle
from rsnotify_publisher.counters import SourceCounters
from rsnotify_publisher.journal.journal import (
    DEFAULT_CACHE_SIZE,
    Journal,
    JournalState,
    RecordedChanges,
)

T = TypeVar("T")

logger = logging.getLogger("rsnotify.publisher")
#: Maximum number of operations in a transaction, so that the first does not wait long for the last.
_MAX_GROUP_SIZE = 5_000
#: Maximum number of calls to `apply_changes` for a digest, which take about 0.1 s.
_MAX_APPLY_CALLS = 10


class _Executor(Protocol):
    def submit(self, function: Callable[[], object], /) -> object: ...


class _Entry(NamedTuple, Generic[T]):
    operation: Callable[[Journal], T]
    future: Future[T] | asyncio.Future[T]

    def settle(self, outcome: T | BaseException) -> None:
        if isinstance(self.future, asyncio.Future):
            with suppress(RuntimeError):  # its loop has been closed, so nothing is waiting
                self.future.get_loop().call_soon_threadsafe(settle, self.future, outcome)
        # If this returns True, the future can no longer be cancelled.
        elif self.future.set_running_or_notify_cancel():
            if isinstance(outcome, BaseException):
                self.future.set_exception(outcome)
            else:
                self.future.set_result(outcome)


@dataclass(eq=False)
class Recorder:
    """Commits the changes that the threads of one process record.

    `on_recorded` is called with the changes of a transaction when they are durable, in the order of
    the transactions and in the thread that committed. It must not block. `executor` commits for
    callers that cannot. `cache_size` is in MiB.
    """

    open_journal: Callable[[], Journal]
    on_recorded: Callable[[Sequence[RecordedChanges]], None]
    executor: _Executor
    cache_size: float = DEFAULT_CACHE_SIZE
    counters: SourceCounters = field(default_factory=SourceCounters)

    def __post_init__(self) -> None:
        self._journal: Journal
        # Callers acquire the lock directly, not through the condition: a KeyboardInterrupt within
        # `Condition.__enter__`, which is written in Python, would leave it locked.
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._waiting: deque[_Entry[Any]] = deque()
        self._busy = False
        self._closed = False

    def start(self) -> None:
        """Open the journal. Raises RsnotifyError if that fails."""
        self._journal = self.open_journal()
        self._journal.tune_for_writes(self.cache_size)
        self._journal.commits = self.counters.commits

    def submit(self, operation: Callable[[Journal], T]) -> Future[T]:
        """Run an operation in the next transaction. Return a future, done when it is durable.

        The operation runs again if the transaction fails because of another operation.
        """
        future: Future[T] = Future()
        if self._enter(_Entry(operation, future)):
            self.executor.submit(self._commit_next)
        return future

    def run(self, operation: Callable[[Journal], T]) -> T:
        """Run an operation in the next transaction, and return its result when it is durable."""
        future: Future[T] = Future()
        if self._enter(_Entry(operation, future)):
            if threading.current_thread() is threading.main_thread():
                self.executor.submit(self._commit_next)
            else:
                self._commit_next()
        return future.result()

    async def arun(self, operation: Callable[[Journal], T]) -> T:
        """Run an operation like `run`, waiting in asyncio."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self._enter(_Entry(operation, future)):
            self.executor.submit(self._commit_next)
        return await future

    async def promise_with_digest(self) -> JournalState:
        """Promise like `promise`, and return the state, with the digest if possible.

        The digest is missing if many changes have not been applied yet. This does not wait until
        all are applied: a feed waits for it, and a flood of changes would never end.
        """

        def promise(journal: Journal) -> JournalState:
            for _ in range(_MAX_APPLY_CALLS):
                if not journal.apply_changes():
                    break
            return journal.promise()

        return await self.arun(promise)

    def promise(self) -> int:
        """Promise durably that every later change will have a datetime after the returned one."""
        return self.run(Journal.promise).reached

    def close(self) -> None:
        """Wait until everything has been committed, then close the journal."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._waiting:  # perhaps from a caller that was interrupted
                self.executor.submit(self._commit_next)
            self._idle.wait_for(lambda: not self._busy and not self._waiting)
        self._journal.close()

    def _enter(self, entry: _Entry[Any]) -> bool:
        """Add an entry to the next group, and return whether the caller must start the commit.

        If the caller is interrupted before it does, the next caller starts the commit.
        """
        with self._lock:
            if self._closed:
                raise StorageError("the Publisher is closed and can no longer record changes")
            self._waiting.append(entry)
            return not self._busy

    def _commit_next(self) -> None:
        """Commit one group, unless another thread is committing, which then starts the next one.

        The next group is queued in the executor, behind the groups of other journals.
        """
        with self._lock:
            if self._busy or not self._waiting:
                return
            self._busy = True
            group = [
                self._waiting.popleft() for _ in range(min(_MAX_GROUP_SIZE, len(self._waiting)))
            ]
        try:
            self._commit(group)
        finally:
            with self._lock:
                self._busy = False
                if self._waiting:
                    self.executor.submit(self._commit_next)
                else:
                    self._idle.notify_all()

    def _commit(self, group: list[_Entry[Any]]) -> None:
        try:
            with self._journal.transaction():
                results = [entry.operation(self._journal) for entry in group]
        except BaseException as error:  # any error is passed to a caller; the thread must continue
            self._commit_one_by_one(group, error)
            return
        # Callers are notified first, since the thread that feeds the hubs has more work to do.
        for entry, result in zip(group, results, strict=True):
            entry.settle(result)
        for each in self._journal.recorded:
            self.counters.changes += len(each.changes)
        self.on_recorded(self._journal.recorded)

    def _commit_one_by_one(self, group: list[_Entry[Any]], error: BaseException) -> None:
        """Commit the entries of a failed group one by one, so that only the cause fails."""
        if len(group) == 1:
            logger.debug("a transaction was rolled back: %s", error)
            group[0].settle(error)
            return
        for entry in group:
            self._commit([entry])
