"""Serves the dashboard: its static files, and whether the user is an admin.

The dashboard needs no special rights. It reads the public `GET /topics` and `GET /ws`, and for an
admin, the admin API.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

from rsnotify.runtime.serving import PAGE_HEADERS

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_STATIC = Path(__file__).with_name("static")
_CONTENT_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

#: Only the pages' Trusted Types policy `fragments` may turn strings into markup.
_POLICY = PAGE_HEADERS["Content-Security-Policy"].replace(
    "trusted-types 'none'", "trusted-types fragments"
)


def add_dashboard_routes(app: web.Application, *, is_admin: Callable[[web.Request], bool]) -> None:
    async def session(request: web.Request) -> web.Response:
        # Not 401, because it is not an error if the user is not an admin.
        headers = {"Cache-Control": "no-store"}
        return web.json_response({"admin": is_admin(request)}, headers=headers)

    app.router.add_get("/", _file(_STATIC / "index.html", "text/html"))
    app.router.add_get("/dashboard/session", session)
    for suffix, content_type in _CONTENT_TYPES.items():
        for path in _STATIC.rglob("*" + suffix):
            name = path.relative_to(_STATIC).as_posix()
            app.router.add_get(f"/dashboard/{name}", _file(path, content_type))


def _file(path: Path, content_type: str) -> _Handler:
    headers = {
        **PAGE_HEADERS,
        "Content-Security-Policy": _POLICY,
        "Content-Type": f"{content_type}; charset=utf-8",
    }

    async def answer(request: web.Request) -> web.FileResponse:
        return web.FileResponse(path, headers=headers)

    return answer
