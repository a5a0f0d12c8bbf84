"""Writing to the socket of a transport directly, which costs a tenth less than through it.

It is permitted only while the transport is neither closing nor has data of its own to write.
"""

from __future__ import annotations

import asyncio
import os

_SOCKETS_ARE_FILES = os.name == "posix"


def descriptor_of(transport: asyncio.BaseTransport) -> int:
    """Return the file descriptor of a transport's socket; -1 where sockets are no files."""
    socket = transport.get_extra_info("socket") if _SOCKETS_ARE_FILES else None
    return -1 if socket is None else socket.fileno()
