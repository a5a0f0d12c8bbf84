"""Lookups of names that never exist fail at once, as they do in the end.

Tests have hubs such as `http://hub.invalid/` that are never reached. A resolver sends each of these
names to a name server, which is outside of this machine, and waits 5 seconds for an answer that is
lost.
"""

from __future__ import annotations

import socket
from typing import Any

#: What RFC 2606 and RFC 6761 reserve.
_RESERVED = (".example", ".example.com", ".example.net", ".example.org", ".invalid", ".test")


def refuse() -> None:
    """Make lookups of reserved names fail in this process from now on."""
    real = socket.getaddrinfo

    def answer(host: Any, *arguments: Any, **options: Any) -> Any:
        name = host.decode("ascii", "replace") if isinstance(host, bytes) else host
        if name and f".{name.rstrip('.').lower()}".endswith(_RESERVED):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(host, *arguments, **options)

    socket.getaddrinfo = answer
