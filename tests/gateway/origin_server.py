"""A web server whose pages a test sets, and that answers conditional requests."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Self
from xml.sax.saxutils import escape

from aiohttp import web
from aiohttp.test_utils import TestServer

SITE = "https://site.example/"
NAMESPACE = 'xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"'


class Site:
    """Serves pages by path.

    Attributes:
        pages: The content of each path.
        statuses: A status, and header fields, instead of the content.
        headers: Header fields of each path, beside the content.
        requests: How often each path was requested, and how often it was answered with content.
        seen: The last request for each path.
        before: Called before a path is answered.
    """

    def __init__(self) -> None:
        self.pages: dict[str, bytes] = {}
        self.statuses: dict[str, tuple[int, Mapping[str, str]]] = {}
        self.headers: dict[str, Mapping[str, str]] = {}
        self.requests: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.seen: dict[str, web.Request] = {}
        self.before: Callable[[str], None] = lambda path: None
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        self._server = TestServer(app)

    async def __aenter__(self) -> Self:
        await self._server.start_server()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.close()

    def url(self, path: str = "/") -> str:
        return str(self._server.make_url(path))

    async def _answer(self, request: web.Request) -> web.Response:
        path = request.path
        self.before(path)
        self.requests[path] += 1
        self.seen[path] = request
        if path in self.statuses:
            status, headers = self.statuses[path]
            return web.Response(status=status, headers=headers)
        if path not in self.pages:
            return web.Response(status=404)
        body = self.pages[path]
        tag = f'"{sha256(body).hexdigest()[:16]}"'
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers={"ETag": tag})
        self.sent[path] += 1
        headers = {"ETag": tag, "Content-Type": "application/xml", **self.headers.get(path, {})}
        return web.Response(body=body, headers=headers)


def sitemap(entries: Mapping[str, str | None], extra: str = "") -> bytes:
    """Return a Sitemap of URIs and their lastmod."""
    urls = "".join(
        f"<url><loc>{escape(uri)}</loc>{f'<lastmod>{at}</lastmod>' if at else ''}</url>"
        for uri, at in entries.items()
    )
    return f'<?xml version="1.0"?><urlset {NAMESPACE}>{extra}{urls}</urlset>'.encode()


def index(parts: Iterable[str]) -> bytes:
    files = "".join(f"<sitemap><loc>{escape(part)}</loc></sitemap>" for part in parts)
    return f'<?xml version="1.0"?><sitemapindex {NAMESPACE}>{files}</sitemapindex>'.encode()


def atom(entries: Sequence[tuple[str, str]], older: str = "", rel: str = "next") -> bytes:
    """Return a feed of entries, as name and title, newest first."""
    link = f'<link rel="{rel}" href="{older}"/>' if older else ""
    items = "".join(
        f"<entry><id>urn:{name}</id><title>{title}</title><link href='{SITE}{name}'/>"
        "<updated>2026-11-02T10:00:00Z</updated></entry>"
        for name, title in entries
    )
    return (
        f'<feed xmlns="http://www.w3.org/2005/Atom"><title>F</title>{link}{items}</feed>'.encode()
    )


def zipped(document: bytes) -> bytes:
    return gzip.compress(document, mtime=0)
