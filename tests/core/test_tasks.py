"""Tasks that run beside each other, as all programs run them."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from rsnotify.runtime import tasks
from rsnotify.runtime.tasks import cancel, first_completed, running, wait_for_event


async def fail() -> None:
    raise ValueError


async def test_the_others_run_until_the_end_of_the_context() -> None:
    async with first_completed(asyncio.sleep(0), asyncio.Event().wait()) as (one, other):
        assert one.done()
        assert not other.done()
    assert other.cancelled()


async def test_an_error_of_the_first_is_left_to_the_caller() -> None:
    async with first_completed(fail(), asyncio.Event().wait()) as (failed, _):
        with pytest.raises(ValueError):  # noqa: PT011
            failed.result()


async def test_tasks_end_with_an_error_of_the_context() -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        async with running(asyncio.Event().wait()) as tasks:
            await fail()
    assert tasks[0].cancelled()


async def test_cancelling_waits_for_the_end() -> None:
    ended = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    await cancel([task])
    assert ended == [True]


async def test_an_event_is_awaited_for_a_while_only() -> None:
    event = asyncio.Event()
    assert not await wait_for_event(event, 0)
    event.set()
    assert await wait_for_event(event, None)


async def test_a_task_that_lost_a_cancellation_is_cancelled_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "_CANCEL_AGAIN", 0.01)

    async def work() -> None:
        with suppress(asyncio.CancelledError):  # as `asyncio.wait_for` may do
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    await cancel([task])
    assert task.cancelled()
