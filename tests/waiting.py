"""Waiting for what has no event to wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from inspect import isawaitable
from typing import Any

#: Seconds; only what hangs takes them.
PATIENCE = 120


async def until(condition: Callable[[], Any]) -> None:
    """Poll a condition, which may be a coroutine, until it holds."""
    async with asyncio.timeout(PATIENCE):
        while not (await found if isawaitable(found := condition()) else found):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
