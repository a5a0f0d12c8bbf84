"""What a request says of whoever sent it."""

from __future__ import annotations

from urllib.parse import urlsplit

from aiohttp import HttpVersion11, web

from rsnotify_hub.access.clients import is_loopback

#: What proxies add, and no program on this machine would.
_PROXIED = ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via")


def bearer(request: web.Request) -> str | None:
    """Return the bearer token of a request (RFC 6750 §2.1), if it has one."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def is_direct(request: web.Request) -> bool:
    """Tell whether it came from this machine without a proxy, which may act for anybody.

    A proxy that adds no header of its own speaks HTTP/1.0, as nginx does unless told otherwise.
    """
    if request.version < HttpVersion11 or any(name in request.headers for name in _PROXIED):
        return False
    return is_loopback(request.remote or "")


def is_program(request: web.Request) -> bool:
    """Tell whether no browser sent it: a browser may act for any page."""
    return "Origin" not in request.headers and "Sec-Fetch-Site" not in request.headers


def has_local_name(request: web.Request) -> bool:
    """Tell whether it asked for this machine as itself, by `Host`.

    A page whose name was made to lead here (DNS rebinding) has that name there, and is of the
    hub's own origin for its browser.
    """
    try:
        host = urlsplit(f"//{request.host}").hostname or ""
    except ValueError:
        return False
    return host == "localhost" or is_loopback(host)


def is_own_page(request: web.Request) -> bool:
    """Tell whether a program, or a page of this hub under a local name, sent it."""
    if not has_local_name(request):
        return False
    if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        return False
    origin = request.headers.get("Origin")
    return origin is None or origin.lower() == f"http://{request.host}".lower()
