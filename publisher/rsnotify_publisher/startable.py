"""Services that are started and closed, by methods or by `with` and `async with`."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread  # registers its hook first
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Self

#: How many services are closed at the same time.
_AT_ONCE = 8


class Startable(ABC):
    """Runs from `start` to `close`, or within `with` or `async with`."""

    @abstractmethod
    def start(self) -> None:
        """Start; a second call does nothing."""

    @abstractmethod
    def close(self) -> None:
        """End in order; does nothing unless it runs."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)


class Stoppable(Startable):
    """Can begin to end before `close`, so that several end at the same time."""

    @abstractmethod
    def stop(self) -> None:
        """Begin to end; `close` waits for it."""


#: What runs, and is closed at the end of the program.
running: set[Stoppable] = set()


def close_all(services: Iterable[Stoppable]) -> None:
    """Close several services at the same time, each in its order."""
    services = list(services)
    for service in services:
        service.stop()
    # Each waits for the disk.
    with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as threads:
        for closed in [threads.submit(service.close) for service in services]:
            closed.result()


# Not by `atexit`, which comes only after the executors have ended that closing needs. The last
# registered hook is called first, so this comes before `concurrent.futures`, imported above.
# The hook that `concurrent.futures` itself uses has no public name; without it `atexit` must do.
getattr(threading, "_register_atexit", atexit.register)(lambda: close_all(running))
