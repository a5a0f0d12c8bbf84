"""A port that nobody else is given while whose it is does not listen on it."""

from __future__ import annotations

import socket
from weakref import finalize


def port_for(owner: object) -> int:
    """Return a port of loopback that is kept for somebody as long as it is there.

    Args:
        owner: Who listens on it, with SO_REUSEADDR, and may go away and come back.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # It is bound and does not listen, so that connections to it are refused.
    holder.bind(("127.0.0.1", 0))
    finalize(owner, holder.close)
    port: int = holder.getsockname()[1]
    return port
