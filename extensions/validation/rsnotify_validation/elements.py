"""Reads the elements of a document with their line numbers.

This module uses Expat, unlike other modules, which use lxml, because only Expat knows the line of
every element during streaming. libxml2 counts lines only to 65,535 in some of its structures, and
lxml's parser targets get no lines at all. Reading is safe: it stops at a DOCTYPE, before any entity
is declared, and does not access the network.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol
from xml.parsers import expat

from msgspec import Struct

from rsnotify.format.model import RS_NS, SITEMAP_NS
from rsnotify.format.reader import DocumentLimits
from rsnotify.format.xml_parser import expat_parser

_ROOTS = {"urlset": "url", "sitemapindex": "sitemap"}
_TEXTS = frozenset({"loc", "lastmod", "changefreq", "priority"})
#: Separates namespace and name. No URI contains a space.
_SEPARATOR = " "
#: Expat rescans an incomplete tag with each slice of input. Slices are therefore large, and tags
#: are limited to a length that allows inline content.
_SLICE_BYTES = 65_536
_MAX_TAG_BYTES = 2_000_000


class Element(NamedTuple):
    """An element with its attributes. An attribute in a namespace is named `namespace name`."""

    attributes: dict[str, str]
    line: int


class TextElement(NamedTuple):
    """The text of an element, without surrounding white space."""

    text: str
    line: int


class EntryElement(Struct):
    """A `url` or `sitemap` element. `number` is its 1-based position."""

    line: int
    name: str
    number: int
    texts: dict[str, TextElement] = {}
    md: Element | None = None
    links: list[Element] = []

    def text(self, name: str) -> str | None:
        found = self.texts.get(name)
        return None if found is None else found.text

    def attribute(self, name: str) -> str | None:
        """Return an attribute of the entry's `rs:md`, or None if it is absent."""
        return None if self.md is None else self.md.attributes.get(name)

    @property
    def md_line(self) -> int:
        """The line of the entry's `rs:md`, or the entry's own line if there is none."""
        return self.line if self.md is None else self.md.line


class ElementListener(Protocol):
    """Receives the elements of a document, in document order, and the rules that they break.

    `head` receives each `rs:md` below the root, `link` each `rs:ln` below the root, and `entry`
    each complete entry.
    """

    def root(self, *, index: bool, line: int) -> None: ...
    def head(self, md: Element) -> None: ...
    def link(self, link: Element) -> None: ...
    def entry(self, entry: EntryElement) -> None: ...
    def report(
        self, rule: str, line: int, element: str, detail: str = "", entry: int | None = None
    ) -> None: ...


class _Stop(Exception):
    """Stops reading the document."""


