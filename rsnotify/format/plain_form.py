"""Reads documents in a plain form without an XML parser, and leaves all others to the parser.

A plain document has the root `urlset` with the usual prefixes, then links and `rs:md`, then
entries. A plain entry has `loc`, `lastmod`, `changefreq`, `priority` and `rs:md` in this order,
with `rs:ln` and elements of other namespaces before or after `rs:md`. Names and attributes have
only one spelling; whitespace is allowed between elements. Most entries are plain.

Why the result is the same as the parser's: the document must begin in the plain form, so its
encoding and prefixes are known. After that, each piece is either a plain entry or a sequence of
complete elements. Values contain no markup, no references except `&amp;`, `&lt;`, `&gt;`, `&quot;`
and `&apos;`, and no whitespace that the parser would change. Attributes of other namespaces are
read if their prefixes are declared on the root or on their element, and none occurs twice. libxml2
checks everything that is not read (elements of other namespaces, prefix declarations, another
root), for many entries at once: each piece must be well-formed by itself, between the start and end
tags of the root. Anything that is malformed, beyond a limit, doubtful, or uses a prefix other than
`rs` for our namespace is not plain. Then the shortcut ends: the parser reads the rest and reports
the error. Text within a comment, an attribute or another element therefore never counts as a plain
entry. `tests/core/test_fast_reader.py` compares the two readers on arbitrary documents.

Why it takes linear time: text is matched only when the end of an entry has arrived, and only up to
that end, so no byte is matched twice. All repetitions are possessive, so no expression backtracks.
Repeated groups are atomic as well, because Python before 3.11.5 continues after a possessive group
where the last, failed repetition ended (python/cpython#106052).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import TypeVar

from msgspec.structs import replace

from rsnotify.format.model import (
    RS_NS,
    SITEMAP_NS,
    Attributes,
    ChangeType,
    Document,
    Link,
    Resource,
)
from rsnotify.format.xml_parser import DocumentLimits, is_well_formed

_SPACE = r"[ \t\r\n]*+"
_NAME = r"[A-Za-z_][\w.-]*+"
# Values and tags exclude "<" and ">", so nothing can begin or end within them unnoticed.
_VALUE = r'[^\x00-\x1f"<>\ufffe\uffff]*+'
_FOREIGN_ATTRIBUTES = rf'((?> {_NAME}:{_NAME}="{_VALUE}")*+)'
#: Links, and elements of other namespaces with their text. The usual following tags are excluded
#: first, because this is fastest.
_MORE = rf"((?><(?!rs:md|/url>)/?+{_NAME}:[^<>]*+>[^<]*+)*+)"
# The forms of a W3C Datetime that `fromisoformat` parses correctly.
_DATETIME = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?>\.[0-9]{6})?+Z"
_COUNT = "[0-9]{1,18}+"


def _attributes(**forms: str) -> str:
    """Return an expression for optional attributes, in the order in which `writer` writes them."""
    return "".join(rf'(?> {name}="({form})")?+' for name, form in forms.items())


def _usual_link(value: str) -> str:
    # Matching such a link separately takes 1 µs longer.
    return rf'(?><rs:ln rel="({value})" href="({value})"(?> type="({value})")?+ ?+/>{_SPACE})?+'


def _entry(value: str, uri: str) -> re.Pattern[str]:
    md = _attributes(
        change="|".join(ChangeType),
        datetime=_DATETIME,
        encoding=value,
        hash=value,
        length=_COUNT,
        path=value,
        type=value,
    )
    return re.compile(
        rf"<url>{_SPACE}<loc>({uri})</loc>{_SPACE}(?><lastmod>({_DATETIME})</lastmod>{_SPACE})?+"
        rf"(?><changefreq>([a-z]{{1,32}}+)</changefreq>{_SPACE})?+"
        rf"(?><priority>[0-9.]++</priority>{_SPACE})?+{_MORE}"
        rf"(?><rs:md{md}{_FOREIGN_ATTRIBUTES} ?+/>{_SPACE})?+"
        rf"{_usual_link(value)}{_MORE}</url>{_SPACE}",
        re.ASCII,
    )


_URI = r"[^\x00-\x20<>\ufffe\uffff]++"
# An ASCII character class saves 0.25 µs per entry, an eighth.
_ASCII_ENTRY = _entry("[ !#-;=?-~]*+", "[!-;=?-~]++")
_ENTRY = _entry(_VALUE, _URI)
_LINK = re.compile(
    rf'<rs:ln rel="({_VALUE})" href="({_VALUE})"'
    + _attributes(
        encoding=_VALUE,
        hash=_VALUE,
        length=_COUNT,
        modified=_DATETIME,
        path=_VALUE,
        pri="[1-9][0-9]{0,5}+",
        type=_VALUE,
    )
    + rf"{_FOREIGN_ATTRIBUTES} ?+/>{_SPACE}",
    re.ASCII,
)
#: A link with its attributes in another order. Their names have a maximum length, because libxml2
#: refuses names of 50,000 characters.
_OTHER_LINK = re.compile(rf'<rs:ln((?> [a-z]{{1,64}}+="{_VALUE}")++) ?+/>{_SPACE}', re.ASCII)
_FOREIGN = re.compile(rf"(?></?(?!rs:){_NAME}:[^<>]*+>[^<]*+)++", re.ASCII)
_ATTRIBUTE = re.compile(r'[ \t\r\n]([\w.:-]++)="([^"]*+)"', re.ASCII)
_FOREIGN_ATTRIBUTE = re.compile(r' ([\w.-]++):([\w.-]++)="([^"]*+)"', re.ASCII)
#: Maximum length of an element's attributes of other namespaces, in characters, because libxml2
#: refuses names of 50,000 characters.
_MAX_ATTRIBUTES_LENGTH = 32_768
_LINK_NAMES = ["rel", "href", "encoding", "hash", "length", "modified", "path", "pri", "type"]
_DECLARATION = r"<\?xml version=([\"'])1\.0\1(?> encoding=([\"'])(?:UTF|utf)-8\2)?+ ?+\?>"
_OPENING = re.compile(
    rf"(?>{_DECLARATION})?+{_SPACE}"
    rf'<urlset((?>[ \t\r\n]++[\w.:-]++="[ !#-;=?-~]*+")++){_SPACE}>',
    re.ASCII,
)
#: Maximum length of the plain form's declaration and root tag, in bytes.
_MAX_OPENING_BYTES = 2_048
_HEAD = re.compile(
    rf"{_SPACE}{_usual_link(_VALUE)}{_MORE}(?><rs:md"
    + _attributes(
        capability=_VALUE,
        at=_DATETIME,
        completed=_DATETIME,
        **{"from": _DATETIME},
        until=_DATETIME,
    )
    + rf"{_FOREIGN_ATTRIBUTES} ?+/>{_SPACE})?+",
    re.ASCII,
)
_REFERENCE = re.compile("&(?:amp|lt|gt|quot|apos);")
# The ampersand is last, because replacing it earlier could create other references.
_CHARACTERS = {"&lt;": "<", "&gt;": ">", "&quot;": '"', "&apos;": "'", "&amp;": "&"}
_CHANGES: dict[str | None, ChangeType | None] = {None: None} | {str(one): one for one in ChangeType}
_instant = datetime.fromisoformat
#: The lowest limits with which a document counts as plain. They make most checks unnecessary: no
#: datetime exceeds `uri_length`, and two buffers of `FastReader` do not exceed `entry_length`.
_MIN_LIMITS = DocumentLimits(uri_length=32, entry_length=262_144, entry_elements=16, links=1)


class PlainForm:
    """Reads the parts of one document that are plain.

    Attributes:
        opening: The XML declaration and the start tag of the root.
    """

    def __init__(self, opening: str, prefixes: Mapping[str, str], limits: DocumentLimits) -> None:
        self.opening = opening
        self._namespaces = {prefix: f"{{{uri}}}" for prefix, uri in prefixes.items()}
        self._limits = limits
        # Limits on each side of `rs:md`, besides a usual link and the elements of our namespaces.
        self._most_links = (limits.links - 1) // 2
        self._most_elements = (limits.entry_elements - _MIN_LIMITS.entry_elements) // 2
        # Within this limit, tags of other namespaces are neither too many nor nested too deeply.
        self._most_tags = min(self._most_elements, 2 * limits.depth)
        # Characters of namespaces per element. Half of the minimum is for the entry as written.
        self._most_names = (limits.entry_length - _MIN_LIMITS.entry_length // 2) // (
            limits.links + 1
        )
        self._most_attributes = self._attributes_within_limit(self._namespaces)

    @classmethod
    def begin(cls, text: str, limits: DocumentLimits) -> PlainForm | None:
        """Return the form of a document with this beginning; None if its opening is not plain."""
        opening = _OPENING.match(text, 0, _MAX_OPENING_BYTES)
        return None if opening is None else _plain_form(opening[0], opening[3], limits)

    def head(self, text: str, at: int = 0) -> tuple[Document, int] | None:
        """Return the document without its entries, and the position where the entries begin.

        Return None if this part of the document is not plain.
        """
        found = _HEAD.match(text, at)
        assert found is not None  # all of it is optional
        # fmt: off
        (rel, href, link_type, more, capability, as_of, completed, from_, until,
         foreign) = found.groups()
        # fmt: on
        unchecked: list[str] = []
        try:
            links: tuple[Link, ...] = ()
            if rel is not None:
                links = (self._usual_link(_resolve(rel), _resolve(href), _resolve(link_type)),)
            if more:
                links += self._links(more, unchecked)
            head = Document(
                _resolve(capability),
                at=_instant(as_of) if as_of else None,
                completed=_instant(completed) if completed else None,
                from_=_instant(from_) if from_ else None,
                until=_instant(until) if until else None,
                links=links,
                attributes=self._foreign(foreign, unchecked) if foreign else (),
            )
        except ValueError:
            return None
        if unchecked and not self.are_harmless(unchecked):
            return None
        return head, found.end()

    def entries(self, text: str, at: int, *, is_simple: bool) -> tuple[list[Resource], int] | None:
        """Return the plain entries from `at` on, and the position where they end.

        Return None if only the parser can read them. `is_simple` means that the text is ASCII
        without an ampersand.
        """
        resources: list[Resource] = []
        unchecked: list[str] = []
        match = (_ASCII_ENTRY if is_simple else _ENTRY).match
        longest = self._limits.uri_length
        while found := match(text, at):
            # fmt: off
            (uri, lastmod, changefreq, before, change, changed, encoding, hashes, length,
             path, type_, foreign, rel, href, link_type, after) = found.groups()
            # fmt: on
            try:
                if not is_simple:
                    uri = _stripped(_resolve(uri), longest)
                    encoding, hashes, path, type_ = map(_resolve, (encoding, hashes, path, type_))
                    rel, href, link_type = _resolve(rel), _resolve(href), _resolve(link_type)
                links: tuple[Link, ...] = ()
                if rel is not None:
                    links = (self._usual_link(rel, href, link_type),)
                if before:
                    links = self._links(before, unchecked) + links
                if after:
                    links += self._links(after, unchecked)
                modified = _instant(lastmod) if lastmod else None
                resource = Resource(
                    uri,
                    modified,
                    changefreq,
                    _CHANGES[change],
                    # A change usually has the same datetime twice.
                    modified if changed == lastmod else _instant(changed) if changed else None,
                    encoding=encoding,
                    hash=hashes,
                    length=int(length) if length else None,
                    path=path,
                    type=type_,
                    links=links,
                    attributes=self._foreign(foreign, unchecked) if foreign else (),
                )
            except ValueError:
                break  # the parser reports the error
            if len(uri) > longest:
                break
            resources.append(resource)
            at = found.end()
        if unchecked and not self.are_harmless(unchecked):
            return None
        return resources, at

    def _links(self, more: str, unchecked: list[str]) -> tuple[Link, ...]:
        if "rs:" not in more:
            self._add(more, unchecked)
            return ()
        links = []
        at = 0
        while at < len(more):
            if found := _LINK.match(more, at):
                links.append(self._link(found, unchecked))
            elif found := _FOREIGN.match(more, at):
                self._add(found[0], unchecked)
            elif found := _OTHER_LINK.match(more, at):
                links.append(self._link(_in_order(found[1]), unchecked))
            else:
                raise ValueError("it has an element that is not plain")
            at = found.end()
        if len(links) > self._most_links or more.count("<") > self._most_elements:
            raise ValueError("it may have too many elements")
        return tuple(links)

    def _add(self, elements: str, unchecked: list[str]) -> None:
        if elements.count("<") > self._most_tags:
            raise ValueError("it may have too many elements, or be too deep")
        unchecked.append(elements)

    def _usual_link(self, rel: str, href: str, type_: str | None) -> Link:
        if len(href) > self._limits.uri_length:
            self._check_length(href)
        return Link(rel, href, type=type_)

    def _link(self, found: re.Match[str], unchecked: list[str]) -> Link:
        rel, href, encoding, hashes, length, modified, path, pri, type_, foreign = found.groups()
        if "&" in found[0]:
            rel, href, encoding = _resolve(rel), _resolve(href), _resolve(encoding)
            hashes, path, type_ = _resolve(hashes), _resolve(path), _resolve(type_)
        if len(href) > self._limits.uri_length:
            self._check_length(href)
        return Link(
            rel,
            href,
            encoding,
            hashes,
            int(length) if length else None,
            _instant(modified) if modified else None,
            path,
            int(pri) if pri else None,
            type_,
            self._foreign(foreign, unchecked) if foreign else (),
        )

    def _check_length(self, href: str) -> None:
        if not (href.startswith("data:") and len(href) <= self._limits.inline_length):
            raise ValueError("it has a long link")

    def _foreign(self, written: str, unchecked: list[str]) -> Attributes:
        """Return attributes of other namespaces, which the root or the element must declare."""
        found = _FOREIGN_ATTRIBUTE.findall(written)
        namespaces, most = self._namespaces, self._most_attributes
        if "xmlns:" in written:
            unchecked.append(f"<g{written}/>")
            own = {name: f"{{{_resolve(uri)}}}" for prefix, name, uri in found if prefix == "xmlns"}
            if "rs" in own:
                raise ValueError("it declares rs again")
            found = [one for one in found if one[0] != "xmlns"]
            namespaces = namespaces | own
            most = self._attributes_within_limit(namespaces)
        if "&" in written:
            found = [(prefix, name, _resolve(value)) for prefix, name, value in found]
        attributes = []
        try:
            for prefix, name, value in found:
                attributes.append((namespaces[prefix] + name, value))
        except KeyError:
            raise ValueError("it has a prefix that is not plain") from None
        count = len(attributes)
        if count > most or len(written) > _MAX_ATTRIBUTES_LENGTH:
            raise ValueError("it may have long names")
        if count > 1 and count != len(dict(attributes)):
            raise ValueError("it has an attribute twice")
        return tuple(attributes)

    def _attributes_within_limit(self, namespaces: Mapping[str, str]) -> int:
        """Return how many attributes an element may have if all have the longest namespace."""
        return self._most_names // max(map(len, namespaces.values()), default=1)

    def are_harmless(self, pieces: list[str]) -> bool:
        """Return whether each piece is well-formed and has no elements of our namespaces."""
        elements = "</g><g>".join(pieces)
        is_ours = "xmlns" in elements and (RS_NS in elements or SITEMAP_NS in elements)
        if is_ours or elements.count("&") != len(_REFERENCE.findall(elements)):
            return False
        return is_well_formed(f"{self.opening}<g>{elements}</g></urlset>".encode())


# Cached, because a Source begins all its documents in the same way.
@lru_cache(maxsize=64)
def _plain_form(opening: str, declared: str, limits: DocumentLimits) -> PlainForm | None:
    prefixes = _prefixes(declared)
    names = ("uri_length", "entry_length", "entry_elements", "links")
    if prefixes is None or any(
        getattr(limits, name) < getattr(_MIN_LIMITS, name) for name in names
    ):
        return None
    form = PlainForm(opening, prefixes, limits)
    return form if form.are_harmless([]) else None


def _prefixes(root: str) -> Mapping[str, str] | None:
    """Return the declared prefixes of other namespaces; None if ours have unusual prefixes."""
    declared = {
        name.removeprefix("xmlns").removeprefix(":"): uri
        for name, uri in _ATTRIBUTE.findall(root)
        if name.startswith("xmlns")
    }
    ours = declared.pop("", None), declared.pop("rs", None)
    if ours != (SITEMAP_NS, RS_NS) or "&" in root or {*ours} & {*declared.values()}:
        return None
    return declared


def _in_order(attributes: str) -> re.Match[str]:
    """Match a link after reordering its attributes. Raise ValueError if it is not plain."""
    pairs = _ATTRIBUTE.findall(attributes)
    values = dict(pairs)
    written = (f' {name}="{values[name]}"' for name in _LINK_NAMES if name in values)
    found = _LINK.match(f"<rs:ln{''.join(written)}/>")
    if found is None or len(pairs) != len(values):
        raise ValueError("it has a link that is not plain")
    return found


T = TypeVar("T", str, None)


def _resolve(value: T) -> T:
    """Resolve the predefined references in a value. Raise ValueError if it has any others."""
    if value is None or "&" not in value:
        return value
    if value.count("&") != len(_REFERENCE.findall(value)):
        raise ValueError("it has a reference that is not plain")
    for reference, character in _CHARACTERS.items():
        value = value.replace(reference, character)
    return value


def _stripped(uri: str, longest: int) -> str:
    stripped = uri.strip()
    if not stripped or len(uri) > longest:
        raise ValueError("it has a loc that is not plain")
    return stripped


# Tags and text exclude "<", so nothing can begin or end within them unnoticed.
_EMPTY = r"<rs:(?:md|ln) [^<>]*+(?<=/)>"
_TEXT = r"<(loc|lastmod|changefreq|priority)>[^<]*+</\1>"
_COMPLETE = re.compile(rf"(?>[ \t\r\n]++|{_EMPTY})++|<url>(?>[ \t\r\n]++|{_EMPTY}|{_TEXT})*+</url>")
#: The end tag of an entry. The document's end tag also begins with `</url`.
_END = b"</url>"
#: Other spellings of that tag, which only the parser can read.
_OTHER_END = re.compile(rb"</url[^>s]|:url[ \t\r\n>]")
_CLOSING = b"</urlset>"
#: Maximum number of bytes to buffer while waiting for the end of an entry.
_MAX_PENDING_BYTES = 65_536
#: Maximum number of other entries in excess of plain ones. With more, the shortcut costs more time
#: than it saves.
_MAX_DETOURS = 100


def read_plain(data: bytes, limits: DocumentLimits) -> Document | None:
    """Read a document that is short and plain. Return None for any other."""
    if len(data) > min(_MAX_PENDING_BYTES, limits.document_bytes):
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    form = PlainForm.begin(text, limits)
    if form is None or (head := form.head(text, len(form.opening))) is None:
        return None
    document, at = head
    read = form.entries(text, at, is_simple=text.isascii() and "&" not in text)
    if read is None:
        return None
    resources, at = read
    if len(resources) > limits.entries or text[at:].rstrip(" \t\r\n") != "</urlset>":
        return None
    return replace(document, resources=tuple(resources))


class FastReader:
    """Splits a document into plain entries and other XML, and passes both on in document order."""

    def __init__(
        self,
        limits: DocumentLimits,
        on_entries: Callable[[list[Resource]], None],
        on_xml: Callable[[bytes], None],
    ) -> None:
        self._limits = limits
        self._on_entries = on_entries
        self._on_xml = on_xml
        #: The bytes after the last entry that was read, without the end of another entry.
        self._pending: list[bytes] = []
        self._size = 0
        #: The last pending bytes, which may be the beginning of an end tag.
        self._tail = b""
        self._form: PlainForm | None = None
        #: The document without its entries, if that part is plain.
        self._head: Document | None = None
        #: The text that the parser must read before anything else.
        self._beginning = ""
        #: Whether the parser has read the beginning.
        self._is_parsed = False
        #: Whether the shortcut has ended, and the parser reads the rest.
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
        if (
            self._size > _MAX_PENDING_BYTES
            or self._detours > _MAX_DETOURS
            or _OTHER_END.search(unseen)
        ):
            self._end()

    def close(self) -> Document | None:
        """Return the document without its entries; None if the parser has it."""
        if self._form is not None and self._head is None and not self._is_parsed:
            self._read(max(0, b"".join(self._pending).rfind(_CLOSING)))
        rest = b"".join(self._pending).strip(b" \t\r\n")
        if self._head is not None and not self._is_parsed and rest == _CLOSING:
            return self._head
        self._end()
        return None

    def _begin(self) -> bool:
        """Return whether the beginning is plain. If it cannot become plain, end the shortcut."""
        beginning = b"".join(self._pending)
        self._form = PlainForm.begin(beginning[:_MAX_OPENING_BYTES].decode("latin-1"), self._limits)
        if self._form is not None:
            self._beginning = self._form.opening
            self._size -= len(self._beginning)
            self._pending = [beginning[len(self._beginning) :]]
            return True
        tags = beginning.count(b">")
        may_begin = tags == 0 or (tags == 1 and beginning.startswith(b"<?xml"))
        if not may_begin or self._size > _MAX_OPENING_BYTES:
            self._end()
        return False

    def _end(self) -> None:
        self._ended = True
        self._pass_on(b"".join(self._pending))
        self._pending = []

    def _read(self, size: int) -> None:
        """Read the first `size` pending bytes, which normally end with an entry."""
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
        """Read the head and the entries, and return the end position of the last entry."""
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
        # Insert the omitted line breaks, so that errors have the right line number.
        xml = b"\n" * self._lines + xml
        self._lines = 0
        if not self._is_parsed:
            xml = self._beginning.encode() + xml
        self._is_parsed = True
        self._on_xml(xml)
