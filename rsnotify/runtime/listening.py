"""Opens listening sockets, before the modules that serve on them are imported."""

from __future__ import annotations

import socket

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.reasons import reason_of

#: Maximum number of connections that wait to be accepted.
BACKLOG = 1024


def listen(host: str, port: int, options: str = "another --host or --port") -> socket.socket:
    """Return a socket that listens on the first address of a host, or on all addresses for "".

    `options` is advice for the user if the port is unavailable.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else "it is not a host and a port"
        raise ConfigurationError(
            f"cannot listen on {host} port {port}: {reason}; choose {options}"
        ) from None


def address(host: str, listening: socket.socket) -> str:
    """Return the URL of a listening socket."""
    authority = f"[{host}]" if ":" in host else host
    return f"http://{authority}:{listening.getsockname()[1]}/"
