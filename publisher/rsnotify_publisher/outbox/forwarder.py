"""The thread that moves changes from an outbox into the journal of a Publisher.

`OutboxQueue` is its interface to the database of the outbox.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Protocol

from filelock import FileLock, Timeout
from msgspec import DecodeError, Struct, json

from rsnotify.errors import ConfigurationError, RsnotifyError, StorageError
from rsnotify.format.model import Resource
from rsnotify.runtime.reasons import reason_of
from rsnotify.runtime.state_folders import make_durably
from rsnotify.sync.retry import Retry
from rsnotify_publisher.changes import check_change
from rsnotify_publisher.publisher import Publisher, Startable


class OutboxLine(Struct, frozen=True):
    """A line of the outbox: its key in the table, and the change as JSON."""

    number: int
    entry: str


#: Records the changes in some lines durably; returns the reasons for those refused, by number.
RecordLines = Callable[[Sequence[OutboxLine]], Mapping[int, str]]


class OutboxQueue(Protocol):
    """Reads an outbox; used by one thread, except for `interrupt`."""

    def forward(self, limit: int, record: RecordLines) -> int:
        """Record what was committed, then delete it, in one transaction.

        Only one process at a time may do so, or changes of one resource could change places. If
        `record` raises, or the process dies, nothing is deleted.

        Args:
            limit: Largest number of lines.
            record: Records the lines, of which there may be none. Refused lines are kept, with
                the reason, and are not passed to it again.

        Returns:
            The number of lines; 0 if another process is forwarding.

        Raises:
            StorageError: The database cannot be read or written.
        """

    def wait(self, seconds: float) -> None:
        """Wait until there may be new lines, until interrupted, or until the time is over.

        Raises:
            StorageError: The database is not available.
        """

    def interrupt(self) -> None:
        """Make `wait` return immediately until `close`; may be called in any thread."""

    def close(self) -> None:
        """Disconnect; the next call connects again."""


_log = logging.getLogger("rsnotify.publisher")
_RETRY = Retry(first=0.1, most=30.0)
#: How many changes are recorded at a time.
BATCH = 1_000
#: Seconds after which a forwarder warns that another one keeps it waiting.
_PATIENCE = 60.0


class Forwarder(Startable):
    """Records the changes of an outbox, from `start` until `close`.

    Several processes may run a forwarder for the same outbox and the same state folder. One
    forwards at a time, and another takes over when it ends, however it ends. If a process dies
    after it has recorded changes and before it has deleted them, they are recorded once more,
    which changes nothing for Destinations.

    A batch is read, recorded and deleted under `outbox.lock` in the state folder. The locks of the
    database are not enough: they end with the session, which the server may close while the
    process is suspended (SIGSTOP, a frozen container). Another forwarder would then publish newer
    changes, and the first, once it wakes, the older ones that it had already read. The operating
    system releases `outbox.lock` only when the process ends. So a suspended forwarder makes the
    others wait (they log a warning) until it is resumed or killed, and changes never swap places.
    A generation number, checked when the batch is recorded, would let another forwarder take over
    at once; but the same process usually holds `leader.lock` too, so nothing would be published
    any sooner.

    Args:
        publisher: Records the changes. Start it before, and close it after.
        queue: Reads the outbox.
        poll: Seconds between two reads of the outbox while the database sends no notification.
    """

    def __init__(self, publisher: Publisher, queue: OutboxQueue, *, poll: float = 1.0) -> None:
        self._publisher = publisher
        self._queue = queue
        self._poll = poll
        # It is made in one thread and used in that of `start`.
        self._lock = FileLock(publisher.source.folder / "outbox.lock", thread_local=False)
        self._waiting_since: float | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._decode = json.Decoder(Resource).decode
        self._random = Random()

    def start(self) -> None:
        """Start the thread; a second call does nothing."""
        if self._thread is None:
            self._stopping.clear()
            self._thread = threading.Thread(target=self._run, name="rsnotify-outbox", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop after the current batch; the rest stays in the outbox."""
        if self._thread is not None:
            self._stopping.set()
            self._queue.interrupt()
            self._thread.join()
            self._thread = None

    def forward(self) -> int:
        """Forward what is in the outbox now, and return the number of changes.

        For a program that calls this at intervals, instead of `start`. It returns 0 if another
        process is forwarding.

        Raises:
            RsnotifyError: The database or the journal cannot be used; nothing is lost.
        """
        total = 0
        try:
            while count := self._forward_batch():
                total += count
                if count < BATCH:
                    break
        finally:
            self._queue.close()
        return total

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                if self._forward_batch() < BATCH:
                    self._queue.wait(self._poll)
                failures = 0
            except Exception as error:  # after any error, more changes will come
                level = logging.INFO if failures else logging.ERROR
                unexpected = not isinstance(error, RsnotifyError)
                _log.log(level, "changes wait in the outbox: %s", error, exc_info=unexpected)
                failures += 1
                self._queue.close()
                self._stopping.wait(_RETRY.delay(failures, self._random))
        self._queue.close()

    def _forward_batch(self) -> int:
        """Forward one batch and return its size; 0 if another forwarder is at work."""
        try:
            if not self._publisher.source.folder.exists():
                make_durably(self._publisher.source.folder)
            self._lock.acquire(timeout=self._poll)
        except Timeout:
            self._warn_of_waiting()
            return 0
        except OSError as error:
            raise StorageError(f"{self._lock.lock_file}: {reason_of(error)}") from error
        self._waiting_since = None
        try:
            return self._queue.forward(BATCH, self._record)
        finally:
            self._lock.release()

    def _warn_of_waiting(self) -> None:
        now = time.monotonic()
        self._waiting_since = self._waiting_since or now
        if now > self._waiting_since + _PATIENCE:
            self._waiting_since = now
            _log.warning(
                "changes may wait in the outbox: another process has held %s for %.0f seconds; if "
                "it is suspended or hangs, resume it or end it",
                *(self._lock.lock_file, _PATIENCE),
            )

    def _record(self, lines: Sequence[OutboxLine]) -> Mapping[int, str]:
        """Record changes durably; return the reason for each that cannot be recorded."""
        changes: list[Resource] = []
        refused: dict[int, str] = {}
        for line in lines:
            try:
                changes.append(check_change(self._decode(line.entry)))
            except (DecodeError, RecursionError, ConfigurationError) as error:
                refused[line.number] = str(error)
                _log.error("line %d of the outbox cannot be published: %r", line.number, str(error))
        if changes:
            self._publisher.record(changes)
        return refused
