"""A state is opened, used and closed by whatever thread is free."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.tasks import Lane
from rsnotify_subscriber.storage.destination_state import DestinationState, opened

PATIENCE = 30


async def test_a_state_that_another_thread_closed_is_free_again(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        state = first.submit(DestinationState, tmp_path).result(PATIENCE)
        with pytest.raises(ConfigurationError, match="in use"):
            DestinationState(tmp_path)
        assert state.find("https://a.example/") is None
        second.submit(state.close).result(PATIENCE)
    DestinationState(tmp_path).close()


@pytest.mark.parametrize("in_use", [False, True])
async def test_a_task_cancelled_while_a_state_is_opened_is_cancelled_and_leaves_it_as_it_was(
    tmp_path: Path, in_use: bool
) -> None:
    gate = Barrier(2, timeout=PATIENCE)

    async def open_it() -> None:
        async with opened(tmp_path, lane):
            raise AssertionError("it was cancelled before, or is in use")

    state = DestinationState(tmp_path) if in_use else None
    with ThreadPoolExecutor(2) as pool, Lane(pool) as lane:
        blocked = lane.submit(gate.wait)
        opening = asyncio.create_task(open_it())
        await asyncio.sleep(0)  # it waits for its turn in the lane
        opening.cancel()
        gate.wait()
        blocked.result(PATIENCE)
        with pytest.raises(asyncio.CancelledError):
            await opening
    if state is not None:
        state.close()
    DestinationState(tmp_path).close()
