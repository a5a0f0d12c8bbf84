"""Where a callback is: what is dialled for it, and how its request begins."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}
# What could end the request line or a header early, and what no URI has.
_UNSAFE = re.compile(r"[^\x21-\x7e]")


class CallbackOrigin(NamedTuple):
    """What is dialled.

    Args:
        secure: Whether TLS is spoken there.
        host: A name or an address, without brackets.
        port: The port.
    """

    secure: bool
    host: str
    port: int


class CallbackEndpoint(NamedTuple):
    """Where a request goes.

    Args:
        origin: What is dialled.
        opening: The request line and the Host header.
    """

    origin: CallbackOrigin
    opening: bytes


@lru_cache(maxsize=4096)
def endpoint_of(url: str) -> CallbackEndpoint:
    """Return where a POST to a URL goes, its target exactly as it was written.

    Raises:
        ValueError: It cannot be requested.
    """
    parts = urlsplit(url)
    if _UNSAFE.search(url) or parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError("this is not an absolute http or https URL")
    # A bare `?` at the end is a part of the target, but not of what urlsplit returns.
    authority, target = _split(url.partition("#")[0].partition("://")[2])
    host = authority.rpartition("@")[2].removesuffix(":")
    opening = f"POST {target} HTTP/1.1\r\nHost: {host}\r\n".encode()
    port = parts.port or _PORTS[parts.scheme]
    return CallbackEndpoint(CallbackOrigin(parts.scheme == "https", parts.hostname, port), opening)


def _split(rest: str) -> tuple[str, str]:
    """Split what follows the scheme into the authority and the target."""
    end = next((place for place, letter in enumerate(rest) if letter in "/?"), len(rest))
    authority, target = rest[:end], rest[end:]
    return authority, target if target.startswith("/") else "/" + target