class ElementReader:
    """Reads one document. Call `feed` with each chunk, and `close` once at the end.

    Attributes:
        bytes: The number of bytes received by `feed`.
        ended: Whether reading has ended, at the end of the document or because of an error.
        complete: Whether the document was read completely.
    """

    def __init__(self, listener: ElementListener, limits: DocumentLimits) -> None:
        self._listener = listener
        self._limits = limits
        self.bytes = 0
        self._parsed = 0
        self._pending = bytearray()
        self.ended = False
        self.complete = False
        self._entry_name = ""
        self._entry: EntryElement | None = None
        self._entries = 0
        self._links = 0
        #: How many more characters and elements the current entry, or the content outside of all
        #: entries, may have.
        self._characters_left = limits.entry_length
        self._elements_left = limits.entry_elements
        #: The numbers for the content outside of all entries, saved while an entry is read.
        self._left_outside = (0, 0)
        self._text_of = ""
        self._text_line = 0
        self._text: list[str] = []
        self._text_length = 0
        #: The current depth inside a child element of the root or of an entry; 0 if outside.
        self._depth = 0
        self._parser = expat_parser(_SEPARATOR)
        self._parser.buffer_text = True
        self._parser.StartDoctypeDeclHandler = self._doctype
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._data

    def feed(self, chunk: bytes) -> None:
        if self.ended:
            return
        self.bytes += len(chunk)
        self._pending += chunk
        while len(self._pending) >= _SLICE_BYTES and not self.ended:
            self._parse(bytes(self._pending[:_SLICE_BYTES]), final=False)
            del self._pending[:_SLICE_BYTES]

    def close(self) -> None:
        if not self.ended:
            self._parse(bytes(self._pending), final=True)
            self.complete = not self.ended
            self.ended = True

    def _parse(self, data: bytes, *, final: bool) -> None:
        self._parsed += len(data)
        try:
            if self._parsed > self._limits.document_bytes:
                raise self._beyond(f"more than {self._limits.document_bytes} bytes")
            self._parser.Parse(data, final)
            if self._parsed - self._parser.CurrentByteIndex > _MAX_TAG_BYTES:
                raise self._beyond(f"a tag of more than {_MAX_TAG_BYTES} bytes")
        except expat.ExpatError as error:
            self.ended = True
            self._report("not-well-formed", "document", expat.ErrorString(error.code))
        except (LookupError, ValueError) as error:
            # Python raises these for declared encodings that Expat cannot use.
            if self._entry_name:
                raise
            self.ended = True
            self._report("not-well-formed", "document", f"its encoding is not supported: {error}")
        except _Stop:
            self.ended = True

    def _beyond(self, what: str) -> _Stop:
        self._report("limit", "document", what)
        return _Stop()

    def _report(self, rule: str, element: str, detail: str = "") -> None:
        entry = None if self._entry is None else self._entry.number
        self._listener.report(rule, self._line, element, detail, entry)

    @property
    def _line(self) -> int:
        return self._parser.CurrentLineNumber

    def _doctype(self, name: str, system: str | None, public: str | None, internal: bool) -> None:
        self._report("doctype", "DOCTYPE")
        raise _Stop

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._elements_left -= 1
        if self._elements_left < 0:
            raise self._beyond(f"more than {self._limits.entry_elements} elements in one place")
        if self._depth:
            self._depth += 1
            if self._depth > self._limits.depth:
                raise self._beyond(f"elements nested deeper than {self._limits.depth}")
        elif not self._entry_name:
            self._start_root(name)
        elif self._entry is None:
            self._start_below_root(name, attributes)
        else:
            self._start_in_entry(self._entry, name, attributes)

    def _element(self, attributes: dict[str, str]) -> Element:
        """Return an element after checking the limit for its attributes."""
        self._characters_left -= sum(len(name) + len(value) for name, value in attributes.items())
        if self._characters_left < 0:
            most = self._limits.entry_length
            raise self._beyond(f"attributes of more than {most} characters in one place")
        return Element(attributes, self._line)

    def _start_root(self, name: str) -> None:
        namespace, local = _split(name)
        if namespace != SITEMAP_NS or local not in _ROOTS:
            self._report("root-element", _prefixed(name), f"it is {name!r}")
            raise _Stop
        self._entry_name = _ROOTS[local]
        self._listener.root(index=local == "sitemapindex", line=self._line)

    def _start_below_root(self, name: str, attributes: dict[str, str]) -> None:
        namespace, local = _split(name)
        if (namespace, local) == (SITEMAP_NS, self._entry_name):
            self._entries += 1
            self._left_outside = (self._characters_left, self._elements_left + 1)
            self._characters_left = self._limits.entry_length
            self._elements_left = self._limits.entry_elements
            self._entry = EntryElement(self._line, local, self._entries)
            self._links = 0
            if any(_SEPARATOR not in attribute for attribute in attributes):
                self._report("entry-attributes", local, ", ".join(attributes))
            return
        self._depth = 1
        if (namespace, local) == (RS_NS, "md"):
            self._listener.head(self._element(attributes))
        elif (namespace, local) == (RS_NS, "ln"):
            self._listener.link(self._link(attributes))
        else:
            self._start_unknown(name)

    def _start_in_entry(self, entry: EntryElement, name: str, attributes: dict[str, str]) -> None:
        namespace, local = _split(name)
        self._depth = 1
        if (namespace, local) == (RS_NS, "md"):
            if entry.md is not None:
                self._report("md-repeated", "rs:md")
            else:
                entry.md = self._element(attributes)
        elif (namespace, local) == (RS_NS, "ln"):
            entry.links.append(self._link(attributes))
        elif namespace == SITEMAP_NS and local in _TEXTS:
            if local in entry.texts:
                self._report("element-repeated", local)
            else:
                self._text_of, self._text_line = local, self._line
                self._text.clear()
                self._text_length = 0
        else:
            self._start_unknown(name)

    def _start_unknown(self, name: str) -> None:
        namespace, local = _split(name)
        if namespace == SITEMAP_NS and (local in _ROOTS or local in _ROOTS.values()):
            self._report("element-misplaced", local)
        elif namespace in (SITEMAP_NS, RS_NS, ""):
            self._report("element-unknown", _prefixed(name))

    def _link(self, attributes: dict[str, str]) -> Element:
        self._links += 1
        if self._links > self._limits.links:
            raise self._beyond(f"more than {self._limits.links} links in one place")
        return self._element(attributes)

    def _data(self, text: str) -> None:
        if not self._text_of:
            return
        self._text.append(text)
        self._text_length += len(text)
        if self._text_length > self._limits.uri_length:
            raise self._beyond(f"a text of more than {self._limits.uri_length} characters")

    def _end(self, name: str) -> None:
        entry = self._entry
        if self._depth:
            self._depth -= 1
            if not self._depth and self._text_of and entry is not None:
                text = "".join(self._text).strip()
                entry.texts[self._text_of] = TextElement(text, self._text_line)
                self._text_of = ""
        elif entry is not None:
            self._entry = None
            self._characters_left, self._elements_left = self._left_outside
            self._listener.entry(entry)


def _split(name: str) -> tuple[str, str]:
    namespace, _, local = name.rpartition(_SEPARATOR)
    return namespace, local


def _prefixed(name: str) -> str:
    namespace, local = _split(name)
    return f"rs:{local}" if namespace == RS_NS else local
