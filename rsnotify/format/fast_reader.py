"""Reads the plain form of a document without an XML parser, and leaves the rest to the parser.

Most entries that a Destination reads are plain (`plain_form`). Everything else goes to the parser,
in document order.

Why the result is the same as the parser's: the document must begin in the plain form, so that its
encoding and prefixes are known. From there on each piece is either a plain entry or a sequence of
complete elements, which the parser checks. The first piece that is neither ends the shortcut, and
the parser reads the rest. So text within a comment, an attribute or another element never counts as
a plain entry. A document that is plain to its end needs no parser. `tests/core/test_fast_reader.py`
compares the two readers on arbitrary documents.

Why it takes linear time: text is matched only once the end of an entry has arrived, and only up
to that end, so that no byte is matched in two calls; and every repetition is possessive, so that
no expression backtracks.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from rsnotify.format.limits import DocumentLimits
from rsnotify.format.model import Document, Resource
from rsnotify.format.plain_form import PlainForm

# Without "<" within a tag or a text, nothing can begin or end there unnoticed.
_EMPTY = r"<rs:(?:md|ln) [^<>]*+(?<=/)>"
_TEXT = r"<(loc|lastmod|changefreq|priority)>[^<]*+</\1>"
_COMPLETE = re.compile(rf"(?:[ \t\r\n]++|{_EMPTY})++|<url>(?:[ \t\r\n]++|{_EMPTY}|{_TEXT})*+</url>")
#: The end tag of an entry; it begins like that of the document.
_END = b"</url>"
#: Other spellings of it, which only the parser can read.
_OTHER_END = re.compile(rb"</url[^>s]|:url[ \t\r\n>]")
_CLOSING = b"</urlset>"
#: Bytes that show whether a document begins in the plain form.
_LONGEST_OPENING = 2_048
#: Bytes that are buffered until an entry ends in them.
_MAX_PENDING = 65_536
#: How many more other entries than plain ones there may be before the shortcut costs more than it
#: saves.
_MAX_DETOURS = 100


class FastReader:
    """Splits a document into plain entries and the rest, and passes on both in document order."""

    def __init__(
        self,
        limits: DocumentLimits,
        on_entries: Callable[[list[Resource]], None],
        on_xml: Callable[[bytes], None],
    ) -> None:
        self._limits = limits
        self._on_entries = on_entries
        self._on_xml = on_xml
        #: The bytes since the last entry; no entry ends in them.
        self._pending: list[bytes] = []
        self._size = 0
        #: The last of the pending bytes, which may be the beginning of an end tag.
        self._tail = b""
        self._form: PlainForm | None = None
        #: The document without its entries, if that is plain.
        self._head: Document | None = None
        #: What the parser has to read before anything else.
        self._beginning = ""
        #: Whether the parser has read the beginning.
        self._is_parsed = False
        #: Whether the parser reads the rest.
        self._ended = False
        self._lines = 0
        self._detours = 0

    def feed(self, chunk: bytes) -> None:
        if self._ended:
            self._pass_on(chunk)
            return
        self._pending.append(chunk)
        self._size += len(chunk)
        if self._form is None and not self._begin():
            return
        unseen = self._tail + chunk
        if (start := unseen.rfind(_END)) >= 0:
            unseen = unseen[start + len(_END) :]
            self._read(self._size - len(unseen))
        self._tail = unseen[1 - len(_END) :]
        if self._size > _MAX_PENDING or self._detours > _MAX_DETOURS or _OTHER_END.search(unseen):
            self._end()

    def close(self) -> Document | None:
        """Return the document without its entries; None if the parser reads that."""
        if self._form is not None and self._head is None and not self._is_parsed:
            self._read(max(0, b"".join(self._pending).rfind(_CLOSING)))
        rest = b"".join(self._pending).strip(b" \t\r\n")
        if self._head is not None and not self._is_parsed and rest == _CLOSING:
            return self._head
        self._end()
        return None

    def _begin(self) -> bool:
        """Return whether it has begun in the plain form; end the shortcut if it cannot."""
        beginning = b"".join(self._pending)
        self._form = PlainForm.begin(beginning[:_LONGEST_OPENING].decode("latin-1"), self._limits)
        if self._form is not None:
            self._beginning = self._form.opening
            self._size -= len(self._beginning)
            self._pending = [beginning[len(self._beginning) :]]
            return True
        tags = beginning.count(b">")
        may_begin = tags == 0 or (tags == 1 and beginning.startswith(b"<?xml"))
        if not may_begin or self._size > _LONGEST_OPENING:
            self._end()
        return False

    def _end(self) -> None:
        """End the shortcut, and pass the pending bytes to the parser."""
        self._ended = True
        self._pass_on(b"".join(self._pending))
        self._pending = []

    def _read(self, size: int) -> None:
        """Read the first of the pending bytes, through the end of an entry."""
        data = b"".join(self._pending)
        try:
            text = data[:size].decode()
        except UnicodeDecodeError:
            self._end()
            return
        at = self._read_entries(text)
        self._pending = [text[at:].encode(), data[size:]]
        self._size = sum(map(len, self._pending))
        if at < len(text):
            self._end()

    def _read_entries(self, text: str) -> int:
        """Read the head and one entry after another, and return where the last one ends."""
        assert self._form is not None
        at = 0
        if self._head is None and not self._is_parsed and (head := self._form.head(text)):
            self._head, at = head
            self._beginning += text[:at]
        for_parser = at
        is_simple = text.isascii() and "&" not in text
        while at < len(text):
            read = self._form.entries(text, at, is_simple=is_simple)
            if read is None:
                break
            resources, end = read
            if resources:
                self._pass_on(text[for_parser:at].encode())
                self._on_entries(resources)
                self._lines += text.count("\n", at, end)
                self._detours -= len(resources)
                at = for_parser = end
            elif complete := _COMPLETE.match(text, at):
                at = complete.end()
                self._detours += complete[0].startswith("<url>")
            else:
                break
        self._pass_on(text[for_parser:at].encode())
        return at

    def _pass_on(self, xml: bytes) -> None:
        if not xml:
            return
        # With the line breaks that were not passed on, so that errors name the right line.
        xml = b"\n" * self._lines + xml
        self._lines = 0
        if not self._is_parsed:
            xml = self._beginning.encode() + xml
        self._is_parsed = True
        self._on_xml(xml)
