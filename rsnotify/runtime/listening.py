"""Listening on a port, before the program that serves on it is imported."""

from __future__ import annotations

import os
import socket

from rsnotify.errors import ConfigurationError


def cannot_listen(host: str, port: int, error: Exception) -> str:
    """Return a sentence with the reason why a port cannot be listened on."""
    reason = str(error)
    if isinstance(error, OSError) and error.errno is not None:
        # `strerror` may name the address once more; the resolver has numbers of its own below 0.
        known = os.strerror(error.errno) if error.errno > 0 else error.strerror or reason
        reason = known.partition(" (while")[0]
    return f"cannot listen on {host} port {port}: {reason}"


def listen(host: str, port: int, options: str = "another --host or --port") -> socket.socket:
    """Return a listening socket.

    Args:
        host: The address.
        port: The port; 0 for a free one.
        options: What the user should choose if the port is not available.
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
