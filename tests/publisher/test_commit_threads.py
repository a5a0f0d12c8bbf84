"""The threads that commit for callers that cannot."""

from __future__ import annotations

import logging
from threading import Event

import pytest

from rsnotify_publisher.background.pool import CommitThreads
from tests.publisher.helpers import PATIENCE


def test_a_function_that_fails_ends_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    threads, done = CommitThreads(1), Event()
    with caplog.at_level(logging.ERROR):
        threads.submit(lambda: 1 / 0)
        threads.submit(done.set)
        assert done.wait(PATIENCE)
    threads.shutdown()
    assert "ZeroDivisionError" in caplog.text


def test_all_that_was_submitted_runs_before_the_threads_end() -> None:
    threads, numbers = CommitThreads(2), list[int]()
    for number in range(100):
        threads.submit(lambda number=number: numbers.append(number))  # type: ignore[misc]
    threads.shutdown()
    assert sorted(numbers) == list(range(100))
