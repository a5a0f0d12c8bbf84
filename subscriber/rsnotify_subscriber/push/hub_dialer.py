"""Connects to hubs, at allowed addresses only."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable

from rsnotify.errors import RefusedAddress
from rsnotify.runtime.addresses import Address, Dialer, any_socket
from rsnotify.sync.retry import Alternatives
from rsnotify_subscriber.fetching.sessions import NotPublic, guarded_socket

#: Which addresses of a hub failed, and are therefore tried last.
AddressMemory = Alternatives[Address]


class HubDialer:
    """Makes the TCP connection for one attempt to use a hub.

    `allows_any_address` is as in `Sessions`.
    """

    def __init__(
        self, memory: AddressMemory, allows_any_address: Callable[[str | None], Awaitable[bool]]
    ) -> None:
        self._memory = memory
        self._allows_any_address = allows_any_address
        self._dialer = Dialer(memory, guarded_socket)

    async def dial(self, uri: str, host: str | None, port: int) -> socket.socket:
        """Return a socket that is connected to the first allowed address that answers.

        Raises:
            RefusedAddress: No address is allowed.
            OSError: No address answers in time.
        """
        if host is None:
            raise OSError("the URL has no host")
        if await self._allows_any_address(host):
            self._dialer = Dialer(self._memory, any_socket)
        try:
            return await self._dialer.dial(host, port)
        except NotPublic as error:
            raise RefusedAddress(uri, str(error.strerror)) from None

    def failed(self) -> None:
        """Make the next attempt dial the other addresses first."""
        self._dialer.failed()
