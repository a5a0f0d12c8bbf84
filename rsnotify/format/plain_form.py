"""The plain form of documents: what rsnotify and most other Sources write, read without a parser.

A plain document has the root `urlset` with the usual prefixes, then links and `rs:md`, then
entries. A plain entry has `loc`, `lastmod`, `changefreq`, `priority` and `rs:md` in this order,
and `rs:ln` and elements of other namespaces before or after `rs:md`. All names and attributes have
one spelling; blanks may stand between elements.

Why the result is the parser's: a value that is read has neither markup, nor references except
`&amp;`, `&lt;`, `&gt;`, `&quot;` and `&apos;`, nor blanks that the parser would change. Whatever is
not read (elements and attributes of other namespaces, another root) is checked by libxml2, many
entries at a time: each piece must be well-formed by itself, between the start and end of the root.
A prefix for our namespaces other than `rs` is never plain. Whatever is malformed, beyond a limit,
or in doubt is not plain either, so that the parser reads it and reports the error.

Every repetition is possessive, so that no expression backtracks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import TypeVar

from rsnotify.format.limits import DocumentLimits
from rsnotify.format.model import Attributes, Document, Link, Resource
from rsnotify.format.vocabulary import RS_NS, SITEMAP_NS, ChangeType
from rsnotify.format.xml_parser import is_well_formed

_SPACE = r"[ \t\r\n]*+"
_NAME = r"[A-Za-z_][\w.-]*+"
# Without "<" or ">" within a value or a tag, nothing can begin or end there unnoticed.
_VALUE = r'[^\x00-\x1f"<>\ufffe\uffff]*+'
_FOREIGN_ATTRIBUTES = rf'((?: {_NAME}:{_NAME}="{_VALUE}")*+)'
#: Links, elements of other namespaces and their texts.
_MORE = rf"((?:</?(?!rs:md){_NAME}:[^<>]*+>[^<]*+)*+)"
# The forms of a W3C Datetime that `fromisoformat` reads without mistakes.
_DATETIME = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{6})?+Z"
_COUNT = "[0-9]{1,18}+"


def _attributes(**forms: str) -> str:
    """Return the expression for optional attributes in alphabetical order, as `writer` has them."""
    return "".join(rf'(?: {name}="({form})")?+' for name, form in forms.items())


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
        rf"<url>{_SPACE}<loc>({uri})</loc>{_SPACE}(?:<lastmod>({_DATETIME})</lastmod>{_SPACE})?+"
        rf"(?:<changefreq>([a-z]{{1,32}}+)</changefreq>{_SPACE})?+"
        rf"(?:<priority>[0-9.]++</priority>{_SPACE})?+{_MORE}"
        rf"(?:<rs:md{md}{_FOREIGN_ATTRIBUTES} ?+/>{_SPACE})?+"
        # A usual link; with its own match it takes 1 µs more.
        rf'(?:<rs:ln rel="({value})" href="({value})"(?: type="({value})")?+ ?+/>{_SPACE})?+'
        rf"{_MORE}</url>{_SPACE}",
        re.ASCII,
    )


_URI = r"[^\x00-\x20<>\ufffe\uffff]++"
# A class of ASCII characters takes 0.25 µs less per entry, an eighth.
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
#: A link with its attributes in another order; libxml2 refuses names of 50,000 characters.
_OTHER_LINK = re.compile(rf'<rs:ln((?: [a-z]{{1,64}}+="{_VALUE}")++) ?+/>{_SPACE}', re.ASCII)
_FOREIGN = re.compile(rf"(?:</?(?!rs:){_NAME}:[^<>]*+>[^<]*+)++", re.ASCII)
_ATTRIBUTE = re.compile(r'[ \t\r\n]([\w.:-]++)="([^"]*+)"', re.ASCII)
_LINK_NAMES = ["rel", "href", "encoding", "hash", "length", "modified", "path", "pri", "type"]
_DECLARATION = r"<\?xml version=([\"'])1\.0\1(?: encoding=([\"'])(?:UTF|utf)-8\2)?+ ?+\?>"
_ROOT = f'<urlset xmlns="{SITEMAP_NS}" xmlns:rs="{RS_NS}">'
_OPENING = re.compile(
    rf"(?:{_DECLARATION})?+{_SPACE}"
    rf'(<urlset((?:[ \t\r\n]++[\w.:-]++="[ !#-;=?-~]*+")++){_SPACE}>)',
    re.ASCII,
)
_HEAD = re.compile(
    rf"{_SPACE}{_MORE}(?:<rs:md"
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
# The ampersand last, as others may follow it.
_CHARACTERS = {"&lt;": "<", "&gt;": ">", "&quot;": '"', "&apos;": "'", "&amp;": "&"}
_CHANGES: dict[str | None, ChangeType | None] = {None: None} | {str(one): one for one in ChangeType}
_instant = datetime.fromisoformat
#: The prefixes of other namespaces where the root has none.
_NO_PREFIXES: Mapping[str, str] = {}
#: Limits below which nothing is plain, so that most need no check: a datetime is shorter, and so
#: are two buffers of `FastReader`.
_LEAST = DocumentLimits(uri_length=32, entry_length=262_144, entry_elements=16, links=1)


class PlainForm:
    """Reads the parts of one document that are plain.

    Attributes:
        opening: The declaration and the start of the root.
    """

    def __init__(self, opening: str, prefixes: Mapping[str, str], limits: DocumentLimits) -> None:
        self.opening = opening
        self._prefixes = prefixes
        self._limits = limits
        # Before and after `rs:md`, each beside a usual link and the elements of our namespaces.
        self._most_links = (limits.links - 1) // 2
        self._most_elements = (limits.entry_elements - _LEAST.entry_elements) // 2
        # Characters of the namespaces in each element; half of the least is the entry as written.
        self._most_names = (limits.entry_length - _LEAST.entry_length // 2) // (limits.links + 1)

    @classmethod
    def begin(cls, text: str, limits: DocumentLimits) -> PlainForm | None:
        """Return the form of a document that begins so; None if its opening is not plain."""
        opening = _OPENING.match(text)
        if opening is None or not _are_usual(limits):
            return None
        if opening[3] == _ROOT:
            return cls(opening[0], _NO_PREFIXES, limits)
        prefixes = _prefixes(opening[4])
        form = None if prefixes is None else cls(opening[0], prefixes, limits)
        return form if form is not None and form._are_well_formed([]) else None

    def head(self, text: str) -> tuple[Document, int] | None:
        """Return the document without its entries, and where they begin, if that is plain."""
        found = _HEAD.match(text)
        assert found is not None  # all of it is optional
        more, capability, at, completed, from_, until, foreign = found.groups()
        unchecked: list[str] = []
        try:
            head = Document(
                _resolve(capability),
                at=_instant(at) if at else None,
                completed=_instant(completed) if completed else None,
                from_=_instant(from_) if from_ else None,
                until=_instant(until) if until else None,
                links=self._links(unchecked, more) if more else (),
                attributes=self._foreign(foreign, unchecked) if foreign else (),
            )
        except ValueError:
            return None
        if unchecked and not self._are_well_formed(unchecked):
            return None
        return head, found.end()

    def entries(self, text: str, at: int, *, is_simple: bool) -> tuple[list[Resource], int] | None:
        """Return the plain entries from `at` on, and where they end.

        Return None if only the parser can tell what they are. `is_simple` is whether the text is
        ASCII without an ampersand.
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
                    if len(href) > longest:
                        self._check_length(href)
                    links = (Link(rel, href, type=link_type),)
                if before or after:
                    links = self._links(unchecked, before) + links + self._links(unchecked, after)
                resource = Resource(
                    uri,
                    _instant(lastmod) if lastmod else None,
                    changefreq,
                    _CHANGES[change],
                    _instant(changed) if changed else None,
                    encoding=encoding,
                    hash=hashes,
                    length=int(length) if length else None,
                    path=path,
                    type=type_,
                    links=links,
                    attributes=self._foreign(foreign, unchecked) if foreign else (),
                )
            except ValueError:
                break  # the parser says what is wrong with this entry
            if len(uri) > longest:
                break
            resources.append(resource)
            at = found.end()
        if unchecked and not self._are_well_formed(unchecked):
            return None
        return resources, at

    def _links(self, unchecked: list[str], more: str) -> tuple[Link, ...]:
        links = []
        at = 0
        while at < len(more):
            if found := _LINK.match(more, at):
                links.append(self._link(found, unchecked))
            elif found := _FOREIGN.match(more, at):
                unchecked.append(f"<g>{self._harmless(found[0])}</g>")
            elif found := _OTHER_LINK.match(more, at):
                links.append(self._link(_in_order(found[1]), unchecked))
            else:
                raise ValueError("it has an element that is not plain")
            at = found.end()
        if len(links) > self._most_links or more.count("<") > self._most_elements:
            raise ValueError("it may have too many elements")
        return tuple(links)

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
        """Return the attributes of other namespaces, with prefixes of the root or their own."""
        unchecked.append(f"<g{self._harmless(written)}/>")
        prefixes = dict(self._prefixes)
        attributes = []
        for name, value in _ATTRIBUTE.findall(written):
            prefix, _, local = name.partition(":")
            if prefix == "xmlns":
                prefixes[local] = _resolve(value)
            else:
                attributes.append((prefix, local, _resolve(value)))
        if prefixes.pop("rs", RS_NS) != RS_NS:
            raise ValueError("it declares rs again")
        longest = max((len(prefixes.get(prefix, "")) for prefix, _, _ in attributes), default=0)
        if len(attributes) * longest > self._most_names:
            raise ValueError("it may have long names")
        try:
            return tuple([(f"{{{prefixes[one]}}}{name}", value) for one, name, value in attributes])
        except KeyError:
            raise ValueError("it has a prefix that is not plain") from None

    def _harmless(self, written: str) -> str:
        """Return markup of other namespaces; ValueError if it may have elements of ours."""
        _resolve(written)
        is_ours = "xmlns" in written and (RS_NS in written or SITEMAP_NS in written)
        if is_ours or written.count("<") > 2 * self._limits.depth:
            raise ValueError("it may have elements of ours, or be too deep")
        return written

    def _are_well_formed(self, elements: list[str]) -> bool:
        return is_well_formed(f"{self.opening}{''.join(elements)}</urlset>".encode())


def _are_usual(limits: DocumentLimits) -> bool:
    return (
        limits.uri_length >= _LEAST.uri_length
        and limits.entry_length >= _LEAST.entry_length
        and limits.entry_elements >= _LEAST.entry_elements
        and limits.links >= _LEAST.links
    )


def _prefixes(root: str) -> Mapping[str, str] | None:
    """Return the prefixes of other namespaces; None if those of ours are not the usual ones."""
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
    """Return a link whose attributes stand in another order; ValueError if it is not plain."""
    pairs = _ATTRIBUTE.findall(attributes)
    values = dict(pairs)
    written = (f' {name}="{values[name]}"' for name in _LINK_NAMES if name in values)
    found = _LINK.match(f"<rs:ln{''.join(written)}/>")
    if found is None or len(pairs) != len(values):
        raise ValueError("it has a link that is not plain")
    return found


T = TypeVar("T", str, None)


def _resolve(value: T) -> T:
    """Return a value without references; ValueError if it has others than the predefined ones."""
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
