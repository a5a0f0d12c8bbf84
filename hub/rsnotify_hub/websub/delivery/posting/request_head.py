"""Where a request to a callback goes, and the bytes of its head."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import urlsplit

from rsnotify.runtime.http.connection import HttpOrigin
from rsnotify_hub.http.client import USER_AGENT

_PORTS = {"http": 80, "https": 443}
# What could end the request line or the Host header early, or is no character of a URI.
_UNSAFE_IN_URL = re.compile(r"[^\x21-\x7e]")
# What would end a header early (RFC 9110 §5.5).
_UNSAFE_IN_HEADER = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class CallbackEndpoint(NamedTuple):
    """Where a request goes, with its request line and Host header."""

    origin: HttpOrigin
    opening: bytes


def endpoint_of(url: str) -> CallbackEndpoint:
    """Return where a POST to a URL goes, with the target exactly as it is written."""
    parts = urlsplit(url)
    if _UNSAFE_IN_URL.search(url) or parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError("this is not an absolute http or https URL")
    # A bare `?` at the end belongs to the target, but urlsplit drops it.
    authority, target = _split(url.partition("#")[0].partition("://")[2])
    host = authority.rpartition("@")[2].removesuffix(":")
    opening = f"POST {target} HTTP/1.1\r\nHost: {host}\r\n".encode()
    port = parts.port or _PORTS[parts.scheme]
    return CallbackEndpoint(HttpOrigin(parts.scheme == "https", parts.hostname, port), opening)


def _split(rest: str) -> tuple[str, str]:
    end = next((index for index, letter in enumerate(rest) if letter in "/?"), len(rest))
    authority, target = rest[:end], rest[end:]
    return authority, target if target.startswith("/") else "/" + target


def common_head(*headers: tuple[str, str], size: int) -> bytes:
    own = (
        ("Accept", "*/*"),
        ("Accept-Encoding", "identity"),
        ("User-Agent", USER_AGENT),
        ("Content-Length", str(size)),
    )
    return b"".join(_header(name, value) for name, value in (*headers, *own))


def _header(name: str, value: str) -> bytes:
    if _UNSAFE_IN_HEADER.search(value):
        raise ValueError(f"the value of {name} has a character that a header cannot have")
    return f"{name}: {value}\r\n".encode()
