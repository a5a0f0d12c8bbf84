"""Reads ResourceSync documents from bytes, with a streaming parser.

`SitemapReader.feed` accepts chunks as they arrive, and returns the resources completed by each, so
memory use does not grow with the document. Do not *apply* these resources before `close` returns,
because a truncated list looks valid until its end. Most callers use `read_document`, which reads
the whole document.

No resource may be lost silently. The reader therefore refuses a DOCTYPE (entities expand in
attributes even when they are not resolved), a root in another namespace (the list would look
empty), an entry without `loc`, and a malformed datetime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import signature
from typing import Any

from lxml import etree
from msgspec.structs import replace

from rsnotify.errors import (
    DocumentError,
    InvalidDocument,
    MalformedDocument,
    TooLarge,
    WrongDocument,
)
from rsnotify.format.datetimes import parse_datetime
from rsnotify.format.model import RS_NS, SITEMAP_NS, ChangeType, Document, Link, Resource
from rsnotify.format.plain_form import FastReader, read_plain
from rsnotify.format.xml_parser import DEFAULT_LIMITS, DocumentLimits, ParserTarget, safe_parser

__all__ = ["DEFAULT_LIMITS", "DocumentLimits", "SitemapReader", "read_document", "with_resources"]

#: Number of bytes to parse at once. libxml2 refuses input larger than 10 MB, and small slices fit
#: into the CPU cache.
_SLICE_BYTES = 65_536
#: Maximum number of bytes to parse without finding an element or text. The parser itself refuses an
#: oversized tag or comment only after reading all of it.
_MAX_TOKEN_BYTES = 10_000_000


def read_document(
    data: bytes | Iterable[bytes],
    *,
    source: str | None = None,
    limits: DocumentLimits = DEFAULT_LIMITS,
) -> Document:
    """Read a whole document, in any encoding that it declares. Errors mention its `source`.

    Raises:
        DocumentError: The document is unacceptable.
    """
    if isinstance(data, bytes):
        if (document := read_plain(data, limits)) is not None:
            return document
        data = [data]
    reader = SitemapReader(limits)
    resources: list[Resource] = []
    try:
        for chunk in data:
            resources += reader.feed(chunk)
        head = reader.close()
    except DocumentError as error:
        raise (error.at(source) if source else error) from None
    return with_resources(head, resources)


def with_resources(head: Document, resources: Iterable[Resource]) -> Document:
    """Return the document with the resources that `SitemapReader.feed` returned."""
    return replace(head, resources=tuple(resources))


class SitemapReader:
    """A streaming reader of one document.

    Call `feed` with each chunk in order, then `close` once. Do not use the reader after an error.
    """

    def __init__(self, limits: DocumentLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._bytes = 0
        self._target = DocumentBuilder(limits)
        self._parser = safe_parser(self._target)
        self._fast = FastReader(limits, self._target.add, self._parse)
        self._bytes_without_progress = 0

    def feed(self, chunk: bytes) -> list[Resource]:
        """Read the next chunk, and return the resources that it completes, in document order.

        Raises:
            DocumentError: The document is unacceptable.
        """
        self._bytes += len(chunk)
        if self._bytes > self._limits.document_bytes:
            raise TooLarge(
                f"it is larger than {self._limits.document_bytes} bytes; the Source has to split"
                " it and list the parts in an index (core §6.2)"
            )
        try:
            for start in range(0, len(chunk), _SLICE_BYTES):
                self._fast.feed(chunk[start : start + _SLICE_BYTES])
        except etree.XMLSyntaxError as error:
            raise MalformedDocument(f"not well-formed XML: {error.msg}") from None
        completed = self._target.completed
        self._target.completed = []
        return completed

    def _parse(self, data: bytes) -> None:
        before = self._target.progress
        self._parser.feed(data)
        stuck = self._target.progress == before
        self._bytes_without_progress = self._bytes_without_progress + len(data) if stuck else 0
        if self._bytes_without_progress > _MAX_TOKEN_BYTES:
            raise TooLarge(f"it has a tag or a comment of more than {_MAX_TOKEN_BYTES} bytes")

    def close(self) -> Document:
        """End the input, and return the document without the resources that `feed` returned.

        Raises:
            MalformedDocument: The document is incomplete.
        """
        try:
            head = self._fast.close()
            if head is None:
                head = self._parser.close()
                self._check_namespaces()
        except etree.XMLSyntaxError as error:
            reason = f"it is truncated: {error.msg}" if self._bytes else "it is empty"
            raise MalformedDocument(reason) from None
        return head

    def _check_namespaces(self) -> None:
        """Raise the first namespace error, because libxml2 only logs these errors.

        Otherwise, an `rs:md` with an undeclared prefix would be ignored like a foreign element.
        """
        for error in self._parser.feed_error_log.filter_from_errors():
            if error.type != etree.ErrorTypes.WAR_NS_URI:  # a namespace name that is not a URI
                raise MalformedDocument(f"not well-formed XML: {error.message}, line {error.line}")


_SITEMAP = f"{{{SITEMAP_NS}}}"
_RS = f"{{{RS_NS}}}"
_MD = _RS + "md"
_LN = _RS + "ln"
_ROOTS = {_SITEMAP + "urlset": _SITEMAP + "url", _SITEMAP + "sitemapindex": _SITEMAP + "sitemap"}
_ENTRIES = frozenset(_ROOTS.values())
_TEXTS = {
    _SITEMAP + "loc": "uri",
    _SITEMAP + "lastmod": "lastmod",
    _SITEMAP + "changefreq": "changefreq",
}

#: Maximum number of digits of an integer, because it must fit into 64 bits.
_MAX_DIGITS = 18


def _integer(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text!r} is not a whole number")
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"{text[:_MAX_DIGITS]}… is too large")
    return int(text)


def _change(text: str) -> ChangeType:
    try:
        return ChangeType(text.strip().lower())  # some Sources write "Created"
    except ValueError:
        raise ValueError(f"{text!r} is not created, updated or deleted") from None


def _priority(text: str) -> int:
    number = _integer(text)
    if not 1 <= number <= 999_999:
        raise ValueError(f"{text!r} is not between 1 and 999999")
    return number


#: Converts an attribute to the value of a field; None keeps the string.
_Convert = Callable[[str], Any] | None


def _fields(**converters: _Convert) -> dict[str, tuple[str, _Convert]]:
    """Return the field and converter of each attribute. The field for `from` is `from_`."""
    return {field.rstrip("_"): (field, convert) for field, convert in converters.items()}


_DOCUMENT_MD = _fields(
    capability=None,
    at=parse_datetime,
    completed=parse_datetime,
    from_=parse_datetime,
    until=parse_datetime,
)
_CONTENT = _fields(encoding=None, hash=None, length=_integer, path=None, type=None)
_RESOURCE_MD = _DOCUMENT_MD | _CONTENT | _fields(change=_change, datetime=parse_datetime)
_LINK = _CONTENT | _fields(rel=None, href=None, modified=parse_datetime, pri=_priority)


class DocumentBuilder(ParserTarget[Document]):
    """The parser target, which reads the root, its children, and their children.

    Elements of other namespaces are ignored with their content. Attributes of other namespaces are
    kept.

    Attributes:
        completed: The resources that were read, until `SitemapReader.feed` returns them.
    """

    def __init__(self, limits: DocumentLimits) -> None:
        self.completed: list[Resource] = []
        self._limits = limits
        self._uri_length = limits.uri_length
        self._count = 0
        self._root: str | None = None
        self._entry_tag = ""
        self._document: dict[str, Any] = {}
        self._document_links: list[Link] = []
        self._entry: dict[str, Any] | None = None
        self._links: list[Link] = []
        self._text_of: str | None = None
        self._text: list[str] = []
        self._text_length = 0
        self._skipped = 0
        self._texts = 0
        #: Remaining number of characters and elements in the current entry, or outside of entries.
        self._characters_left = limits.entry_length
        self._elements_left = limits.entry_elements
        #: The remaining numbers outside of entries, while an entry is read.
        self._left_outside = (0, 0)

    # Called by the parser

    def doctype(self, name: str | None, public: str | None, system: str | None) -> None:
        raise MalformedDocument("it has a DOCTYPE, which is not allowed; remove it")

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._elements_left -= 1
        if self._elements_left < 0:
            most = self._limits.entry_elements
            raise self._too_large(f"it has more than {most} elements in one place")
        # Called for every element, so the most frequent cases are first.
        entry = self._entry
        if self._skipped:
            self._start_skipped()
        elif entry is not None and tag in _TEXTS and self._text_of is None:
            self._text_of = tag
            self._text = []
            self._text_length = 0
        elif entry is not None and tag == _MD:
            self._read(attributes, _RESOURCE_MD, entry, "rs:md")
        elif tag == self._entry_tag and entry is None:
            self._elements_left += 1  # counted as an entry instead
            self._start_entry()
        elif self._root is None:
            self._start_root(tag)
        elif tag == _LN:
            self._start_ln(attributes)
        elif tag == _MD:
            self._read(attributes, _DOCUMENT_MD, self._document, "rs:md")
        else:
            self._start_unknown(tag)

    def _count_entries(self, number: int) -> None:
        self._count += number
        if self._count > self._limits.entries:
            raise TooLarge(
                f"it has more than {self._limits.entries} entries; the Source has to split it"
                " and list the parts in an index (core §6.2)"
            )

    def _start_entry(self) -> None:
        self._count_entries(1)
        self._left_outside = (self._characters_left, self._elements_left)
        self._characters_left = self._limits.entry_length
        self._elements_left = self._limits.entry_elements
        self._entry = {}

    def _start_skipped(self) -> None:
        self._skipped += 1
        if self._skipped > self._limits.depth:
            raise self._too_large(f"it is nested deeper than {self._limits.depth} elements")

    def _start_root(self, tag: str) -> None:
        if tag not in _ROOTS:
            raise WrongDocument(
                f"its root element is {tag}, not a urlset or sitemapindex of {SITEMAP_NS}"
            )
        self._root = tag
        self._entry_tag = _ROOTS[tag]

    def _start_unknown(self, tag: str) -> None:
        if tag in _ENTRIES or tag in _ROOTS:
            # Ignoring it would silently lose resources.
            raise WrongDocument(f"{tag} is not allowed at this place in {self._root}")
        self._skipped = 1

    def _start_ln(self, attributes: dict[str, str]) -> None:
        links = self._document_links if self._entry is None else self._links
        if len(links) == self._limits.links:
            raise self._too_large(f"it has more than {self._limits.links} links")
        fields: dict[str, Any] = {}
        self._read(attributes, _LINK, fields, "rs:ln")
        if "href" not in fields or "rel" not in fields:
            raise self._invalid("an rs:ln has no href or no rel (core §7)")
        self._check_length(fields["href"])
        links.append(Link(**_with_tuple(fields)))

    def _read(
        self,
        attributes: dict[str, str],
        table: dict[str, tuple[str, _Convert]],
        into: dict[str, Any],
        element: str,
    ) -> None:
        name = ""
        try:
            for name, value in attributes.items():
                self._characters_left -= len(name) + len(value)
                known = table.get(name) or table.get(name.removeprefix(_RS))
                if known is not None:
                    field, convert = known
                    into[field] = convert(value) if convert is not None else value
                elif name[0] == "{":
                    into.setdefault("attributes", []).append((name, value))
        except ValueError as error:
            raise self._invalid(f"{element}/@{name}: {error}") from None
        if self._characters_left < 0:
            most = self._limits.entry_length
            raise self._too_large(f"it has attributes of more than {most} characters in one place")

    @property
    def progress(self) -> object:
        """A value that changes with each element and piece of text."""
        return self._count, self._elements_left, self._texts

    def data(self, text: str) -> None:
        self._texts += 1
        if self._text_of is None or self._skipped:
            return
        self._text.append(text)
        self._text_length += len(text)
        if self._text_length > self._uri_length:
            field = etree.QName(self._text_of).localname
            raise self._too_large(f"its {field} is longer than {self._uri_length} characters")

    def end(self, tag: str) -> None:
        if self._skipped:
            self._skipped -= 1
        elif tag == self._text_of:
            self._end_text(_TEXTS[tag])
        elif tag == self._entry_tag:
            self._end_entry()

    def add(self, resources: list[Resource]) -> None:
        """Add resources that `FastReader` has read without the parser."""
        self._count_entries(len(resources))
        self.completed += resources

    def _end_text(self, field: str) -> None:
        assert self._entry is not None
        self._text_of = None
        text = "".join(self._text).strip()
        if field == "lastmod":
            try:
                self._entry[field] = parse_datetime(text)
            except ValueError as error:
                raise self._invalid(f"lastmod: {error}") from None
        elif text:
            self._entry[field] = text

    def _end_entry(self) -> None:
        entry = self._entry
        assert entry is not None
        if "uri" not in entry:
            raise self._invalid("it has no loc (core §7)")
        if self._links:
            entry["links"] = tuple(self._links)
            self._links = []
        self.completed.append(Resource(**_with_tuple(entry)))
        self._entry = None
        self._characters_left, self._elements_left = self._left_outside

    def _check_length(self, uri: str) -> None:
        inline = uri.startswith("data:")
        limit = self._limits.inline_length if inline else self._limits.uri_length
        if len(uri) > limit:
            raise self._too_large(f"a URI is longer than {limit} characters")

    def _invalid(self, reason: str) -> InvalidDocument:
        return InvalidDocument(reason, entry=self._number)

    def _too_large(self, reason: str) -> TooLarge:
        return TooLarge(reason, entry=self._number)

    @property
    def _number(self) -> int | None:
        return self._count if self._entry is not None else None

    def close(self) -> Document:
        """Return the document without its resources."""
        return Document(
            capability=self._document.pop("capability", None),
            index=self._entry_tag == _SITEMAP + "sitemap",
            links=tuple(self._document_links),
            **_with_tuple(self._document),
        )


def _with_tuple(fields: dict[str, Any]) -> dict[str, Any]:
    if "attributes" in fields:
        fields["attributes"] = tuple(fields["attributes"])
    return fields


# lxml inspects the signature for each document. Without this, reading a fragment takes 25% longer.
DocumentBuilder.start.__signature__ = signature(  # type: ignore[attr-defined]
    DocumentBuilder.start
)
