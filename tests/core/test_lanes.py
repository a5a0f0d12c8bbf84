"""A few threads do the work of many, and each one's in order."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Barrier, Event, Thread, current_thread

import pytest

from rsnotify.runtime.tasks import Lane

PATIENCE = 30


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
