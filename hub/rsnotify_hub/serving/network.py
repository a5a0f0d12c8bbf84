"""Where the hub listens."""

from __future__ import annotations

import socket
from ipaddress import IPv6Address, ip_address

from rsnotify.errors import ConfigurationError


def listen(host: str, port: int) -> socket.socket:
    """Take an address and port.

    Args:
        host: A name or address; the first address of a name is taken.
        port: A port; 0 takes a free one.

    Raises:
        ConfigurationError: They cannot be had.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family, backlog=1024)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(f"cannot listen on {host} port {port}: {reason}") from None


def url_of(listener: socket.socket) -> str:
    """Return the URL that a listening socket answers at."""
    host, port = listener.getsockname()[:2]
    if ip_address(host).is_unspecified:
        host = socket.gethostname()
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def is_loopback(address: str) -> bool:
    """Tell whether an address is this machine's own."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        return ip.ipv4_mapped.is_loopback
    return ip.is_loopback
