"""Connects to a host that may have several addresses, some of which do not answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohappyeyeballs
import aiohttp
from aiohttp.connector import Connection

from rsnotify.sync.alternatives import Alternatives

#: The most seconds that connecting may take, at all addresses together.
TIMEOUT = 10.0
#: Seconds until the next address is tried, too, while one has not answered (RFC 8305 §8).
_HEAD_START = 0.25

#: An IP address and a port.
Address = tuple[str, int]


def any_socket(info: Any) -> socket.socket:
    """Return a socket for an address as `getaddrinfo` returns it."""
    return socket.socket(*info[:3])


def is_proxied(websocket: str) -> bool:
    """Return whether the environment names a proxy that `websockets` may use for a URI."""
    parts = urlsplit(websocket)
    schemes = {"wss": ("wss", "socks", "https")}.get(parts.scheme, ("ws", "socks", "https", "http"))
    names_one = any(scheme in getproxies() for scheme in schemes)
    return names_one and not proxy_bypass(parts.netloc)


class Dialer:
    """Makes the TCP connections of one attempt to use a service.

    Args:
        memory: Which addresses failed in earlier attempts.
        create: Creates a socket for an address, or raises OSError where it is not allowed.
    """

    def __init__(
        self,
        memory: Alternatives[Address] | None = None,
        create: Callable[[Any], socket.socket] = any_socket,
    ) -> None:
        self.memory: Alternatives[Address] = Alternatives() if memory is None else memory
        self._create = create
        self._dialled: dict[Address, None] = {}

    async def dial(self, host: str, port: int) -> socket.socket:
        """Return a socket connected to the first allowed address that answers.

        Raises:
            OSError: No address answers; if all failed alike, this is the error of each.
            TimeoutError: None answers in time.
        """
        requested = _cancellations()
        async with asyncio.timeout(TIMEOUT):
            try:
                found = await asyncio.get_running_loop().getaddrinfo(
                    host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
                )
                infos = {_address(info): info for info in found}
                order = self.memory.order(infos)
                connected = await aiohappyeyeballs.start_connection(
                    [infos[address] for address in order],
                    happy_eyeballs_delay=_HEAD_START,
                    socket_factory=self.create_socket,
                )
            # From aiohappyeyeballs and uvloop; ValueError also for what is no name of a host.
            except (RuntimeError, ValueError) as error:
                raise OSError(str(error)) from error
            if _cancellations() > requested:
                connected.close()
                raise asyncio.CancelledError
            return connected

    def create_socket(self, info: Any) -> socket.socket:
        """Return a socket for an address, and note that it is dialled."""
        sock = self._create(info)
        self._dialled[_address(info)] = None
        return sock

    def failed(self) -> None:
        """Put the addresses that were dialled behind all others in the next attempt."""
        for address in self._dialled:
            self.memory.failed(address)
        self._dialled.clear()


class Connector(aiohttp.TCPConnector):
    """Connects as aiohttp does, except that it never loses a cancellation."""

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[aiohttp.tracing.Trace],
        timeout: aiohttp.ClientTimeout,
    ) -> Connection:
        requested = _cancellations()
        connection = await super().connect(req, traces, timeout)
        if _cancellations() > requested:
            connection.close()
            raise asyncio.CancelledError
        return connection


def _cancellations() -> int:
    """Return how often the cancellation of this task was requested.

    `aiohappyeyeballs` loses one that comes while it ends its slower attempts after one connected;
    the task would go on, and whoever cancelled it wait for ever.
    """
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def _address(info: Any) -> Address:
    host, port = info[4][:2]
    return host, port
