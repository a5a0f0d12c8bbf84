"""Serves the documents over HTTP, as a WSGI application around another one."""

from __future__ import annotations

from collections.abc import Iterable

from rsnotify.runtime.web.wsgi import (
    Environ,
    StartResponse,
    WSGIApplication,
    begin_response,
    wsgi_not_found,
    wsgi_request,
)
from rsnotify_publisher.description import SourceDescription
from rsnotify_publisher.publisher import Publisher
from rsnotify_publisher.web.documents import DocumentPaths


def wsgi_application(
    source: Publisher | SourceDescription, app: WSGIApplication | None = None
) -> WSGIApplication:
    """Return a WSGI application that serves the documents at the paths of their URLs.

    The first request for a document starts the Publisher, or those of all sets, in each worker
    process. They are closed at the end of the program.

    Args:
        source: A set of resources, or several.
        app: The application for all other paths; by default they are answered with 404.
    """
    paths = DocumentPaths(source, with_robots=app is None)
    others = app or wsgi_not_found

    def application(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        request = wsgi_request(environ)
        answer = paths.find(request.path)
        if answer is None:
            return others(environ, start_response)
        return begin_response(answer(request), environ, start_response)

    return application
