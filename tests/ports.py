"""A port that stays reserved while its owner does not listen on it."""

from __future__ import annotations

import socket
from weakref import finalize


def port_for(owner: object, host: str = "127.0.0.1", port: int = 0) -> int:
    """Return a port of loopback that stays reserved as long as its owner exists.

    Args:
        owner: The listener, which uses SO_REUSEADDR, and may stop and start again.
        host: Its address.
        port: The port; 0 for any that is free.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # It is bound and does not listen, so that connections to it are refused.
    holder.bind((host, port))
    finalize(owner, holder.close)
    bound: int = holder.getsockname()[1]
    return bound
