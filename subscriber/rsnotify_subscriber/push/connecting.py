"""Connecting to a hub: the address that is dialled is checked, not the name."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from rsnotify_subscriber.fetching.connections import guarded_socket

#: The most seconds that connecting may take.
TIMEOUT = 10.0


async def dial(host: str | None, port: int, *, trusted: bool) -> socket.socket:
    """Return a socket connected to the first allowed address that answers.

    Args:
        host: The host.
        port: The port.
        trusted: Whether the host may be at any address, and not only at public ones.

    Raises:
        OSError: No address answers in time, or none is allowed (`NotPublic`).
    """
    make: Callable[[Any], socket.socket] = _any_socket if trusted else guarded_socket
    loop = asyncio.get_running_loop()
    failure = OSError("its host has no address")
    async with asyncio.timeout(TIMEOUT):
        for info in await loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
        ):
            try:
                return await _connected(make(info), info[4])
            except OSError as error:
                failure = error
    raise failure


def _any_socket(info: Any) -> socket.socket:
    return socket.socket(*info[:3])


async def _connected(sock: socket.socket, address: Any) -> socket.socket:
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock
