"""Opening the port of a command first, so that a wrong one is reported at once."""

from __future__ import annotations

import socket

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.listening import cannot_listen


def listen(host: str, port: int, options: str = "another --host or --port") -> socket.socket:
    """Return a listening socket.

    Args:
        host: The address.
        port: The port; 0 for a free one.
        options: What the user should choose if the port is not available.

    Raises:
        ConfigurationError: The port is not available.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=512)
    except (OSError, OverflowError) as error:
        said = cannot_listen(host, port, error)
        raise ConfigurationError(f"{said}; choose {options}") from None


def address(host: str, listening: socket.socket) -> str:
    """Return the URL of a listening socket."""
    authority = f"[{host}]" if ":" in host else host
    return f"http://{authority}:{listening.getsockname()[1]}/"
