"""A short way past the XML parser, for entries in the very form in which rsnotify writes them.

Most of what a Destination reads are entries of one form: `<url>`, `loc`, `lastmod` and `rs:md`
without white space, escapes or other elements. A pattern reads these several times as quickly as
a parser calls back for each element. Everything else goes to the parser, in order.

Why this reads what the parser alone would read: the document must begin as rsnotify begins
one, so that encoding and prefixes are known. From there each piece is either a plain entry, or
elements that are complete in themselves, which the parser checks; the first piece that is
neither ends the short way for good, and what is left goes to the parser. So a plain entry is
never taken from within a comment, an attribute or another element. `tests/core/test_plainform.py`
compares the two on any document.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from rsnotify.vocabulary import RS_NS, SITEMAP_NS

_OPENING = re.compile(
    r"<\?xml version=([\"'])1\.0\1 encoding=([\"'])(?:UTF|utf)-8\2 ?\?>\s*"
    rf'<urlset xmlns="{re.escape(SITEMAP_NS)}" xmlns:rs="{re.escape(RS_NS)}">'
)
#: The attributes of `rs:md` that a plain entry may have, in the order in which they are written.
ATTRIBUTES = ("change", "datetime", "hash", "length", "path", "type")
# Of ASCII what needs no escape; a byte beyond ASCII never matches.
_VALUE = r"[ !#-%'-;=?-~]*"
_ENTRY = re.compile(
    r"<url><loc>([!#-%'-;=?-~]+)</loc>(?:<lastmod>([0-9TZ:.-]+)</lastmod>)?(?:<rs:md"
    + "".join(rf'(?: {name}="({_VALUE})")?' for name in ATTRIBUTES)
    + rf' ?/>)?((?:<rs:ln(?: [a-z]+="{_VALUE}")+ ?/>)*)</url>(\n?)'
)
_LINKS = len(ATTRIBUTES) + 3
_LINK = re.compile(r"<rs:ln([^<>]*)/>")
_ATTRIBUTE = re.compile(r' ([a-z]+)="([^"]*)"')
# No "<" within a tag or a text, so that nothing here can begin or end unseen.
_EMPTY = r"<rs:(?:md|ln) [^<>]*/>"
_TEXT = r"<(loc|lastmod|changefreq|priority)>[^<]*</\1>"
_COMPLETE = re.compile(rf"\s+|{_EMPTY}|<url>(?:\s+|{_EMPTY}|{_TEXT})*</url>")
#: How much is kept back while it is not clear what it is.
_MOST_PENDING = 65_536
#: How many more entries may be others than plain before the short way is a detour.
_PATIENCE = 100

#: Takes the URI, the `lastmod` and the `ATTRIBUTES` of one entry, as they are written, if at all;
#: and the attributes of its links.
OnEntry = Callable[[Sequence[str | None], Sequence[dict[str, str]]], None]


class PlainForm:
    """Splits a document into plain entries and the rest.

    Args:
        on_entry: Is called with each plain entry, in document order.
        on_xml: Is called with everything else, in document order.
    """

    def __init__(self, on_entry: OnEntry, on_xml: Callable[[bytes], None]) -> None:
        self._on_entry = on_entry
        self._on_xml = on_xml
        self._pending = b""
        self._begun = False
        self._left = False
        self._lines = 0
        self._detours = 0

    def feed(self, chunk: bytes) -> None:
        """Take the next piece of the document."""
        if self._left:
            self._on_xml(chunk)
            return
        data = self._pending + chunk
        # One byte, one character: a match says where it ends in the bytes.
        text = data.decode("latin-1")
        at = self._take(text, data, 0 if self._begun else self._begin(text, data))
        self._pending = data[at:]
        if self._is_other(self._pending):
            self.close()

    def _is_other(self, pending: bytes) -> bool:
        """Whether more bytes cannot make it plain; nothing complete may be kept back."""
        if not self._begun:
            return pending.count(b">") > 1
        stuck = b"</url" in pending or len(pending) > _MOST_PENDING
        return stuck or self._detours > _PATIENCE

    def close(self) -> None:
        """Leave the short way: hand on what was kept back."""
        self._left = True
        self._hand_on(self._pending)
        self._pending = b""

    def _begin(self, text: str, data: bytes) -> int:
        opening = _OPENING.match(text)
        if opening is None:
            return 0
        self._begun = True
        self._on_xml(data[: opening.end()])
        return opening.end()

    def _take(self, text: str, data: bytes, at: int) -> int:
        """Take piece after piece from a place on the top level; return where that ends."""
        for_parser = at
        while self._begun:
            plain = _ENTRY.match(text, at)
            links = () if plain is None else _links(plain[_LINKS])
            if plain is not None and links is not None:
                self._hand_on(data[for_parser:at])
                *values, _, line_end = plain.groups()
                self._on_entry(values, links)
                at = for_parser = plain.end()
                self._lines += len(line_end)
                self._detours -= 1
            elif complete := _COMPLETE.match(text, at):
                at = complete.end()
                self._detours += complete[0].startswith("<url>")
            else:
                break
        self._hand_on(data[for_parser:at])
        return at

    def _hand_on(self, xml: bytes) -> None:
        if xml:
            # With the lines that were not handed on, so that errors tell the right one.
            self._on_xml(b"\n" * self._lines + xml)
            self._lines = 0


def _links(written: str) -> Sequence[dict[str, str]] | None:
    """Read the links of an entry; None if the parser has to refuse them."""
    if not written:
        return ()
    found = [_ATTRIBUTE.findall(link) for link in _LINK.findall(written)]
    links = [dict(attributes) for attributes in found]
    return None if any(len(a) != len(b) for a, b in zip(found, links, strict=True)) else links
