"""Connections to hosts that strangers name: each address is checked when it is dialled."""

from __future__ import annotations

import asyncio
import socket
import ssl
from functools import partial

import aiohappyeyeballs
from aiohttp.abc import ResolveResult

from rsnotify.runtime.http.connection import ConnectionOwner, HttpConnection, HttpOrigin
from rsnotify.runtime.http.response import Unreachable
from rsnotify_hub.http.address_resolver import AddressResolver
from rsnotify_hub.http.client import guarded_socket

#: How long one address is tried alone, in seconds (RFC 8305 §5).
_HEAD_START = 0.25


class CallbackDialer:
    def __init__(
        self,
        owner: ConnectionOwner,
        *,
        allow_private_addresses: bool,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._owner = owner
        self._lookups = AddressResolver()
        self._make_socket = None if allow_private_addresses else guarded_socket
        self._tls = tls or ssl.create_default_context()

    async def dial(self, origin: HttpOrigin) -> HttpConnection:
        """Open a connection; `Unreachable` says why there is none."""
        try:
            return await self._dial(origin)
        except (OSError, RuntimeError, ValueError) as error:  # from aiohappyeyeballs and uvloop
            raise Unreachable from error

    async def _dial(self, origin: HttpOrigin) -> HttpConnection:
        found = await self._lookups.resolve(origin.host, origin.port, socket.AF_UNSPEC)
        connected = await aiohappyeyeballs.start_connection(
            [
                (each["family"], socket.SOCK_STREAM, each["proto"], "", _address(each))
                for each in found
            ],
            happy_eyeballs_delay=_HEAD_START,
            interleave=1,
            socket_factory=self._make_socket,
        )
        # No certificate has the dot of the DNS root.
        name = origin.host.rstrip(".") if origin.secure else None
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                partial(HttpConnection, origin, self._owner),
                sock=connected,
                ssl=self._tls if origin.secure else None,
                server_hostname=name,
            )
        except BaseException:
            connected.close()
            raise
        return connection


def _address(found: ResolveResult) -> tuple[str, int] | tuple[str, int, int, int]:
    if found["family"] == socket.AF_INET6:
        return found["host"], found["port"], 0, 0
    return found["host"], found["port"]
