"""Connecting to a hub. The checks apply to each dialled address rather than to the name."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable

from rsnotify.errors import RefusedAddress
from rsnotify.runtime.addresses import Address, Dialer, any_socket
from rsnotify.sync.retry import Alternatives
from rsnotify_subscriber.fetching.sessions import NotPublic, guarded_socket

#: The addresses of hubs that failed in earlier attempts.
AddressMemory = Alternatives[Address]


class HubDialer:
    """Makes the TCP connection of one attempt to use a hub.

    `trusts` returns whether a host may be at any address.
    """

    def __init__(
        self, memory: AddressMemory, trusts: Callable[[str | None], Awaitable[bool]]
    ) -> None:
        self._memory = memory
        self._trusts = trusts
        self._dialer = Dialer(memory, guarded_socket)

    async def dial(self, uri: str, host: str | None, port: int) -> socket.socket:
        """Return a socket connected to the first allowed address of a hub that answers.

        Raises:
            RefusedAddress: No address is allowed.
            OSError: No address answers in time.
        """
        if host is None:
            raise OSError("its URL has no host")
        if await self._trusts(host):
            self._dialer = Dialer(self._memory, any_socket)
        try:
            return await self._dialer.dial(host, port)
        except NotPublic as error:
            raise RefusedAddress(uri, str(error.strerror)) from None

    def failed(self) -> None:
        """Dial the other addresses first in the next attempt."""
        self._dialer.failed()
