"""Coroutines that run at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def first_completed(
    *works: Coroutine[Any, Any, Any],
) -> AsyncIterator[tuple[asyncio.Task[Any], ...]]:
    """Run coroutines until the first ends; the others run on until the end of the context.

    Returns:
        A context with the tasks, whose exceptions are left to the caller.
    """
    tasks = tuple(asyncio.create_task(work) for work in works)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
