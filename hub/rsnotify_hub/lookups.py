"""Looking up the names that strangers gave, apart from all else that threads do.

A name whose server never answers holds a thread for as long as the system waits, which is many
seconds. In the threads that everybody shares, a handful of such names would hold up all work
that is done in threads, and each other lookup.
"""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from aiohttp.abc import AbstractResolver, ResolveResult

#: How many names are looked up at once.
THREADS = 128

_threads = ThreadPoolExecutor(THREADS, thread_name_prefix="hub-lookup")


class Lookups(AbstractResolver):
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
        found = await asyncio.get_running_loop().run_in_executor(_threads, look_up)
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
