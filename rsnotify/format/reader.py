"""Reading sitemaps: bytes in, `Resource`s as they complete, the `Document` at the end.

The reader streams: `feed` accepts chunks as they arrive and returns the resources that each chunk
completed, so memory does not grow with the document. Nothing that `feed` returned may be
*applied* before `close` has returned: a truncated list looks sound until its end. Most callers
use `read_document`, which follows that rule for them.
"""

from __future__ import annotations

from collections.abc import Iterable

from lxml import etree
from msgspec.structs import replace

from rsnotify.errors import DocumentError, MalformedDocument, TooLarge
from rsnotify.format.document_builder import DocumentBuilder
from rsnotify.format.fast_reader import FastReader
from rsnotify.format.limits import DEFAULT_LIMITS, DocumentLimits
from rsnotify.format.model import Document, Resource
from rsnotify.format.xml_parser import safe_parser

__all__ = ["DEFAULT_LIMITS", "DocumentLimits", "SitemapReader", "read_document", "with_resources"]

# libxml2 refuses a single piece of input beyond 10 MB; smaller ones also fit into the cache.
_SLICE = 65_536
#: Bytes that the parser may read without finding an element or a text. The parser itself refuses
#: a tag or a comment for its size only once it has read all of it.
_TOKEN_BYTES = 10_000_000


class SitemapReader:
    """A streaming reader of one document.

    Call `feed` with every chunk in order, then `close` once. After an error the reader cannot be
    used any more.
    """

    def __init__(self, limits: DocumentLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._bytes = 0
        self._target = DocumentBuilder(limits)
        self._parser = safe_parser(self._target)
        self._fast = FastReader(limits, self._target.add, self._parse)
        self._bytes_without_progress = 0

    def feed(self, chunk: bytes) -> list[Resource]:
        """Read the next chunk, and return the resources that it completed, in document order.

        Raises:
            DocumentError: The document cannot be accepted.
        """
        self._bytes += len(chunk)
        if self._bytes > self._limits.document_bytes:
            raise TooLarge(
                f"it is larger than {self._limits.document_bytes} bytes; the Source has to divide"
                " it and list the parts in an index (core §6.2)"
            )
        try:
            for start in range(0, len(chunk), _SLICE):
                self._fast.feed(chunk[start : start + _SLICE])
        except etree.XMLSyntaxError as error:
            raise MalformedDocument(f"not well-formed XML: {error}") from None
        completed = self._target.completed
        self._target.completed = []
        return completed

    def _parse(self, data: bytes) -> None:
        before = self._target.progress
        self._parser.feed(data)
        stuck = self._target.progress == before
        self._bytes_without_progress = self._bytes_without_progress + len(data) if stuck else 0
        if self._bytes_without_progress > _TOKEN_BYTES:
            raise TooLarge(f"it has a tag or a comment of more than {_TOKEN_BYTES} bytes")

    def close(self) -> Document:
        """End the input, and return the document without its resources, which `feed` returned.

        Raises:
            MalformedDocument: The input ended before the document did.
        """
        try:
            head = self._fast.close()
            if head is None:
                head = self._parser.close()
                self._check_namespaces()
        except etree.XMLSyntaxError as error:
            raise MalformedDocument(f"it ended too early: {error}") from None
        return head

    def _check_namespaces(self) -> None:
        """Raise the first error of namespaces, since libxml2 only logs those.

        An `rs:md` whose prefix is not declared would be ignored, like a foreign element.
        """
        for error in self._parser.feed_error_log.filter_from_errors():
            if error.type != etree.ErrorTypes.WAR_NS_URI:  # the name of a namespace that is no URI
                raise MalformedDocument(f"not well-formed XML: {error.message}, line {error.line}")


def read_document(
    data: bytes | Iterable[bytes],
    *,
    source: str | None = None,
    limits: DocumentLimits = DEFAULT_LIMITS,
) -> Document:
    """Read a whole document, in any encoding that it declares; errors name its `source`.

    Raises:
        DocumentError: The document cannot be accepted.
    """
    reader = SitemapReader(limits)
    resources: list[Resource] = []
    try:
        for chunk in [data] if isinstance(data, bytes) else data:
            resources += reader.feed(chunk)
        head = reader.close()
    except DocumentError as error:
        raise (error.at(source) if source else error) from None
    return with_resources(head, resources)


def with_resources(head: Document, resources: Iterable[Resource]) -> Document:
    """Return a document with the resources that `SitemapReader.feed` returned."""
    return replace(head, resources=tuple(resources))
