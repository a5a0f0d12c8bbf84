"""Decides which web pages may connect, by their origin.

A browser allows a page to open a WebSocket to any host, including this machine, and sends the
page's origin in `Origin` (RFC 6455 §10.2). It also allows any page to open an event stream, but
hides the content from a page of another origin unless the response names that origin. The hub
therefore refuses both to pages of unknown origins. Other clients send no `Origin`, or may forge it.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}


class Origins:
    """The allowed origins: the origin of the hub's public URL, and others."""

    def __init__(self, public_url: str, others: Iterable[str]) -> None:
        self._allowed = {_origin(each) for each in (public_url, *others)} - {None}

    def allows(self, origin: str | None, host: str) -> bool:
        """Return whether a page may connect, given the `Origin` and host of its request.

        A page from the same host may also connect if the host is an IP address or `localhost`. An
        attacker may have pointed any other name to this machine (DNS rebinding).
        """
        if origin is None:
            return True
        found = _origin(origin)
        if found is None:
            return False
        return found in self._allowed or (_is_fixed(found[1]) and found == _origin(host, found[0]))


def _origin(text: str, scheme: str = "") -> tuple[str, str, int] | None:
    """Return the scheme, host and port of an origin; None if it is not a valid HTTP origin."""
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
