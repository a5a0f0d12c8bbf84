"""POST to callbacks, on connections that are kept."""

from __future__ import annotations

import ssl

from rsnotify_hub.websub.delivery.posting.connection import CallbackConnection, Done
from rsnotify_hub.websub.delivery.posting.dialer import CallbackDialer
from rsnotify_hub.websub.delivery.posting.pool import ConnectionPool
from rsnotify_hub.websub.delivery.posting.replies import HttpReply, Stale
from rsnotify_hub.websub.delivery.posting.request_head import endpoint_of


class Poster:
    """Makes POST requests. How long one may take, and how many there are at once, is for others
    to say: one that is cancelled leaves nothing behind.

    Args:
        allow_private_addresses: Whether to dial any address.
        tls: How TLS is spoken; by default with the certificates that the system trusts.
        pool: Keeps connections; by default with the usual bounds.

    Attributes:
        pool: Keeps connections.
    """

    def __init__(
        self,
        *,
        allow_private_addresses: bool,
        tls: ssl.SSLContext | None = None,
        pool: ConnectionPool | None = None,
    ) -> None:
        self.pool = ConnectionPool() if pool is None else pool
        self._dialler = CallbackDialer(
            self.pool, allow_private_addresses=allow_private_addresses, tls=tls
        )

    def begin(self, url: str, head: bytes, body: bytes, done: Done) -> CallbackConnection | None:
        """Make a request where a connection waits for one (`post` makes one in any case).

        Args:
            url: Where to, exactly.
            head: All headers but Host, each with the end of its line.
            body: The content, of the length that the head says.
            done: Called once, later, with the answer; or with what `CallbackConnection.send` says.

        Returns:
            The connection, to cancel the request with; None where nothing was sent.

        Raises:
            ValueError: The URL cannot be requested.
        """
        origin, opening = endpoint_of(url)
        connection = self.pool.take(origin)
        if connection is None or not connection.send(opening + head + b"\r\n", body, done):
            return None
        return connection

    async def post(self, url: str, head: bytes, body: bytes) -> HttpReply:
        """Make a request; once again where a connection that was kept had ended (RFC 9110 §9.2.2:
        whoever takes notifications must bear one that comes twice).

        Args:
            url: Where to, exactly.
            head: All headers but Host, each with the end of its line.
            body: The content, of the length that the head says.

        Raises:
            ValueError: The URL cannot be requested.
            Unreachable: No connection could be made.
            NoReply: There is no answer that can be understood.
            OSError: The connection has failed.
        """
        origin, opening = endpoint_of(url)
        head = opening + head + b"\r\n"
        connection = self.pool.take(origin)
        if connection is not None:
            try:
                return await connection.post(head, body)
            except Stale:
                pass
        connection = await self._dialler.dial(origin)
        return await connection.post(head, body)

    def close(self) -> None:
        """End all connections that nobody uses."""
        self.pool.close()
