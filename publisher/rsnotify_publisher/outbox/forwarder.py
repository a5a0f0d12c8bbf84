"""Moves changes from an outbox to the journal of a Publisher, in a separate thread."""

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
from rsnotify_publisher.changes import check_record
from rsnotify_publisher.publisher import Publisher, Startable

logger = logging.getLogger("rsnotify.publisher")
_RETRY = Retry(first=0.1, most=30.0)
#: Maximum number of changes recorded at a time.
BATCH_SIZE = 1_000
#: Seconds between warnings that a forwarder is waiting for another one.
_WARNING_INTERVAL = 60.0


class OutboxLine(Struct, frozen=True):
    """A row of the outbox: its key in the table, and the change as JSON."""

    number: int
    entry: str


#: Records the changes in some rows durably. Returns why rows were refused, keyed by number.
RecordLines = Callable[[Sequence[OutboxLine]], Mapping[int, str]]


class OutboxQueue(Protocol):
    """Reads an outbox. All methods except `interrupt` are called in one thread."""

    def forward(self, limit: int, record: RecordLines) -> int:
        """Record the committed rows, then delete them, in one transaction.

        Only one process may do so at a time. Otherwise changes to one resource could be reordered.
        If `record` raises an exception or the process dies, nothing is deleted.

        Args:
            limit: Maximum number of rows.
            record: Records the rows; there may be none. Refused rows stay in the table with the
                reason, and are not passed to `record` again.

        Returns:
            The number of rows, or 0 if another process is forwarding.

        Raises:
            StorageError: The database cannot be read or written.
        """

    def wait(self, seconds: float) -> None:
        """Wait until there may be new rows, until interrupted, or until the timeout.

        Raises:
            StorageError: The database is not available.
        """

    def interrupt(self) -> None:
        """Make `wait` return immediately until `close` is called. Any thread may call this."""

    def close(self) -> None:
        """Disconnect. The next call connects again."""


class Forwarder(Startable):
    """Records the changes of an outbox, from `start` until `close`.

    Several processes may run a forwarder for the same outbox and the same state folder. One
    forwards at a time, and another takes over when it ends for any reason. If a process dies
    after it has recorded changes but before it has deleted them, they are recorded a second time,
    which makes no difference to Destinations.

    A batch is read, recorded and deleted while `outbox.lock` in the state folder is held. Database
    locks are not enough: they end with the session, which the server may close while the process is
    suspended (SIGSTOP, a frozen container). Another forwarder would then publish newer changes, and
    the suspended one, once resumed, the older changes that it had already read. The operating
    system releases `outbox.lock` only when the process ends. A suspended forwarder therefore makes
    the others wait (they log a warning) until it is resumed or killed, and changes are never
    reordered. A generation number, checked when a batch is recorded, would let another forwarder
    take over at once. However, the suspended process usually holds `leader.lock` too, so nothing
    would be published any sooner.

    Args:
        publisher: Records the changes. Start it before the forwarder, and close it afterwards.
        queue: Reads the outbox.
        poll: Seconds between two reads of the outbox while the database sends no notifications.
    """

    def __init__(self, publisher: Publisher, queue: OutboxQueue, *, poll: float = 1.0) -> None:
        self._publisher = publisher
        self._queue = queue
        self._poll = poll
        # The lock is created in one thread and used in the thread that `start` starts.
        self._lock = FileLock(publisher.source.folder / "outbox.lock", thread_local=False)
        self._waiting_since: float | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._decode = json.Decoder(Resource).decode
        self._random = Random()

    def start(self) -> None:
        """Start the thread. A second call does nothing."""
        if self._thread is None:
            self._stopping.clear()
            self._thread = threading.Thread(target=self._run, name="rsnotify-outbox", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop after the current batch. The remaining changes stay in the outbox."""
        if self._thread is not None:
            self._stopping.set()
            self._queue.interrupt()
            self._thread.join()
            self._thread = None

    def forward(self) -> int:
        """Forward the changes that are in the outbox now, and return their number.

        A program may call this at intervals instead of `start`. It returns 0 if another process is
        forwarding.

        Raises:
            RsnotifyError: The database or the journal cannot be used. Nothing is lost.
        """
        total = 0
        try:
            while count := self._forward_batch():
                total += count
                if count < BATCH_SIZE:
                    break
        finally:
            self._queue.close()
        return total

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                if self._forward_batch() < BATCH_SIZE:
                    self._queue.wait(self._poll)
                failures = 0
            except Exception as error:  # any error may be temporary
                level = logging.INFO if failures else logging.ERROR
                unexpected = not isinstance(error, RsnotifyError)
                logger.log(level, "changes wait in the outbox: %s", error, exc_info=unexpected)
                failures += 1
                self._queue.close()
                self._stopping.wait(_RETRY.delay(failures, self._random))
        self._queue.close()

    def _forward_batch(self) -> int:
        """Forward one batch. Return its size, or 0 if another process is forwarding."""
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
            return self._queue.forward(BATCH_SIZE, self._record)
        finally:
            self._lock.release()

    def _warn_of_waiting(self) -> None:
        now = time.monotonic()
        self._waiting_since = self._waiting_since or now
        if now > self._waiting_since + _WARNING_INTERVAL:
            self._waiting_since = now
            logger.warning(
                "changes may wait in the outbox: another process has held %s for %.0f seconds; if "
                "it is suspended, resume it; if it hangs, kill it",
                self._lock.lock_file,
                _WARNING_INTERVAL,
            )

    def _record(self, lines: Sequence[OutboxLine]) -> Mapping[int, str]:
        """Record changes durably. Return why rows were refused, keyed by number."""
        changes: list[Resource] = []
        refused: dict[int, str] = {}
        for line in lines:
            try:
                changes.append(check_record(self._decode(line.entry)).resource)
            except (DecodeError, RecursionError, ConfigurationError) as error:
                refused[line.number] = str(error)
                logger.error(
                    "line %d of the outbox cannot be published: %r", line.number, str(error)
                )
        if changes:
            self._publisher.record(changes)
        return refused
