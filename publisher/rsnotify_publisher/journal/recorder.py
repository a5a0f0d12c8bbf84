"""Group commit: changes that many threads submit at the same time share one fsync.

One thread of the process owns the only connection that writes. It makes one transaction of
everything that was submitted during the last commit. If there are many journals, a few threads do
so for all of them, one group after the other.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
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


class Recorder:
    """The writing thread of one process.

    Args:
        open_journal: Returns the connection; called in the thread.
        on_commit: Called in the thread after every transaction.
        executor: Runs one task after another, in any thread; used instead of an own thread.
        memory: Cache of the connection in MiB.
    """

    def __init__(
        self,
        open_journal: Callable[[], Journal],
        on_commit: Callable[[], None],
        executor: Executor | None = None,
        *,
        memory: float = USUAL_MEMORY,
    ) -> None:
        self._open_journal = open_journal
        self._on_commit = on_commit
        self._executor = executor
        self._memory = memory
        self._is_scheduled = False
        self._journal: Journal
        self._queue: queue.SimpleQueue[_Entry[Any] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._opened: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="rsnotify-recorder", daemon=True)

    def start(self) -> None:
        """Start the thread.

        Raises:
            RsnotifyError: The journal cannot be opened.
        """
        if self._executor is not None:
            self._journal = self._executor.submit(self._open).result()
            return
        self._thread.start()
        self._opened.result()

    def submit(self, operation: Callable[[Journal], T]) -> Future[T]:
        """Run an operation in the next transaction.

        Args:
            operation: Reads and writes the journal. It may be run twice, when its
                transaction failed because of another operation.

        Returns:
            A future that gets the operation's result once that is durable, or its error.

        Raises:
            StorageError: The recorder was closed.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise StorageError("the Publisher is closed; nothing more can be recorded")
            self._queue.put(_Entry(operation, future))
            self._schedule_commit()
        return future

    def _schedule_commit(self) -> None:
        """Schedule the commit of a group, unless one is scheduled; within the lock."""
        if self._executor is not None and not self._is_scheduled:
            self._is_scheduled = True
            self._executor.submit(self._commit_next)

    def _commit_next(self) -> None:
        """Commit one group; the next waits until other journals have committed theirs."""
        with self._lock:  # changes from now on schedule another commit
            self._is_scheduled = False
        if not self._queue.empty():
            self._commit(self._journal, self._gather()[0])
            with self._lock:
                if not self._queue.empty():
                    self._schedule_commit()

    def _commit_rest(self) -> None:
        while not self._queue.empty():
            self._commit(self._journal, self._gather()[0])
        self._journal.close()

    def _open(self) -> Journal:
        journal = self._open_journal()
        journal.expect_writes(self._memory)
        return journal

    def close(self) -> None:
        """Commit what was submitted, then end."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._executor is None:
                self._queue.put(None)
        if self._executor is None:
            self._thread.join()
        else:
            self._executor.submit(self._commit_rest).result()
            self._executor.shutdown()

    def _run(self) -> None:
        try:
            journal = self._open()
        except Exception as error:  # start() raises it
            self._opened.set_exception(error)
            return
        self._opened.set_result(None)
        with journal:
            going = True
            while going:
                group, going = self._gather()
                if group:
                    self._commit(journal, group)

    def _gather(self) -> tuple[list[_Entry[Any]], bool]:
        """Wait for an entry, and return all there are; with False after the last entry."""
        group: list[_Entry[Any]] = []
        entry = self._queue.get()
        while entry is not None:
            group.append(entry)
            if len(group) == _GROUP:
                return group, True
            try:
                entry = self._queue.get_nowait()
            except queue.Empty:
                return group, True
        return group, False

    def _commit(self, journal: Journal, group: list[_Entry[Any]]) -> None:
        try:
            with journal.transaction():
                results = [entry.operation(journal) for entry in group]
        except Exception as error:  # any error belongs to a caller; the thread goes on
            self._commit_alone(journal, group, error)
            return
        self._on_commit()
        for entry, result in zip(group, results, strict=True):
            entry.settle(result)

    def _commit_alone(self, journal: Journal, group: list[_Entry[Any]], error: Exception) -> None:
        """Commit each entry of a failed group by itself, so that only the cause fails."""
        if len(group) == 1:
            _log.debug("a transaction was rolled back: %s", error)
            group[0].fail(error)
            return
        for entry in group:
            self._commit(journal, [entry])
