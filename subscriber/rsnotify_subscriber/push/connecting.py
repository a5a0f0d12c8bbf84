"""Connecting to a hub: the address dialled is looked at, not the name."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from rsnotify_subscriber.fetching.connections import guarded_socket

#: How long it may take, in seconds.
TIMEOUT = 10.0


async def dial(host: str | None, port: int, *, trusted: bool) -> socket.socket:
    """Connect to the first address that answers, of those that may be dialled.

    Args:
        host: The host.
        port: The port.
        trusted: Whether it may be at any address, and not only at public ones.

    Raises:
        OSError: None answers, or none may be dialled (`NotPublic`), or it takes too long.
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
