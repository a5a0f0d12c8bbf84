"""Reads entries in the form that rsnotify writes, without an XML parser.

Most entries that a Destination reads have one form: `<url>` with `loc`, `lastmod`, `rs:md` and
`rs:ln`, without escapes or other elements. One regular expression reads such a *plain entry*
several times as fast as a parser that calls back for each element. Everything else goes to the
parser, in document order.

Why the result is the same as the parser's: the document must begin as rsnotify begins one, so
that its encoding and prefixes are known. From there on each piece is either a plain entry or a
sequence of complete elements, which the parser checks. The first piece that is neither ends the
shortcut, and the parser reads the rest. So text within a comment, an attribute or another element
never counts as a plain entry. `tests/core/test_fast_reader.py` compares the two readers on
arbitrary documents.

Why it takes linear time: text is matched only once the end of an entry has arrived, and only up
to that end, so that no byte is matched in two calls; and every repetition is possessive, so that
no expression backtracks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from rsnotify.format.vocabulary import RS_NS, SITEMAP_NS

_DECLARATION = rb"<\?xml version=([\"'])1\.0\1 encoding=([\"'])(?:UTF|utf)-8\2 ?+\?>"
_ROOT = f'<urlset xmlns="{SITEMAP_NS}" xmlns:rs="{RS_NS}">'.encode()
_BEGINNING = re.compile(_DECLARATION)
_OPENING = re.compile(_DECLARATION + rb"[ \t\r\n]*+" + re.escape(_ROOT))
#: Bytes that show whether a document begins as ours.
_LONGEST_OPENING = 512
#: The attributes of `rs:md` that a plain entry may have, in the order of `writer`.
ATTRIBUTES = ("change", "datetime", "hash", "length", "path", "type")
# ASCII characters that need no escape; a byte beyond ASCII never matches.
_VALUE = r"[ !#-%'-;=?-~]*+"
_SPACE = r"[ \t\r\n]*+"
_ENTRY = re.compile(
    rf"<url>{_SPACE}<loc>([!#-%'-;=?-~]++)</loc>{_SPACE}"
    rf"(?:<lastmod>([0-9TZ:.-]++)</lastmod>{_SPACE})?+(?:<rs:md"
    + "".join(rf'(?: {name}="({_VALUE})")?+' for name in ATTRIBUTES)
    + rf' ?+/>{_SPACE})?+((?:<rs:ln(?: [a-z]++="{_VALUE}")++ ?+/>{_SPACE})*+)</url>{_SPACE}'
)
_LINK = re.compile(r"<rs:ln([^<>]*+)(?<=/)>")
_ATTRIBUTE = re.compile(r' ([a-z]++)="([^"]*+)"')
# Without "<" within a tag or a text, nothing can begin or end there unnoticed.
_EMPTY = r"<rs:(?:md|ln) [^<>]*+(?<=/)>"
_TEXT = r"<(loc|lastmod|changefreq|priority)>[^<]*+</\1>"
_COMPLETE = re.compile(rf"(?:[ \t\r\n]++|{_EMPTY})++|<url>(?:[ \t\r\n]++|{_EMPTY}|{_TEXT})*+</url>")
#: The beginning of the end tag of an entry, and of the document.
_END = b"</url"
#: Bytes that are buffered until an entry ends in them.
_MAX_PENDING = 65_536
#: How many more other entries than plain ones there may be before the shortcut costs more than it
#: saves.
_MAX_DETOURS = 100

#: Called with the URI, the `lastmod` and the `ATTRIBUTES` of one entry as written, None where
#: absent; and with the attributes of its links.
OnEntry = Callable[[Sequence[str | None], Sequence[dict[str, str]]], None]


class FastReader:
    """Splits a document into plain entries and the rest, and passes on both in document order."""

    def __init__(self, on_entry: OnEntry, on_xml: Callable[[bytes], None]) -> None:
        self._on_entry = on_entry
        self._on_xml = on_xml
        #: The bytes since the last entry; no entry ends in them.
        self._pending: list[bytes] = []
        self._size = 0
        #: The last of the pending bytes, which may be the beginning of an end tag.
        self._tail = b""
        self._begun = False
        #: Whether the parser reads the rest.
        self._ended = False
        self._lines = 0
        self._detours = 0

    def feed(self, chunk: bytes) -> None:
        if self._ended:
            self._on_xml(chunk)
            return
        self._pending.append(chunk)
        self._size += len(chunk)
        if not self._begun and not self._begin():
            return
        unseen = self._tail + chunk
        end = unseen.rfind(_END + b">") + len(_END) + 1
        if end > len(_END):
            self._read_entries(end - len(unseen))
            unseen = unseen[end:]
        self._tail = unseen[-len(_END) :]
        # The rest of a truncated end tag comes later. Any other form only the parser can read.
        unread = _END in unseen[:-1] or self._size > _MAX_PENDING
        if unread or self._detours > _MAX_DETOURS:
            self.close()

    def close(self) -> None:
        """End the shortcut, and pass the pending bytes to the parser."""
        self._ended = True
        self._pass_on(b"".join(self._pending))
        self._pending = []

    def _begin(self) -> bool:
        """Return whether the document has begun as one of ours; close if it cannot be one."""
        beginning = b"".join(self._pending)
        tags = beginning.count(b">")
        may_begin = tags == 0 or (tags == 1 and _BEGINNING.match(beginning))
        if opening := _OPENING.match(beginning):
            self._begun = True
            self._on_xml(opening[0])
            self._pending = [beginning[opening.end() :]]
            self._size -= opening.end()
        elif not may_begin or len(beginning) > _LONGEST_OPENING:
            self.close()
        return self._begun

    def _read_entries(self, end: int) -> None:
        """Read one entry after another, up to `end`, counted from the end of the pending bytes."""
        data = b"".join(self._pending)
        end += len(data)
        # One character per byte, so that positions in the text are positions in the bytes.
        text = data[:end].decode("latin-1")
        at = for_parser = 0
        while at < end:
            plain = _ENTRY.match(text, at)
            if plain is not None and (links := _links(plain[9])) is not None:
                self._pass_on(data[for_parser:at])
                self._on_entry(plain.groups(), links)
                for_parser = plain.end()
                self._lines += text.count("\n", at, for_parser)
                self._detours -= 1
                at = for_parser
            elif complete := _COMPLETE.match(text, at):
                at = complete.end()
                self._detours += complete[0].startswith("<url>")
            else:
                break
        self._pass_on(data[for_parser:at])
        self._pending = [data[at:]]
        self._size = len(data) - at
        if at < end:
            self.close()

    def _pass_on(self, xml: bytes) -> None:
        if xml:
            # With the line breaks that were not passed on, so that errors name the right line.
            self._on_xml(b"\n" * self._lines + xml)
            self._lines = 0


def _links(written: str) -> Sequence[dict[str, str]] | None:
    """Return the attributes of an entry's links; None if an attribute is repeated."""
    if not written:
        return ()
    found = [_ATTRIBUTE.findall(link) for link in _LINK.findall(written)]
    links = [dict(attributes) for attributes in found]
    return None if any(len(a) != len(b) for a, b in zip(found, links, strict=True)) else links
