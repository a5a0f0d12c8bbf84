"""Waiting for events and tasks, and the cause of what fails in them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

#: How long a cancelled task may take before it is cancelled again, in seconds.
_CANCEL_AGAIN = 1.0


async def wait_for_event(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait for an event, at most for some seconds; return whether it is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait until they have ended.

    `asyncio.wait_for` of Python 3.11 loses a cancellation that comes together with the result. A
    task that continues is therefore cancelled again.
    """
    ending = set(tasks)
    running = {task for task in ending if not task.done()}
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=_CANCEL_AGAIN)
    await asyncio.gather(*ending, return_exceptions=True)


@asynccontextmanager
async def running(*works: Coroutine[Any, Any, Any]) -> AsyncIterator[tuple[asyncio.Task[Any], ...]]:
    """Run coroutines within the context, and cancel them at its end, whatever their results."""
    tasks = tuple(asyncio.create_task(work) for work in works)
    try:
        yield tasks
    finally:
        await cancel(tasks)


@asynccontextmanager
async def first_completed(
    *works: Coroutine[Any, Any, Any],
) -> AsyncIterator[tuple[asyncio.Task[Any], ...]]:
    """Run coroutines as `running` does; the context begins when the first of them has ended."""
    async with running(*works) as tasks:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        yield tasks


def first_cause(error: Exception) -> Exception:
    """Return the first error of a group at any depth, or the error itself if it is none."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
