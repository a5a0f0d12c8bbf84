"""Telling linear time from quadratic and exponential, on a machine that does other work too."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

Input = TypeVar("Input")

#: Input is made this many times as long. Linear work takes 4 times as long, quadratic 16 times.
TIMES = 4
_TOLERATED = 2 * TIMES
_RUNS = 5
#: Seconds below which a measurement is noise.
_NOISE = 0.002


def check_growth(work: Callable[[int], object], size: int, *, longest: int = 0) -> None:
    """Assert that a work takes time in proportion to the size of its input."""
    with limited(60):
        ratio = 0.0
        while size < longest and timed(work, size) < _NOISE:
            size *= 2
        for _ in range(_RUNS):
            small = timed(work, size)
            large = timed(work, TIMES * size)
            ratio = large / max(small, _NOISE)
            if ratio <= _TOLERATED:
                return
        raise AssertionError(f"{TIMES} times the input takes {ratio:.0f} times as long")


def timed(work: Callable[[Input], object], given: Input) -> float:
    begun = time.thread_time()
    work(given)
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
