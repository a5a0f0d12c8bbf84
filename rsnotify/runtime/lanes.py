"""Lanes: queues of work that run in order on a shared pool of threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from threading import Condition
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Lane(Executor):
    """Runs one call after another, in any free thread of a pool.

    After each call it queues again in the pool, so that a lane with much work does not keep the
    threads from the others. The pool is to be shut down after all its lanes.
    """

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._changed = Condition()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._busy = False
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call a function after all earlier calls; RuntimeError if the lane was shut down."""
        future: Future[T] = Future()
        with self._changed:
            if self._closed:
                raise RuntimeError("this lane was shut down")
            self._waiting.append((future, lambda: fn(*args, **kwargs)))
            if not self._busy:
                self._pool.submit(self._run_next)
                self._busy = True
        return future

    def _run_next(self) -> None:
        with self._changed:
            future, work = self._waiting.popleft()
        if future.set_running_or_notify_cancel():
            _complete(future, work)
        del future, work  # they may refer to large objects, and the next call may come late
        with self._changed:
            if self._waiting:
                self._pool.submit(self._run_next)
            else:
                self._busy = False
                self._changed.notify_all()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls; the threads of the pool remain."""
        with self._changed:
            self._closed = True
            if cancel_futures:
                for future, _ in self._waiting:
                    future.cancel()
            if wait:
                self._changed.wait_for(lambda: not self._busy)


def _complete(future: Future[T], work: Callable[[], T]) -> None:
    try:
        result = work()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
