"""Follows one origin: checks it repeatedly, and records its changes.

The Publisher's clock shows when the last complete check began, so a heartbeat never claims more
than was checked. While checks fail, the coverage ends with the last recorded change. A change is
dated at the start of the check that found it, or at its own `lastmod` if that is later, but never
later than the local clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from random import Random
from typing import TypeVar

from msgspec.structs import replace

from rsnotify.errors import RsnotifyError, without_credentials
from rsnotify.runtime.tasks import running, wait_for_event
from rsnotify.sync.retry import Retry
from rsnotify_gateway.adapter import AnnouncingAdapter, OriginAdapter, OriginBatch
from rsnotify_gateway.change_detection import (
    decode_validator,
    record_batch,
    stored_check,
    stored_cursor,
)
from rsnotify_gateway.config import OriginSettings
from rsnotify_publisher import Publisher
from rsnotify_publisher.journal import Journal, system_clock
from rsnotify_publisher.publisher import transact

logger = logging.getLogger("rsnotify.gateway")
#: The backoff after an origin stops announcing its changes.
_ANNOUNCEMENT_RETRY = Retry(first=5.0, most=3600.0)

T = TypeVar("T")


class CheckedClock:
    """A Publisher's clock that shows the instant (µs) through which an origin was checked."""

    #: The clock for schedules.
    wall = staticmethod(system_clock)

    def __init__(self, now: int) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, to: int) -> None:
        self.now = max(self.now, to)


class OriginWatch:
    """Follows one origin while `run` is running.

    After the first complete check, it starts the Publisher, whose clock is `checked`. The caller
    closes the Publisher.

    Attributes:
        ready: Set when all documents of the set have been written.
        problem: The reason why the last check failed; None if it succeeded.
        failing_since: When the first of the consecutive failed checks began (µs).
        last_check: The instant (µs) through which the origin was checked.
    """

    def __init__(
        self,
        origin: OriginSettings,
        adapter: OriginAdapter,
        publisher: Publisher,
        checked: CheckedClock,
    ) -> None:
        self.name = origin.name
        self.origin_url = origin.public_url
        self.adapter = adapter
        self.publisher = publisher
        self.ready = asyncio.Event()
        self.problem: str | None = None
        self.failing_since: int | None = None
        self.last_check: int | None = None
        self._checked = checked
        self._pace = origin.pace
        self._random = Random()
        self._failures = 0
        self._is_running = self._is_started = False
        self._check_requested = asyncio.Event()

    def check_soon(self) -> None:
        """Start the next check immediately."""
        self._check_requested.set()

    async def run(self) -> None:
        """Check the origin repeatedly until cancelled.

        Raises:
            ConfigurationError: The state belongs to another Source.
            StorageError: The journal cannot be used at startup.
        """
        self._is_running = True
        self.last_check = await self._transact(stored_check)
        if self.last_check is not None:
            self._checked.advance(self.last_check)
            await self._start()
        async with running(self._await_announcements()):
            await self._check_forever()

    async def _check_forever(self) -> None:
        interval = self._pace.least
        while True:
            self._check_requested.clear()
            began = system_clock()
            try:
                changes = await self.check()
            except Exception as error:  # a failing origin must not stop the others
                self._failures += 1
                self._report_failure(error, began)
                after = getattr(error, "retry_after", None)
                delay = self._pace.after_failure(self._failures, self._random, after)
            else:
                interval = self._pace.next_interval(interval, changed=changes > 0)
                delay = self._pace.with_jitter(interval, self._random)
            await wait_for_event(self._check_requested, delay)

    async def _await_announcements(self) -> None:
        if not isinstance(self.adapter, AnnouncingAdapter):
            return
        failures, clock = 0, asyncio.get_running_loop().time
        while True:
            began, after = clock(), 0.0
            try:
                await self.adapter.await_announcements(self.check_soon)
            except Exception as error:  # polling continues
                logger.warning("%s: no announcements, only polling: %s", self.name, error)
                after = getattr(error, "retry_after", None) or 0.0
            failures = 1 if clock() > began + _ANNOUNCEMENT_RETRY.most else failures + 1
            await asyncio.sleep(_ANNOUNCEMENT_RETRY.delay(failures, self._random, at_least=after))

    def _report_failure(self, error: Exception, began: int) -> None:
        expected = isinstance(error, RsnotifyError | OSError)
        problem = without_credentials(str(error)) or type(error).__name__
        if problem != self.problem:
            logger.warning("%s: the check failed: %s", self.name, problem, exc_info=not expected)
        self.problem = problem
        self.failing_since = self.failing_since or began

    async def check(self) -> int:
        """Check the origin once, and return the number of changes.

        Raises:
            RsnotifyError: The check is incomplete. The changes found so far are recorded.
        """
        began = system_clock()
        changes = 0
        cursor = await self._transact(stored_cursor)
        async with aclosing(self.adapter.changes(cursor, self)) as batches:  # type: ignore[type-var]
            async for batch in batches:
                changes += await self._record(batch, began)
        await self._record(OriginBatch(checked=began), began)
        return changes

    async def _record(self, batch: OriginBatch, began: int) -> int:
        if batch.at is None:
            batch = replace(batch, at=began)
        if batch.checked is not None:  # a claim is never withdrawn
            batch = replace(batch, checked=max(batch.checked, self._checked.now))
        changes = await self._transact(partial(record_batch, batch=batch, now=system_clock()))
        if batch.checked is not None:
            self._checked.advance(batch.checked)
            self.last_check = batch.checked
            if self._is_running:
                await self._start()
            if self.problem is not None:
                logger.warning("%s: the checks succeed again", self.name)
            self.problem, self.failing_since, self._failures = None, None, 0
        return changes

    async def select(
        self, accepts: Callable[[str, frozenset[str]], bool]
    ) -> list[tuple[str, frozenset[str]]]:
        """Return the recorded URIs and places for which `accepts` returns True."""

        def read() -> list[tuple[str, frozenset[str]]]:
            with self.publisher.source.open_journal() as journal:
                found = journal.select(lambda uri, text: accepts(uri, decode_validator(text)[1]))
                return [(uri, decode_validator(validator)[1]) for uri, validator in found]

        return await asyncio.to_thread(read)

    async def _transact(self, work: Callable[[Journal], T]) -> T:
        if self._is_started:
            return await asyncio.wrap_future(transact(self.publisher, work))

        # Nothing is published before the first check is complete.
        def write() -> T:
            with self.publisher.source.open_journal() as journal, journal.transaction():
                return work(journal)

        return await asyncio.to_thread(write)

    async def _start(self) -> None:
        if not self._is_started:
            await asyncio.to_thread(self.publisher.start)
            self._is_started = True
            await self.publisher.await_published()
            self.ready.set()
