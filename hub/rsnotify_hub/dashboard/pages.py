"""The dashboard over HTTP: its static files, and whether the user is an admin.

The page fetches all data from the public interfaces `GET /topics` and `GET /ws` and, for an admin,
from the admin API. So it needs no rights of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

_STATIC = Path(__file__).with_name("static")
_CONTENT_TYPES = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}

#: Only its own files and its own hub; no string becomes markup or code.
_CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types fragments",
    )
)
_PAGE_HEADERS = {
    "Cache-Control": "no-cache",  # revalidated each time, so that all files are of one version
    "Content-Security-Policy": _CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def add_dashboard(app: web.Application, *, is_admin: Callable[[web.Request], bool]) -> None:
    async def session(request: web.Request) -> web.Response:
        # Not 401: "no admin" is an answer here, not an error.
        headers = {"Cache-Control": "no-store"}
        return web.json_response({"admin": is_admin(request)}, headers=headers)

    app.router.add_get("/", _file(_STATIC / "index.html", "text/html"))
    app.router.add_get("/dashboard/session", session)
    for suffix, content_type in _CONTENT_TYPES.items():
        for path in _STATIC.glob("*" + suffix):
            app.router.add_get(f"/dashboard/{path.name}", _file(path, content_type))


def _file(path: Path, content_type: str) -> _Handler:
    headers = {**_PAGE_HEADERS, "Content-Type": f"{content_type}; charset=utf-8"}

    async def answer(request: web.Request) -> web.FileResponse:
        return web.FileResponse(path, headers=headers)

    return answer
