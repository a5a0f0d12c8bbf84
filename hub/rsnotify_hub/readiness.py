"""The readiness check of `GET /readyz`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from rsnotify.runtime.reasons import Repetitions
from rsnotify.runtime.tasks import retrieve_exception
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.store.interface import Store

logger = logging.getLogger("rsnotify.hub")

#: The timeout of the readiness check, in seconds.
_TIMEOUT_SECONDS = 5.0


@dataclass(eq=False, repr=False)
class Readiness:
    """Checks whether this node can use the store."""

    store: Store
    trouble: Callable[[], str | None] = lambda: None
    seconds: float = _TIMEOUT_SECONDS
    is_draining: bool = False

    def __post_init__(self) -> None:
        self._checking: asyncio.Task[None] | None = None
        self._reported = Repetitions()

    def check_open(self) -> None:
        if self.is_draining:
            raise Refusal(Code.UNAVAILABLE, "this node is draining: use another one")

    async def check(self) -> None:
        """Check whether this node is ready. Concurrent calls share one test write.

        Raises:
            Refusal: The node is draining, or cannot use the store.
            StorageError: The test write failed.
        """
        self.check_open()
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self.store.check())
            self._checking.add_done_callback(retrieve_exception)
        checking = self._checking
        trouble = self.trouble()
        if trouble is None:
            await asyncio.wait([checking], timeout=self.seconds)
            trouble = self.trouble()
        if trouble is None and not checking.done():
            trouble = f"the store did not answer within {self.seconds:.0f} seconds"
        if trouble is not None:
            if self._reported.is_new(trouble):
                logger.error("this node is not ready: %s", trouble)
            raise Refusal(Code.UNAVAILABLE, trouble)
        checking.result()

    async def close(self) -> None:
        if self._checking is not None:
            await asyncio.wait([self._checking])
