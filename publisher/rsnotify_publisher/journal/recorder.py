"""Group commit: what many threads enter at the same time becomes durable in one fsync.

One thread of the process owns the only connection that writes. It takes whatever has
gathered while the last transaction was being made durable, and makes one transaction of it.
Where there are many journals, a few threads do so for all of them, one group after the other.
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
        open_journal: Makes the connection, in the thread.
        on_commit: Called in the thread after every transaction.
        turns: Does one thing after another, in any thread; used instead of a thread of its own.
        memory: How much the connection may use, in MiB.
    """

    def __init__(
        self,
        open_journal: Callable[[], Journal],
        on_commit: Callable[[], None],
        turns: Executor | None = None,
        *,
        memory: float = USUAL_MEMORY,
    ) -> None:
        self._open_journal = open_journal
        self._on_commit = on_commit
        self._turns = turns
        self._memory = memory
        self._has_turn = False
        self._journal: Journal
        self._queue: queue.SimpleQueue[_Entry[Any] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._opened: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="rsnotify-recorder", daemon=True)

    def start(self) -> None:
        """Begin to write.

        Raises:
            RsnotifyError: The journal cannot be opened.
        """
        if self._turns is not None:
            self._journal = self._turns.submit(self._open).result()
            return
        self._thread.start()
        self._opened.result()

    def submit(self, operation: Callable[[Journal], T]) -> Future[T]:
        """Run an operation in the next transaction.

        Args:
            operation: Reads and writes the journal. It may be run twice, when its
                transaction failed because of another one in the group.

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
            self._ask_for_turn()
        return future

    def _ask_for_turn(self) -> None:
        """Have a group committed soon, if that is not to happen anyway; within the lock."""
        if self._turns is not None and not self._has_turn:
            self._has_turn = True
            self._turns.submit(self._turn)

    def _turn(self) -> None:
        """Commit what has gathered; the next group waits until others had their turn."""
        with self._lock:  # whatever comes from now on asks for another
            self._has_turn = False
        if not self._queue.empty():
            self._commit(self._journal, self._gather()[0])
            with self._lock:
                if not self._queue.empty():
                    self._ask_for_turn()

    def _end_turns(self) -> None:
        while not self._queue.empty():
            self._commit(self._journal, self._gather()[0])
        self._journal.close()

    def _open(self) -> Journal:
        journal = self._open_journal()
        journal.expect_writes(self._memory)
        return journal

    def close(self) -> None:
        """Write what was submitted, then end."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._turns is None:
                self._queue.put(None)
        if self._turns is None:
            self._thread.join()
        else:
            self._turns.submit(self._end_turns).result()
            self._turns.shutdown()

    def _run(self) -> None:
        try:
            journal = self._open()
        except Exception as error:  # start() raises it where it can be seen
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
        """Wait for an entry, then take all there are; False once the last has come."""
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
        except Exception as error:  # whatever it is belongs to a caller; the thread goes on
            self._commit_alone(journal, group, error)
            return
        self._on_commit()
        for entry, result in zip(group, results, strict=True):
            entry.settle(result)

    def _commit_alone(self, journal: Journal, group: list[_Entry[Any]], error: Exception) -> None:
        """Give the failure of a group to the one that caused it."""
        if len(group) == 1:
            _log.debug("a transaction was rolled back: %s", error)
            group[0].fail(error)
            return
        for entry in group:
            self._commit(journal, [entry])
