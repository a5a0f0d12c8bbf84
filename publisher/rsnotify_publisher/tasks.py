"""Helpers for asyncio: the failure of a task group, and waiting with a limit."""

from __future__ import annotations

import asyncio


def first_cause(error: Exception) -> Exception:
    """Return the first error of a group at any depth, or the error itself if it is none."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


async def is_set_within(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait for an event at most so long; return whether it is set."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
