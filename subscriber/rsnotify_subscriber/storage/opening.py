"""Opening a state without holding up the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from rsnotify_subscriber.storage.database import StateLocation
from rsnotify_subscriber.storage.destination_state import DestinationState


@asynccontextmanager
async def opened(
    location: Path | StateLocation, worker: Executor
) -> AsyncIterator[DestinationState]:
    """Open a state, and close it at the end, in a worker that runs one call after another."""
    loop = asyncio.get_running_loop()
    opening = loop.run_in_executor(worker, DestinationState, location)
    try:
        state = await asyncio.shield(opening)
    except asyncio.CancelledError:
        with suppress(Exception):  # that it failed is of no interest any more
            (await opening).close()  # the thread continues, and opens a state that must be closed
        raise
    try:
        yield state
    finally:
        await asyncio.shield(loop.run_in_executor(worker, state.close))
