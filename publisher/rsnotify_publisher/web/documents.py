"""Responds to requests for the documents of a Source, with any server.

Most documents are served from their files. The open Change List and the channel are generated from
the journal, so that a response has every change that was durable when the request arrived. All code
in this module blocks, so it must run in threads.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rsnotify.errors import RsnotifyError
from rsnotify.format.links import format_links
from rsnotify.format.media_types import guess_media_type
from rsnotify.format.model import WELL_KNOWN_PATH, Rel
from rsnotify.format.writer import write_document
from rsnotify.runtime.web_messages import WebRequest, WebResponse, text_response
from rsnotify_publisher.description import SourceDescription, robots_lines
from rsnotify_publisher.documents.open_change_list import OpenChangeList
from rsnotify_publisher.publisher import Publisher
from rsnotify_publisher.source_context import SourceContext
from rsnotify_publisher.source_documents import (
    CHANGE_LIST,
    CHANGE_MEMORY,
    CHANNEL,
    DESCRIPTION,
    FRAMEWORK,
    OPEN_PART,
    PARTS,
    digest_of,
    is_final,
)
from rsnotify_publisher.view import View
from rsnotify_publisher.web.change_memory import change_memory
from rsnotify_publisher.web.responses import (
    LIVE,
    XML,
    Answer,
    Representation,
    file_representation,
    memory_representation,
    respond,
)

logger = logging.getLogger("rsnotify.publisher")

#: The file name extensions of closed documents, parts, packages, and the built-in views.
_SUFFIXES = (".xml", ".xml.gz", ".zip", ".json", ".ttl")
#: Headers of documents that never change.
_CLOSED = {"Cache-Control": "public, max-age=31536000, immutable"}
#: Scripts on any web page may read the views (IIIF Change Discovery §4.1).
_ANY_ORIGIN = {"Access-Control-Allow-Origin": "*"}


class DocumentPaths:
    """Maps paths on the host of the base URL to documents.

    A request for a document starts `source` if it is not running. `with_robots` adds robots.txt if
    the Source is at the root of its host.
    """

    def __init__(self, source: Publisher | SourceDescription, *, with_robots: bool) -> None:
        self._source = source
        self._is_part = re.compile(part_name(source)).fullmatch
        prefix = path_of(source)
        table = answers(source, prefix)
        if with_robots and prefix == "/":
            table["/robots.txt"] = robots(source)
        self._answers = {unquote(path): answer for path, answer in table.items()}

    def find(self, path: str) -> Answer | None:
        """Return the function that responds to requests for a path, or None for other paths."""
        folder, _, name = path.rpartition("/")
        found = self._answers.get(path) if name else None
        if found is None and self._is_part(name) is not None:
            found = self._answers.get(folder + "/")
        return None if found is None else partial(self._answer, found)

    def _answer(self, found: Answer, request: WebRequest) -> WebResponse:
        if request.method not in ("GET", "HEAD"):
            return text_response(405, headers={"Allow": "GET, HEAD"})
        try:
            self._source.start()
        except RsnotifyError as error:
            logger.error("answering the request for %s with 503: %s", request.path, error)
            return text_response(503)
        return found(request)


def part_name(source: Publisher | SourceDescription) -> str:
    """Return a pattern for the file names of closed documents, parts, packages and views."""
    suffixes = dict.fromkeys(_SUFFIXES)
    for publisher in [source] if isinstance(source, Publisher) else source.sets:
        suffixes |= {view.suffix: None for view in publisher.source.views.values()}
    return rf"[\w-]+(?:{'|'.join(map(re.escape, suffixes))})"


def answers(source: Publisher | SourceDescription, prefix: str) -> dict[str, Answer]:
    """Return the functions that respond to requests, keyed by path.

    A path that ends in a slash covers all parts below it. `prefix` is the path of the base URL.
    """
    table: dict[str, Answer] = {}
    if isinstance(source, Publisher):
        table |= _answers_of_set(source.source, prefix)
    else:
        for publisher in source.sets:
            below = path_of(publisher).removeprefix(path_of(source))
            table |= _answers_of_set(publisher.source, prefix + below)
        table[prefix + DESCRIPTION] = _constant(write_document(source.document()))
    # The well-known URI belongs to the host, not to the base URL (core §6.3.2).
    table[WELL_KNOWN_PATH] = table[prefix + DESCRIPTION]
    return table


def robots(source: Publisher | SourceDescription) -> Answer:
    """Return a function that serves a robots.txt with every Resource List (core §6.3.4)."""
    return _constant(robots_lines(source).encode(), {"Content-Type": "text/plain"})


def path_of(source: Publisher | SourceDescription) -> str:
    base_url = source.source.base_url if isinstance(source, Publisher) else source.base_url
    return urlsplit(base_url).path


def _answers_of_set(source: SourceContext, prefix: str) -> dict[str, Answer]:
    folder, documents = source.documents_folder, source.documents
    table = {prefix + name: _offered(folder / name, XML | LIVE) for name in documents.files}
    for view in source.views.values():
        headers = {"Content-Type": view.media_type} | _ANY_ORIGIN
        table[prefix + view.root] = _offered(folder / view.root, headers | LIVE)
    table[prefix + CHANGE_MEMORY] = change_memory(source)
    if (channel := documents.framework) is not None:
        links = _links(channel.topic, channel.hubs)
        table[prefix + FRAMEWORK] = _offered(folder / FRAMEWORK, XML | LIVE | links)
    fresh = _FreshList(source)
    load_open_part = partial(fresh.load, OpenChangeList.open_chunks)
    # Generated, because the file may lack changes that changelist.xml contained as a single list.
    table[prefix + OPEN_PART] = _loaded(load_open_part, XML | LIVE)
    table[prefix + PARTS] = _part(folder, {view.suffix: view for view in source.views.values()})
    load_list = partial(fresh.load, OpenChangeList.chunks)
    table[prefix + CHANGE_LIST] = _loaded(load_list, XML | LIVE)
    links = _links(documents.topic, documents.hubs)
    table[prefix + CHANNEL] = _loaded(load_open_part, XML | LIVE | links)
    return table


def _loaded(load: Callable[[], Representation], headers: dict[str, str]) -> Answer:
    return lambda request: respond(request, load, headers, compressible=True)


def _offered(path: Path, headers: dict[str, str]) -> Answer:
    """Return a function that responds with a document, or with 503 until it has been written."""
    respond_with_file = _loaded(lambda: file_representation(path), headers)

    def answer(request: WebRequest) -> WebResponse:
        response = respond_with_file(request)
        if response.status == 404:
            # A client that starts at the same time as the Source would give up after a 404.
            text = "503: this document has not been written yet; try again later"
            return text_response(503, text, {"Retry-After": "1"})
        return response

    return answer


def _links(topic: str, hubs: tuple[str, ...]) -> dict[str, str]:
    """Return the header that lets subscribers discover the hubs and the topic (WebSub §4)."""
    return {"Link": format_links([(Rel.SELF, topic), *((Rel.HUB, hub) for hub in hubs)])}


def _part(folder: Path, views: Mapping[str, type[View]]) -> Answer:
    """Return a function that responds with a file below PARTS. `views` are keyed by extension."""

    def answer(request: WebRequest) -> WebResponse:
        path = folder / PARTS / request.path.rpartition("/")[2]
        view = views.get(path.suffix)
        headers = XML
        if view is not None:
            headers = {"Content-Type": view.media_type} | _ANY_ORIGIN
        elif path.suffix not in (".xml", ".gz"):
            headers = {
                "Content-Type": guess_media_type(f"/{path.name}") or "application/octet-stream"
            }
        is_constant = is_final(path.name) and (view is None or not view.heads_change)
        # A `.xml.gz` is served as an XML document with a content coding, so that browsers display
        # it, and clients that cannot decompress it can read it.
        return respond(
            request,
            lambda: file_representation(path, is_gzip=path.suffix == ".gz"),
            headers | (_CLOSED if is_constant else LIVE),
            compressible=path.suffix not in (".gz", ".zip"),
        )

    return answer


def _constant(body: bytes, type_: dict[str, str] = XML) -> Answer:
    representation = memory_representation(digest_of(body), time.time(), [body])
    return _loaded(lambda: representation, type_ | LIVE)


class _FreshList:
    """The open Change List, which is updated from the journal for each request."""

    def __init__(self, source: SourceContext) -> None:
        self._open_journal = source.open_journal
        self._list = OpenChangeList(source.documents)
        self._lock = threading.Lock()

    def load(self, chunks: Callable[[OpenChangeList], list[bytes]]) -> Representation:
        with self._lock:
            with self._open_journal() as journal:
                self._list.refresh(journal)
            version, modified = self._list.version, self._list.through / 1e6
            return memory_representation(version, modified, chunks(self._list))
