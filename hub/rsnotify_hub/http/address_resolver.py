"""Resolves host names that clients gave, in threads of its own.

A name whose server never answers blocks a thread for many seconds. In the shared thread pool, a
few such names would delay all other work and lookups, and the hub would wait for them when it
stops.
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

#: How many names are resolved at the same time.
THREADS = 128


class _Threads:
    """Daemon threads. Unlike an executor's, they do not keep the process from ending."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = 0
        self._idle = Semaphore(0)
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self._work.put((future, work))
        if not self._idle.acquire(blocking=False) and self._count < self._limit:
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
    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
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

    async def close(self) -> None: ...
