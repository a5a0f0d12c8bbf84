"""The tasks of one owner: none is lost, and a failure is reported at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Tasks:
    """Runs tasks until they end or are cancelled together; a failed one calls `failed`."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        self._running: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failed(error)

    async def cancel(self) -> None:
        """Cancel all tasks, and wait until they have ended."""
        while self._running:  # a task may start another while it is cancelled
            running = list(self._running)
            for task in running:
                task.cancel()
            await asyncio.wait(running)
