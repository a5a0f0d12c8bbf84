"""Tasks that run beside each other, as all programs run them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier, Event, Thread, current_thread

import pytest

from rsnotify.runtime import tasks
from rsnotify.runtime.tasks import (
    Lane,
    cancel,
    first_completed,
    run_together,
    running,
    wait_for_event,
)


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


async def test_works_that_run_together_are_awaited() -> None:
    await run_together()
    ended = []

    async def work(seconds: float) -> None:
        await asyncio.sleep(seconds)
        ended.append(seconds)

    await run_together(work(0), work(0.01))
    assert ended == [0, 0.01]


async def test_an_error_ends_the_works_that_run_together_but_not_their_caller() -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(ValueError):  # noqa: PT011
        await run_together(work(), fail())
    assert ended.is_set()
    task = asyncio.current_task()
    assert task is not None
    # Otherwise `asyncio.timeout` would raise CancelledError before Python 3.11.3.
    assert task.cancelling() == 0
    assert not await wait_for_event(asyncio.Event(), 0)


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
    monkeypatch.setattr(tasks, "_CANCEL_INTERVAL", 0.01)

    async def work() -> None:
        with suppress(asyncio.CancelledError):  # as `asyncio.wait_for` may do
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    await cancel([task])
    assert task.cancelled()


# A few threads do the work of many, and each one's in order.


PATIENCE = 120


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def test_each_lane_does_its_work_in_order_and_never_two_things_at_once(
    pool: ThreadPoolExecutor,
) -> None:
    lanes = [Lane(pool) for _ in range(20)]
    done: list[list[int]] = [[] for _ in lanes]
    busy = [0] * len(lanes)

    def work(lane: int, number: int) -> str:
        busy[lane] += 1
        assert busy[lane] == 1
        done[lane].append(number)
        busy[lane] -= 1
        return current_thread().name

    futures = [lane.submit(work, n, number) for number in range(50) for n, lane in enumerate(lanes)]
    assert len({future.result(PATIENCE) for future in futures}) <= 2
    assert done == [list(range(50))] * len(lanes)


def test_two_lanes_work_at_the_same_time(pool: ThreadPoolExecutor) -> None:
    together = Barrier(2, timeout=PATIENCE)
    futures = [Lane(pool).submit(together.wait) for _ in range(2)]
    assert {future.result(PATIENCE) for future in futures} == {0, 1}


def test_who_has_much_to_do_does_not_keep_the_others_waiting() -> None:
    order: list[str] = []
    go = Event()
    with ThreadPoolExecutor(1) as pool:
        busy, other = Lane(pool), Lane(pool)
        busy.submit(go.wait, PATIENCE)
        for _ in range(10):
            busy.submit(order.append, "busy")
        last = other.submit(order.append, "other")
        go.set()
        last.result(PATIENCE)
        busy.shutdown()
    assert order.index("other") <= 1
    assert len(order) == 11


def test_what_raises_does_not_stop_what_comes_after(pool: ThreadPoolExecutor) -> None:
    lane = Lane(pool)
    failed: Future[int] = lane.submit(int, "no number")
    assert lane.submit(int, "1").result(PATIENCE) == 1
    with pytest.raises(ValueError, match="no number"):
        failed.result(PATIENCE)


def test_shutting_a_lane_down_waits_for_its_work_and_leaves_the_threads(
    pool: ThreadPoolExecutor,
) -> None:
    lane, other = Lane(pool), Lane(pool)
    go, begun = Event(), Event()
    running = lane.submit(lambda: begun.set() or go.wait(PATIENCE))
    assert begun.wait(PATIENCE)
    waiting = lane.submit(int)
    closing = Thread(target=lane.shutdown, kwargs={"cancel_futures": True})
    closing.start()
    go.set()
    closing.join(PATIENCE)
    assert running.done()
    assert waiting.cancelled() or waiting.done()
    with pytest.raises(RuntimeError, match="shut down"):
        lane.submit(int)
    assert other.submit(int).result(PATIENCE) == 0
