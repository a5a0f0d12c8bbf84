"""Group commit: changes that many threads submit at the same time share one fsync.

One connection of the process writes. It makes one transaction of everything that was submitted
during the last commit. If there are many journals, a few threads commit for all of them, one group
after the other.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from rsnotify.errors import StorageError
from rsnotify_publisher.journal.journal import Journal
from rsnotify_publisher.journal.storage import USUAL_MEMORY

T = TypeVar("T")

_log = logging.getLogger("rsnotify.publisher")
# Bounds how long the first caller of a group waits for the last.
_GROUP = 5_000


class _Entry(NamedTuple, Generic[T]):
    operation: Callable[[Journal], T]
    future: Future[T]

    def settle(self, result: T) -> None:
        # A future cannot be cancelled any more once this is true.
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(result)

    def fail(self, error: BaseException) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


@dataclass(eq=False)
class Recorder:
    """Commits what the threads of one process submit.

    Args:
        open_journal: Returns the connection that writes.
        on_commit: Called after every transaction.
        executor: Opens the journal and commits, one task after another, in any thread.
        memory: Cache of the connection in MiB.
    """

    open_journal: Callable[[], Journal]
    on_commit: Callable[[], None]
    executor: Executor
    memory: float = USUAL_MEMORY

    def __post_init__(self) -> None:
        self._journal: Journal
        self._lock = threading.Lock()
        # A commit is scheduled whenever an entry waits.
        self._waiting: deque[_Entry[Any]] = deque()
        self._closed = False

    def start(self) -> None:
        """Open the journal; RsnotifyError if that fails."""
        self.executor.submit(self._open).result()

    def _open(self) -> None:
        self._journal = self.open_journal()
        self._journal.expect_writes(self.memory)

    def submit(self, operation: Callable[[Journal], T]) -> Future[T]:
        """Run an operation in the next transaction; return a future of its durable result.

        The operation may be run twice, if its transaction failed because of another operation.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise StorageError("the Publisher is closed; nothing more can be recorded")
            self._waiting.append(_Entry(operation, future))
            if len(self._waiting) == 1:
                self.executor.submit(self._commit_next)
        return future

    def promise(self) -> int:
        """Promise durably that no later change gets a datetime up to the one returned."""
        return self.submit(Journal.promise).result().reached

    def _commit_next(self) -> None:
        """Commit one group; the next waits until other journals have committed theirs."""
        with self._lock:
            group = [self._waiting.popleft() for _ in range(min(_GROUP, len(self._waiting)))]
            if self._waiting:
                self.executor.submit(self._commit_next)
        if group:
            self._commit(group)

    def close(self) -> None:
        """Commit what was submitted, then end."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.executor.submit(self._commit_rest).result()
        self.executor.shutdown()

    def _commit_rest(self) -> None:
        while self._waiting:
            self._commit_next()
        self._journal.close()

    def _commit(self, group: list[_Entry[Any]]) -> None:
        try:
            with self._journal.transaction():
                results = [entry.operation(self._journal) for entry in group]
        except Exception as error:  # any error belongs to a caller; the thread goes on
            self._commit_alone(group, error)
            return
        self.on_commit()
        for entry, result in zip(group, results, strict=True):
            entry.settle(result)

    def _commit_alone(self, group: list[_Entry[Any]], error: Exception) -> None:
        """Commit each entry of a failed group by itself, so that only the cause fails."""
        if len(group) == 1:
            _log.debug("a transaction was rolled back: %s", error)
            group[0].fail(error)
            return
        for entry in group:
            self._commit([entry])
