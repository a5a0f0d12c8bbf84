"""Dialling what strangers named: each address is checked when it is dialled."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import partial

import aiohappyeyeballs
from aiohttp.abc import ResolveResult

from rsnotify_hub.http.address_resolver import AddressResolver
from rsnotify_hub.http.client import guarded_socket
from rsnotify_hub.websub.delivering.posting.connection import Connection, Keeper
from rsnotify_hub.websub.delivering.posting.places import Origin
from rsnotify_hub.websub.delivering.posting.replies import Unreachable

#: How long one address is tried alone, in seconds (RFC 8305 §5).
_HEAD_START = 0.25


class Dialler:
    """Opens connections.

    Args:
        keeper: Who keeps them.
        allow_private_addresses: Whether to dial any address.
        tls: How TLS is spoken; by default with the certificates that the system trusts.
    """

    def __init__(
        self,
        keeper: Keeper,
        *,
        allow_private_addresses: bool,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._keeper = keeper
        self._lookups = AddressResolver()
        self._make_socket = None if allow_private_addresses else guarded_socket
        self._tls = tls or ssl.create_default_context()

    async def dial(self, origin: Origin) -> Connection:
        """Open a connection.

        Raises:
            Unreachable: None can be made, or none may be.
        """
        try:
            return await self._dial(origin)
        except (OSError, RuntimeError, ValueError) as error:  # as aiohappyeyeballs and uvloop do
            raise Unreachable from error

    async def _dial(self, origin: Origin) -> Connection:
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
        return await self._open(origin, connected)

    async def _open(self, origin: Origin, connected: socket.socket) -> Connection:
        loop = asyncio.get_running_loop()
        make: Callable[[], Connection] = partial(Connection, origin, self._keeper)
        try:
            if not origin.secure:
                return (await loop.create_connection(make, sock=connected))[1]
            return (
                await loop.create_connection(
                    make,
                    sock=connected,
                    ssl=self._tls,
                    server_hostname=origin.host.rstrip("."),  # no certificate has the root's dot
                )
            )[1]
        except BaseException:
            connected.close()
            raise


def _address(found: ResolveResult) -> tuple[str, int] | tuple[str, int, int, int]:
    if found["family"] == socket.AF_INET6:
        return found["host"], found["port"], 0, 0
    return found["host"], found["port"]
