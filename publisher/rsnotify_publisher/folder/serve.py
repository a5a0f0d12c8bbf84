"""The files of a folder over HTTP, beside the documents that describe them."""

from __future__ import annotations

from urllib.parse import urlsplit

from aiohttp import hdrs, web

from rsnotify_publisher.folder.names import Names, media_type
from rsnotify_publisher.publisher import Publisher
from rsnotify_publisher.web import routes


def server(names: Names, publisher: Publisher) -> web.Application:
    """Make the application that serves a folder and its documents.

    Args:
        names: The folder and its URIs.
        publisher: Started by the caller.
    """
    prefix = urlsplit(names.base_url).path

    async def file(request: web.Request) -> web.StreamResponse:
        # The path as it was sent: decoded, an escaped slash would look like a real one.
        sent = request.raw_path.partition("?")[0]
        path = names.path_of(sent[len(prefix) :])
        if path is None or not names.is_published(path):
            raise web.HTTPNotFound
        return _Unaltered(path, headers={hdrs.CONTENT_TYPE: media_type(path)})

    app = web.Application()
    app.add_routes(routes(publisher, prefix))
    app.router.add_get(prefix + r"{name:[\s\S]+}", file)
    return app


class _Unaltered(web.FileResponse):
    """A file as it is: never a compressed one that happens to lie beside it."""

    def _get_file_path_stat_encoding(self, accept_encoding: str):  # type: ignore[no-untyped-def]
        return super()._get_file_path_stat_encoding("")
