"""Calls of many requests that are made in threads together."""

from __future__ import annotations

import asyncio
import threading

import pytest

from rsnotify_publisher.web.application import SharedThreads


async def test_each_call_has_its_own_result_or_error() -> None:
    threads = SharedThreads()
    outcomes = await asyncio.gather(
        *(threads.call(lambda number=number: 6 // number) for number in range(4)),
        return_exceptions=True,
    )
    assert [str(each) for each in outcomes] == ["integer division or modulo by zero", "6", "3", "2"]


async def test_calls_that_come_together_share_a_thread() -> None:
    threads = SharedThreads()
    used = await asyncio.gather(*(threads.call(threading.get_ident) for _ in range(20)))
    assert len(set(used)) == 1
    assert used[0] != threading.get_ident()


async def test_a_call_that_blocks_does_not_delay_later_ones() -> None:
    threads, release = SharedThreads(), threading.Event()
    blocked = asyncio.create_task(threads.call(release.wait))
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # its thread has begun
    try:
        assert await threads.call(lambda: 1) == 1
        assert not blocked.done()
    finally:
        release.set()
    await blocked


async def test_calls_wait_while_all_threads_are_busy() -> None:
    threads, release = SharedThreads(), threading.Event()
    tasks = []
    for _ in range(6):
        tasks.append(asyncio.create_task(threads.call(release.wait)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    last = asyncio.create_task(threads.call(lambda: 1))
    release.set()
    assert await last == 1
    assert await asyncio.gather(*tasks) == [True] * 6


async def test_a_cancelled_call_leaves_the_others() -> None:
    threads, release = SharedThreads(), threading.Event()
    first, second = (asyncio.create_task(threads.call(release.wait)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    release.set()
    assert await second
