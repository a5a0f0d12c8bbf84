"""The readiness check of `GET /readyz`: whether the store can be written, and followed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.store.interface import Store

log = logging.getLogger("rsnotify.hub")

#: The timeout of the check, in seconds.
SECONDS = 5.0


class Readiness:
    def __init__(
        self,
        store: Store,
        trouble: Callable[[], str | None] = lambda: None,
        *,
        seconds: float = SECONDS,
    ) -> None:
        self._store = store
        self._trouble = trouble
        self._seconds = seconds
        self._checking: asyncio.Task[None] | None = None
        self.is_draining = False

    def check_open(self) -> None:
        if self.is_draining:
            raise Refusal(Code.UNAVAILABLE, "this node is drained: use another one")

    async def check(self) -> None:
        """Check, or share a check that is under way, so frequent requests cost no more writes."""
        self.check_open()
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._store.check())
            # Retrieve any error, even if all callers have gone.
            self._checking.add_done_callback(lambda done: done.cancelled() or done.exception())
        checking = self._checking
        await asyncio.wait([checking], timeout=self._seconds)
        trouble = self._trouble()
        if trouble is None and not checking.done():
            trouble = f"the store does not answer within {self._seconds:.0f} seconds"
        if trouble is not None:
            log.error("this hub is not ready: %s", trouble)
            raise Refusal(Code.UNAVAILABLE, trouble)
        checking.result()

    async def close(self) -> None:
        if self._checking is not None:
            await asyncio.wait([self._checking])
