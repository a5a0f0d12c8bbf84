"""The thread that takes changes out of an outbox, and records them in a Publisher."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from random import Random

from msgspec import DecodeError, json

from rsnotify.errors import ConfigurationError, RsnotifyError
from rsnotify.model import Resource
from rsnotify.retry import Retry
from rsnotify_publisher.changes import check_change
from rsnotify_publisher.outbox.queue import Queue, Waiting
from rsnotify_publisher.publisher import Publisher
from rsnotify_publisher.running import Running

_log = logging.getLogger("rsnotify.publisher")
_RETRY = Retry(first=0.1, most=30.0)
#: How many changes are recorded at a time.
BATCH = 1_000


class Forwarder(Running):
    """Forwards from when it is started until it is closed.

    Several processes may have one for the same outbox and the same folder of state; one of them
    forwards at a time, and another does if it dies. A change that was recorded just before a
    crash is recorded once more after it, which changes nothing for Destinations.

    Args:
        publisher: Records the changes. Start it before, and close it after.
        queue: Has them.
        poll: Seconds between two looks at the outbox where nothing tells of something new.
    """

    def __init__(self, publisher: Publisher, queue: Queue, *, poll: float = 1.0) -> None:
        self._publisher = publisher
        self._queue = queue
        self._poll = poll
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._decode = json.Decoder(Resource).decode
        self._random = Random()

    def start(self) -> None:
        """Begin to forward; once is enough."""
        if self._thread is None:
            self._stopping.clear()
            self._thread = threading.Thread(target=self._run, name="rsnotify-outbox", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End when what is being recorded is; the rest waits in the outbox."""
        if self._thread is not None:
            self._stopping.set()
            self._queue.interrupt()
            self._thread.join()
            self._thread = None

    def forward(self) -> int:
        """Forward what waits now, and return how many changes that were.

        For a program that does this now and then, instead of `start`.

        Raises:
            RsnotifyError: The database or the journal cannot be used; nothing is lost.
        """
        total = 0
        try:
            while count := self._queue.forward(BATCH, self._take):
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
                if self._queue.forward(BATCH, self._take) < BATCH:
                    self._queue.wait(self._poll)
                failures = 0
            except Exception as error:  # whatever it is, changes go on being made
                level = logging.INFO if failures else logging.ERROR
                unexpected = not isinstance(error, RsnotifyError)
                _log.log(level, "changes wait in the outbox: %s", error, exc_info=unexpected)
                failures += 1
                self._queue.close()
                self._stopping.wait(_RETRY.delay(failures, self._random))
        self._queue.close()

    def _take(self, waiting: Sequence[Waiting]) -> Mapping[int, str]:
        """Record changes durably, and return why some cannot be."""
        changes: list[Resource] = []
        refused: dict[int, str] = {}
        for one in waiting:
            try:
                changes.append(check_change(self._decode(one.entry)))
            except (DecodeError, ConfigurationError) as error:
                refused[one.number] = str(error)
                _log.error("line %d of the outbox cannot be published: %r", one.number, str(error))
        if changes:
            self._publisher.record(changes)
        return refused
