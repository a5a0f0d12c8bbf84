"""Helpers for tasks and threads: cancellation, error reports, queues on a shared thread pool."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from threading import Condition
from typing import Any, ParamSpec, TypeVar

#: Time between two cancellations of a task, in seconds.
_CANCEL_INTERVAL = 1.0


async def wait_for_event(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait up to `seconds` for an event, and return whether it is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait until they have ended.

    A task that continues is cancelled again, because in Python 3.11, `asyncio.wait_for` loses a
    cancellation that coincides with its result.
    """
    ending = set(tasks)
    running = {task for task in ending if not task.done()}
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=_CANCEL_INTERVAL)
    await asyncio.gather(*ending, return_exceptions=True)


@asynccontextmanager
async def running(*works: Coroutine[Any, Any, Any]) -> AsyncIterator[tuple[asyncio.Task[Any], ...]]:
    """Run coroutines while the context is active, then cancel them and ignore their results."""
    tasks = tuple(asyncio.create_task(work) for work in works)
    try:
        yield tasks
    finally:
        await cancel(tasks)


@asynccontextmanager
async def first_completed(
    *works: Coroutine[Any, Any, Any],
) -> AsyncIterator[tuple[asyncio.Task[Any], ...]]:
    """Run coroutines as `running` does, and enter the context when the first one has ended."""
    async with running(*works) as tasks:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        yield tasks


async def run_together(*works: Coroutine[Any, Any, Any]) -> None:
    """Run coroutines until all have ended. If one fails, cancel the others, and raise its error.

    Unlike this, `asyncio.TaskGroup` cancels the calling task, too, and before Python 3.13 that task
    then counts as cancelled for good if it was already waiting at the end of the group. Before
    Python 3.11.3, each later `asyncio.timeout` in that task raises CancelledError instead of
    TimeoutError.
    """
    async with running(*works) as tasks:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done() and not task.cancelled():
                task.result()


def first_cause(error: Exception) -> Exception:
    """Return the first error in a nested exception group, or the error itself."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


P = ParamSpec("P")
T = TypeVar("T")


def settle(future: asyncio.Future[T], outcome: T | BaseException) -> None:
    """Set the result or error of a future, unless it is already done or cancelled."""
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def retrieve_exception(future: asyncio.Future[Any]) -> None:
    """Mark the exception of a future as retrieved, in case nothing waits for it."""
    if not future.cancelled():
        future.exception()


async def call_in(executor: Executor, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in an executor, and return its result."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(executor, partial(call, *args, **kwargs))


#: Maximum time for an event loop to execute a call of `call_in_loop`, in seconds.
_LOOP_CALL_TIMEOUT = 10.0


def call_in_loop(loop: asyncio.AbstractEventLoop | None, call: Callable[[], T]) -> T:
    """Call a function in the thread of an event loop, and return its result.

    If the loop is not running, or runs in this thread, call the function directly.

    Raises:
        TimeoutError: The loop was busy for too long.
    """
    try:
        is_here = loop is asyncio.get_running_loop()
    except RuntimeError:
        is_here = False
    if loop is None or is_here or not loop.is_running():
        return call()

    async def invoke() -> T:
        return call()

    return asyncio.run_coroutine_threadsafe(invoke(), loop).result(_LOOP_CALL_TIMEOUT)


class Lane(Executor):
    """Runs calls one after another, each in any free thread of a pool that lanes share.

    After each call, the lane moves to the end of the pool's queue, so that a busy lane does not
    block other lanes. Shut down the pool after all its lanes.
    """

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._changed = Condition()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._busy = False
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call a function after all earlier ones. Raises RuntimeError after a shutdown."""
        future: Future[T] = Future()
        with self._changed:
            if self._closed:
                raise RuntimeError("this lane is shut down")
            self._waiting.append((future, lambda: fn(*args, **kwargs)))
            if not self._busy:
                self._pool.submit(self._run_next)
                self._busy = True
        return future

    def _run_next(self) -> None:
        with self._changed:
            future, work = self._waiting.popleft()
        if future.set_running_or_notify_cancel():
            complete(future, work)
        del future, work  # they may reference large objects, and the next call may be much later
        with self._changed:
            if self._waiting:
                self._pool.submit(self._run_next)
            else:
                self._busy = False
                self._changed.notify_all()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls. The threads of the pool keep running."""
        with self._changed:
            self._closed = True
            if cancel_futures:
                for future, _ in self._waiting:
                    future.cancel()
            if wait:
                self._changed.wait_for(lambda: not self._busy)


def complete(future: Future[T], work: Callable[[], T]) -> None:
    """Call a function, and set its result or error in a future."""
    try:
        result = work()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


class Tasks:
    """Runs tasks until they end or are all cancelled. Calls `failed` if a task fails."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        self._running: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failed(error)

    async def cancel(self) -> None:
        """Cancel all tasks, and wait until they have ended."""
        while self._running:  # a task may start another while it is being cancelled
            running = list(self._running)
            for task in running:
                task.cancel()
            await asyncio.wait(running)
