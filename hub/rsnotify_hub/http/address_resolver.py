"""Looking up the names that strangers gave, apart from all else that threads do.

A name whose server never answers holds a thread for as long as the system waits, which is many
seconds. In the threads that everybody shares, a handful of such names would hold up all work
that is done in threads, and each other lookup; and the end of the hub would wait for them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from threading import Semaphore, Thread
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

#: How many names are looked up at once.
THREADS = 128


class _Threads:
    """Threads that the end of the process does not wait for, as it does for an executor's.

    Args:
        most: How many there are at most.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._idle = Semaphore(0)
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        """Do something when a thread is free; return what becomes of it."""
        future: Future[Any] = Future()
        self._work.put((future, work))
        if not self._idle.acquire(blocking=False) and self._count < self._most:
            self._count += 1
            Thread(target=self._run, name=f"hub-lookup-{self._count}", daemon=True).start()
        return future

    def _run(self) -> None:
        while True:
            future, work = self._work.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:
                    future.set_exception(error)
            self._idle.release()


_threads = _Threads(THREADS)


class AddressResolver(AbstractResolver):
    """Looks up names as the system does, in threads of its own."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the addresses of a host.

        Raises:
            OSError: It has none, or they cannot be had.
        """
        look_up = partial(
            socket.getaddrinfo,
            host,
            port,
            type=socket.SOCK_STREAM,
            family=family,
            flags=socket.AI_ADDRCONFIG,
        )
        found = await asyncio.wrap_future(_threads.submit(look_up))
        return [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=int(address[1]),
                family=kind,
                proto=protocol,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for kind, _, protocol, _, address in found
        ]

    async def close(self) -> None:
        """Let go of nothing: the threads are everybody's."""
