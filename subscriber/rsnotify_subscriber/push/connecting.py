"""Connecting to a hub: the address that is dialled is checked, not the name."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from rsnotify.errors import RefusedAddress
from rsnotify_subscriber.fetching.connections import NotPublic, guarded_socket

#: The most seconds that connecting may take.
TIMEOUT = 10.0


async def dial(uri: str, host: str | None, port: int, *, trusted: bool) -> socket.socket:
    """Return a socket connected to the first allowed address of a hub that answers.

    Raises:
        RefusedAddress: The last address is refused; any is allowed for a host that is trusted.
        OSError: No address answers in time.
    """
    loop = asyncio.get_running_loop()
    failure = OSError("its host has no address")
    async with asyncio.timeout(TIMEOUT):
        for info in await loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
        ):
            try:
                sock = socket.socket(*info[:3]) if trusted else guarded_socket(info)
                return await _connected(sock, info[4])
            except OSError as error:
                failure = error
    if isinstance(failure, NotPublic):
        raise RefusedAddress(uri, str(failure.strerror))
    raise failure


async def _connected(sock: socket.socket, address: Any) -> socket.socket:
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock
