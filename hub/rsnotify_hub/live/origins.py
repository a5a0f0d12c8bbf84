"""The web pages that may open a WebSocket or an event stream.

A browser lets any page open a WebSocket to any host, this machine included, and sends the page's
origin in `Origin` (RFC 6455 §10.2). An event stream it lets any page open too, but lets no page of
another origin read it unless the answer names that origin. Other clients send no `Origin`, and
could send any.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}


class Origins:
    """The allowed origins: the hub's own, by its public URL, and others."""

    def __init__(self, public_url: str, others: Iterable[str]) -> None:
        self._allowed = {_origin(each) for each in (public_url, *others)} - {None}

    def allows(self, origin: str | None, host: str) -> bool:
        """Return whether a page may connect, by the headers of its request.

        A page from the same host is allowed too, if the host is an address or localhost: any other
        name may have been pointed here (DNS rebinding).
        """
        if origin is None:
            return True
        found = _origin(origin)
        if found is None:
            return False
        return found in self._allowed or (_is_fixed(found[1]) and found == _origin(host, found[0]))


def _origin(text: str, scheme: str = "") -> tuple[str, str, int] | None:
    """Return scheme, host and port; None if they are missing."""
    try:
        parts = urlsplit(f"{scheme}://{text}" if scheme else text.strip())
        port = parts.port
    except ValueError:
        return None
    if parts.hostname is None or parts.scheme not in _PORTS:
        return None
    return parts.scheme, parts.hostname, port or _PORTS[parts.scheme]


def _is_fixed(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return host == "localhost"
    return True
