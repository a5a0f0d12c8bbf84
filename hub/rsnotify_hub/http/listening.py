"""The listening socket, and aiohttp's site for it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from ipaddress import ip_address

from aiohttp import web

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.listening import cannot_listen

#: How many connections the system queues before they are accepted.
BACKLOG = 1024


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on the first address of a name; port 0 chooses a free one."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        said = cannot_listen(host, port, error)
        raise ConfigurationError(f"{said}; choose another --host or --port") from None


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    if ip_address(host).is_unspecified:
        host = socket.gethostname()
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


class ProtocolSite(web.BaseSite):
    def __init__(
        self,
        runner: web.BaseRunner,
        listener: socket.socket,
        protocols: Callable[[], asyncio.Protocol],
    ) -> None:
        super().__init__(runner, backlog=BACKLOG)
        self._listener = listener
        self._protocols = protocols

    @property
    def name(self) -> str:
        return url_of(self._listener)

    async def start(self) -> None:
        await super().start()
        self._server = await asyncio.get_running_loop().create_server(
            self._protocols, sock=self._listener, backlog=self._backlog
        )
