"""A few threads for many who need one each: what each has to do is done in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from threading import Condition
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Lane(Executor):
    """Does one thing after another, in whatever thread of a pool is free.

    After each thing it stands in line again, so that none who has much to do keeps the threads
    from the others.

    Args:
        pool: The threads; shut down only after all of their lanes.
    """

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._changed = Condition()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._busy = False
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Do something once all before it is done.

        Raises:
            RuntimeError: The lane was shut down.
        """
        future: Future[T] = Future()
        with self._changed:
            if self._closed:
                raise RuntimeError("this lane was shut down")
            self._waiting.append((future, lambda: fn(*args, **kwargs)))
            if not self._busy:
                self._pool.submit(self._turn)
                self._busy = True
        return future

    def _turn(self) -> None:
        with self._changed:
            future, work = self._waiting.popleft()
        if future.set_running_or_notify_cancel():
            _do(future, work)
        del future, work  # what they hold may be large, and the next may be long in coming
        with self._changed:
            if self._waiting:
                self._pool.submit(self._turn)
            else:
                self._busy = False
                self._changed.notify_all()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take nothing more; the threads stay.

        Args:
            wait: Whether to return only once all is done.
            cancel_futures: Whether what has not begun is not done at all.
        """
        with self._changed:
            self._closed = True
            if cancel_futures:
                for future, _ in self._waiting:
                    future.cancel()
            if wait:
                self._changed.wait_for(lambda: not self._busy)


def _do(future: Future[T], work: Callable[[], T]) -> None:
    try:
        result = work()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
