"""The validator of one document: bytes in, findings out, memory flat.

It is sans I/O: call `feed` with each chunk as it arrives, and `close` once; both return what
they found, nearly in document order. Nothing ends the findings but what ends the reading: XML
that is not well-formed, a DOCTYPE, a root of another vocabulary, or what is beyond the limits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import islice

from rsnotify.format.reader import DEFAULT_LIMITS, DocumentLimits
from rsnotify.format.vocabulary import MAX_BYTES, MAX_ENTRIES, Capability
from rsnotify.format.writer import Profile
from rsnotify.validation.auditing import check_audit
from rsnotify.validation.elements import Element, ElementReader, EntryElement
from rsnotify.validation.entries import (
    HEAD_ATTRIBUTES,
    LINK_ATTRIBUTES,
    EntryCheck,
    check_attributes,
    check_link,
    check_order_of_times,
)
from rsnotify.validation.findings import Finding
from rsnotify.validation.kinds import CAPABILITIES, SPECIFIED_ELSEWHERE, Kind, kind_of
from rsnotify.validation.outline import Outline, most_references, references_of, times_of
from rsnotify.validation.rules import make_finding
from rsnotify.validation.sequence import SequenceCheck
from rsnotify.validation.values import shown


class Validator:
    """Validates one document.

    Args:
        spec: The version of the specification to hold it against.
        limits: What is not read for its size.
    """

    def __init__(
        self, spec: Profile = Profile.V1_1, limits: DocumentLimits = DEFAULT_LIMITS
    ) -> None:
        self._document = _Document(spec)
        self._reader = ElementReader(self._document, limits)
        self._told_large = False

    def feed(self, chunk: bytes) -> list[Finding]:
        """Read on, and return what this chunk brought to light."""
        self._reader.feed(chunk)
        if self._reader.bytes > MAX_BYTES and not self._told_large:
            self._told_large = True
            self._document.wait_no_more()
            self._document.broken("too-large", 1, "document")
        return self._document.take()

    def close(self) -> list[Finding]:
        """Say that the document ended, and return what is still to be told."""
        self._reader.close()
        self._document.wait_no_more()
        if self._reader.complete:
            self._document.end()
        return self._document.take()

    @property
    def outline(self) -> Outline:
        """What the document says of others, once it is closed."""
        return self._document.outline


def validate(
    data: bytes | Iterable[bytes],
    *,
    spec: Profile = Profile.V1_1,
    limits: DocumentLimits = DEFAULT_LIMITS,
) -> list[Finding]:
    """Validate a whole document.

    Args:
        data: The XML, whole or in chunks.
        spec: The version of the specification to hold it against.
        limits: What is not read for its size.

    Returns:
        Every rule that it breaks, by line.
    """
    validator = Validator(spec, limits)
    found = []
    for chunk in [data] if isinstance(data, bytes) else data:
        found += validator.feed(chunk)
    found += validator.close()
    return sorted(found, key=lambda finding: finding.line or 0)


class _Document:
    """Hears of the elements, and knows the kind of document as soon as it is told.

    `rs:md` may stand after entries. They then wait for it, at most as many as one document
    may have: a plain Sitemap, which has none, is settled at its end or at the limit.
    """

    def __init__(self, spec: Profile) -> None:
        self._spec = spec
        self._found: list[Finding] = []
        self._index = False
        self._root_line = 1
        self._head: Element | None = None
        self._is_resourcesync = False
        self._waiting: list[EntryElement] | None = []
        self._entry_check: EntryCheck | None = None
        self._sequence: SequenceCheck | None = None
        self._digest = hashlib.sha256()
        self._number: int | None = None
        self.outline = Outline()

    def take(self) -> list[Finding]:
        found, self._found = self._found, []
        return found

    def broken(
        self,
        rule: str,
        line: int | None,
        element: str,
        detail: str = "",
        entry: int | None = None,
    ) -> None:
        self._found.append(make_finding(rule, line, element, detail, entry or self._number))

    # What the reader tells

    def root(self, *, index: bool, line: int) -> None:
        self._index, self._root_line = index, line
        self.outline.line = line

    def head(self, md: Element) -> None:
        if self._head is not None:
            self.broken("md-repeated", md.line, "rs:md")
            return
        self._head = md
        check_attributes(md, "rs:md", HEAD_ATTRIBUTES, self.broken)
        check_order_of_times(md, self.broken)
        check_audit(md, self.broken)
        capability = md.attributes.get("capability")
        kind = self._kind(md, capability)
        self.outline.kind, self.outline.capability = kind, capability
        self.outline.line, self.outline.times = md.line, times_of(md.attributes)
        if kind is not None:
            self._check_head(kind, md)
        self._settle(kind, md)

    def link(self, link: Element) -> None:
        self._is_resourcesync = True
        check_link(link, self.broken)
        relation, href = link.attributes.get("rel"), link.attributes.get("href")
        for name in sorted((LINK_ATTRIBUTES & set(link.attributes)) - {"rel", "href"}):
            self.broken("document-link-attribute", link.line, "rs:ln", name)
        if relation and href:
            self.outline.links.setdefault(relation, (href, link.line))

    def entry(self, entry: EntryElement) -> None:
        self.outline.entries += 1
        self._is_resourcesync |= entry.md is not None or bool(entry.links)
        if self.outline.entries == MAX_ENTRIES + 1:
            self.broken("too-many-entries", entry.line, entry.name)
            self.wait_no_more()
        if self._waiting is not None:
            self._waiting.append(entry)
        else:
            self._check(entry)

    def wait_no_more(self) -> None:
        """Take it that no `rs:md` comes: the document ended, or is too long to be valid."""
        if self._waiting is not None:
            self._settle(None, None)

    def end(self) -> None:
        """Check what only the end shows."""
        kind = self.outline.kind
        if self._head is None:
            rule = "md-missing" if self._is_resourcesync else "plain-sitemap"
            self.broken(rule, self._root_line, self._root)
        elif kind is not None:
            for part in kind.required + kind.recommended:
                if part in ("up", "describedby") and part not in self.outline.links:
                    self.broken(f"{kind.id}-{part}-missing", self._root_line, self._root)
        self.outline.fingerprint = self._digest.hexdigest()

    @property
    def _root(self) -> str:
        return "sitemapindex" if self._index else "urlset"

    # The kind

    def _kind(self, md: Element, capability: str | None) -> Kind | None:
        kind = kind_of(capability, index=self._index)
        if kind is not None:
            return kind
        if capability is None:
            self.broken("capability-missing", md.line, "rs:md")
        elif capability not in CAPABILITIES:
            self.broken("capability-unknown", md.line, "rs:md", shown("it", capability))
        elif capability == Capability.CAPABILITY_LIST:
            self.broken("capabilitylist-index", self._root_line, self._root)
        elif capability not in SPECIFIED_ELSEWHERE:
            self.broken("index-undefined", self._root_line, self._root, capability)
        return None

    def _check_head(self, kind: Kind, md: Element) -> None:
        """Check the times of the document against Appendix A."""
        attributes = md.attributes
        for part in ("at", "from"):
            if part in kind.required and part not in attributes:
                self.broken(f"{kind.id}-{part}-missing", md.line, "rs:md")
        for part, pair in (("at", ("at", "completed")), ("from", ("from", "until"))):
            found = ", ".join(name for name in pair if name in attributes)
            if not found or part == kind.time:
                continue
            rule = f"document-{part}-not-allowed" if kind.time else "document-time-not-used"
            self.broken(rule, md.line, "rs:md", found)

    def _settle(self, kind: Kind | None, md: Element | None) -> None:
        """Begin to check entries, those that waited first."""
        self._entry_check = EntryCheck(kind, self._spec, self.broken)
        if kind is not None and md is not None:
            self._sequence = SequenceCheck(kind, self._spec, md, self.broken)
        waiting, self._waiting = self._waiting or [], None
        for entry in waiting:
            self._check(entry)

    def _check(self, entry: EntryElement) -> None:
        self._number = entry.number
        if self._entry_check is not None:
            self._entry_check.check(entry)
        if self._sequence is not None:
            self._sequence.add(entry)
        self._number = None
        if self.outline.kind is not None:
            self._remember(self.outline.kind, entry)

    def _remember(self, kind: Kind, entry: EntryElement) -> None:
        if kind.is_manifest:
            said = [entry.text("loc"), *(entry.attribute(name) for name in ("path", "change"))]
            self._digest.update(repr(said).encode())
        if kind.documents or kind.packages or kind.is_manifest:
            room = most_references(kind) - len(self.outline.references)
            found = references_of(entry, manifest=kind.is_manifest)
            self.outline.references += islice(found, max(0, room))
