"""Reading again, during a run, what the Source offers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import Random

from msgspec.structs import replace

from rsnotify.errors import RsnotifyError
from rsnotify.format.offer import Offer
from rsnotify.runtime.tasks import wait_for_event
from rsnotify_subscriber.sync.context import RunContext
from rsnotify_subscriber.tasks import Tasks

logger = logging.getLogger("rsnotify.subscriber")

#: Seconds between two readings of the offer.
_INTERVAL = 600.0


class Rediscovery:
    """Reads the offer at intervals and on request, and stores one that has changed.

    Args:
        changed: Is called with the offers before and after a change.
        finished: Is called after each reading.

    Attributes:
        identity: The Source, and its last known offer.
        doubt: Why the offer may be out of date; empty if it was read.
    """

    def __init__(
        self,
        context: RunContext,
        tasks: Tasks,
        changed: Callable[[Offer, Offer], None],
        finished: Callable[[], None],
    ) -> None:
        self.identity = context.identity
        self.doubt = "" if context.offer_checked else "what the Source offers has not been read yet"
        self._offers = context.offers
        self._state = context.state
        self._worker = context.worker
        self._retry = context.options.pace.retry
        self._random = Random()
        self._tasks = tasks
        self._changed = changed
        self._finished = finished
        self._reading: asyncio.Task[None] | None = None
        #: Whether a reading has failed after which `run` has not waited yet.
        self._failed = asyncio.Event()

    @property
    def is_reading(self) -> bool:
        return self._reading is not None

    def start(self) -> asyncio.Task[None]:
        """Read the offer, unless a reading is under way; return its task."""
        if self._reading is None:
            self._reading = self._tasks.spawn(self._read())
        return self._reading

    async def run(self) -> None:
        """Read the offer at intervals, after a failure sooner."""
        failures = 0
        while True:
            if not self.doubt:
                failures = 0
                # A reading on request may fail meanwhile.
                await wait_for_event(self._failed, _INTERVAL)
            if self._failed.is_set():
                failures += 1
                self._failed.clear()
                await asyncio.sleep(self._retry.delay(failures, self._random))
            await asyncio.wait({self.start()})

    async def _read(self) -> None:
        before = self.identity
        try:
            offer = await self._offers.revalidate(before.offer)
        except RsnotifyError as error:
            self.doubt = f"what the Source offers could not be checked: {error}"
            self._failed.set()
            logger.info("%s", self.doubt)
        else:
            self.doubt = ""
            self._failed.clear()
            if offer != before.offer:
                self.identity = replace(before, offer=offer, memory=self._offers.memory)
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self._worker, self._state.store_identity, self.identity)
                self._changed(before.offer, offer)
        self._reading = None
        self._finished()
