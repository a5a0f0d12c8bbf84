"""Taking a port before anything else is done, so that a wrong one is told of at once."""

from __future__ import annotations

import socket

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.listening import cannot_listen


def listen(host: str, port: int, options: str = "another --host or --port") -> socket.socket:
    """Return a socket that listens.

    Args:
        host: The address.
        port: The port; 0 takes a free one.
        options: What the user has to choose if it cannot be had.

    Raises:
        ConfigurationError: It cannot be had.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=512)
    except (OSError, OverflowError) as error:
        said = cannot_listen(host, port, error)
        raise ConfigurationError(f"{said}; choose {options}") from None


def address(host: str, listening: socket.socket) -> str:
    """Return the URL at which a socket is reached."""
    authority = f"[{host}]" if ":" in host else host
    return f"http://{authority}:{listening.getsockname()[1]}/"
