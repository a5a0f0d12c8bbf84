"""Blocking calls of many requests, made in threads together: a hand-over costs more than a call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

#: How many threads are used at a time, so that calls which block delay only a part of the others.
_THREADS = 4

_Call = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class SharedThreads:
    """Makes calls in threads; those that come while all are busy share the next one."""

    def __init__(self) -> None:
        self._waiting: list[_Call] = []
        self._busy = 0

    async def call(self, work: Callable[[], T]) -> T:
        """Return the result of a call in a thread, or raise its error."""
        loop = asyncio.get_running_loop()
        made: asyncio.Future[T] = loop.create_future()
        self._waiting.append((work, made))
        if len(self._waiting) == 1 and self._busy < _THREADS:
            self._busy += 1
            loop.call_soon(self._begin)  # with all that arrive in this iteration of the loop
        return await made

    def _begin(self) -> None:
        calls, self._waiting = self._waiting, []
        running = asyncio.get_running_loop().run_in_executor(None, _make, calls)
        running.add_done_callback(lambda done: self._end(calls, done.result()))

    def _end(self, calls: list[_Call], results: list[tuple[Any, BaseException | None]]) -> None:
        if self._waiting:
            self._begin()
        else:
            self._busy -= 1
        for (_, made), (result, error) in zip(calls, results, strict=True):
            if made.cancelled():  # the client hung up
                continue
            if error is None:
                made.set_result(result)
            else:
                made.set_exception(error)


def _make(calls: list[_Call]) -> list[tuple[Any, BaseException | None]]:
    return [_outcome(work) for work, _ in calls]


def _outcome(work: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    try:
        return work(), None
    except Exception as error:
        return None, error
