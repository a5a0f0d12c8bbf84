"""Telling linear time from quadratic and exponential, on a machine that does other work too."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

#: Input is made this many times as long. Linear work takes 4 times as long, quadratic 16 times.
TIMES = 4
_TOLERATED = 2 * TIMES
_RUNS = 5
#: Seconds below which a measurement is noise.
_NOISE = 0.002


def check_growth(work: Callable[[int], object], size: int) -> None:
    """Assert that a work takes time in proportion to the size of its input.

    Args:
        work: Takes the size, makes its input and does the work.
        size: The smaller of the two sizes at which it is measured.
    """
    with limited(60):
        ratio = 0.0
        for _ in range(_RUNS):
            small = _timed(work, size)
            large = _timed(work, TIMES * size)
            ratio = large / max(small, _NOISE)
            if ratio <= _TOLERATED:
                return
        raise AssertionError(f"{TIMES} times the input takes {ratio:.0f} times as long")


def _timed(work: Callable[[int], object], size: int) -> float:
    begun = time.thread_time()
    work(size)
    return time.thread_time() - begun


@contextmanager
def limited(most: int) -> Iterator[None]:
    """End what would not end: Python's regular expressions look for signals now and then."""

    def end(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"it takes longer than {most} seconds")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(most)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
