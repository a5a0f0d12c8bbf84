"""Validates a single document: bytes in, findings out, in bounded memory.

Call `feed` with each chunk as it arrives, and `close` once at the end. Both return their findings,
roughly in document order. Validation stops early only if the document cannot be read any further:
because of malformed XML, a DOCTYPE, a foreign root element, or a limit. This module also checks the
order, times and repetitions of entries.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import chain, islice

from rsnotify.format.model import MAX_BYTES, MAX_ENTRIES, Capability
from rsnotify.format.reader import DEFAULT_LIMITS, DocumentLimits
from rsnotify.format.uris import normalize
from rsnotify.format.writer import Profile
from rsnotify_validation.document_outline import MAX_REFERENCES, Outline, references_of, times_of
from rsnotify_validation.elements import Element, ElementReader, EntryElement
from rsnotify_validation.entries import (
    HEAD_ATTRIBUTES,
    LINK_ATTRIBUTES,
    EntryCheck,
    Report,
    StrictDatetime,
    check_attributes,
    check_audit,
    check_link,
    check_order_of_times,
    read_strict_datetime,
    shown,
)
from rsnotify_validation.findings import Finding
from rsnotify_validation.kinds import CAPABILITIES, SPECIFIED_ELSEWHERE, Kind, kind_of
from rsnotify_validation.rules import make_finding

#: The kinds of documents whose entries are resources.
_RESOURCES = frozenset({Capability.RESOURCE_LIST, Capability.RESOURCE_DUMP_MANIFEST})


class SequenceCheck:
    """Checks the entries of one document against each other, in document order."""

    def __init__(self, kind: Kind, spec: Profile, head: Element, report: Report) -> None:
        self._kind = kind
        self._is_1_0 = spec is Profile.V1_0
        self._report = report
        self._at = read_strict_datetime(head.attributes.get("at"))
        self._from = read_strict_datetime(head.attributes.get("from"))
        self._until = read_strict_datetime(head.attributes.get("until"))
        self._latest: StrictDatetime | None = None
        self._previous_until: StrictDatetime | None = None
        self._uris_of_latest: set[str] = set()
        self._capabilities: set[str] = set()
        #: The first spelling of each resource's URI, keyed by the normalized URI.
        self._spellings: dict[str, str] = {}
        self._format: str | None = None

    def add(self, entry: EntryElement) -> None:
        if self._kind.changes:
            self._check_change(entry)
        elif self._kind.id in _RESOURCES:
            self._check_spelling(entry)
        elif self._kind.entry_time == "from":
            self._check_interval(entry)
        elif self._kind.entry_time == "at":
            self._check_snapshot(entry)
        if self._kind.packages:
            self._check_package(entry)
        if self._kind.id == Capability.CAPABILITY_LIST:
            self._check_capability(entry)

    def _check_change(self, entry: EntryElement) -> None:
        """Check the datetime of a change (core §12.1; 1.1 §7).

        In version 1.0, the datetime of a change is `lastmod`. In 1.1, it is `datetime`: `lastmod`
        may have any value, and without `datetime`, only the position in the list matters.
        """
        name = "lastmod" if self._is_1_0 else "datetime"
        text = entry.text(name) if self._is_1_0 else entry.attribute(name)
        moment = read_strict_datetime(text)
        if moment is None:
            return
        line = entry.texts[name].line if self._is_1_0 else entry.md_line
        element = name if self._is_1_0 else "rs:md"
        if self._is_outside(moment, moment):
            self._report(f"{name}-outside", line, element, text)
        self._check_order(moment, line, element, text or "")
        if self._is_1_0:
            self._check_unique(entry, moment, line)

    def _check_order(self, moment: StrictDatetime, line: int, element: str, text: str) -> None:
        if self._latest is not None and moment.is_before(self._latest):
            if self._kind.ordered is not None:
                self._report(f"{self._kind.id}-order", line, element, text)
        elif self._latest is None or moment != self._latest:
            self._latest = moment
            self._uris_of_latest.clear()

    def _check_unique(self, entry: EntryElement, moment: StrictDatetime, line: int) -> None:
        uri = entry.text("loc")
        if moment != self._latest or uri is None or len(self._uris_of_latest) > MAX_ENTRIES:
            return
        if uri in self._uris_of_latest:
            self._report("change-not-unique", line, "lastmod", uri)
        self._uris_of_latest.add(uri)

    def _check_spelling(self, entry: EntryElement) -> None:
        uri = entry.text("loc")
        if uri is None or len(self._spellings) > MAX_ENTRIES:
            return
        first = self._spellings.setdefault(normalize(uri), uri)
        if first != uri:
            self._report("resource-repeated", entry.texts["loc"].line, "loc", f"{first}, {uri}")

    def _is_outside(self, first: StrictDatetime | None, last: StrictDatetime | None) -> bool:
        early = first is not None and self._from is not None and first.is_before(self._from)
        late = last is not None and self._until is not None and self._until.is_before(last)
        return early or late

    def _check_interval(self, entry: EntryElement) -> None:
        from_ = read_strict_datetime(entry.attribute("from"))
        until = read_strict_datetime(entry.attribute("until"))
        line = entry.md_line
        if self._is_outside(from_, until):
            self._report("entry-interval-outside", line, "rs:md")
        if from_ is None:
            return
        before = self._latest
        self._check_order(from_, line, "rs:md", entry.attribute("from") or "")
        in_order = before is not None and not from_.is_before(before)
        if in_order and self._previous_until is not None and from_.is_before(self._previous_until):
            self._report("entry-interval-overlap", line, "rs:md")
        self._previous_until = until

    def _check_snapshot(self, entry: EntryElement) -> None:
        at = read_strict_datetime(entry.attribute("at"))
        if at is not None and self._at is not None and at.is_before(self._at):
            self._report("entry-at-early", entry.md_line, "rs:md")

    def _check_package(self, entry: EntryElement) -> None:
        format_ = entry.attribute("type")
        if format_ is None:
            return
        if self._format is not None and format_ != self._format:
            self._report("packages-mixed", entry.md_line, "rs:md", f"{self._format}, {format_}")
        self._format = self._format or format_

    def _check_capability(self, entry: EntryElement) -> None:
        capability = entry.attribute("capability")
        if capability is None:
            return
        if capability in self._capabilities:
            self._report("capability-repeated", entry.md_line, "rs:md", capability)
        self._capabilities.add(capability)


class Validator:
    """Validates one document.

    Args:
        spec: The version of the specification.
        limits: The limits at which reading the document stops.
    """

    def __init__(
        self, spec: Profile = Profile.V1_1, limits: DocumentLimits = DEFAULT_LIMITS
    ) -> None:
        self._document = _Document(spec)
        self._reader = ElementReader(self._document, limits)

    def feed(self, chunk: bytes) -> list[Finding]:
        """Read the next chunk, and return the new findings."""
        before = self._reader.bytes
        self._reader.feed(chunk)
        if before <= MAX_BYTES < self._reader.bytes:
            self._document.stop_waiting()
            self._document.report("too-large", 1, "document")
        return self._document.pop_findings()

    def close(self) -> list[Finding]:
        """Finish the document, and return the remaining findings."""
        self._reader.close()
        self._document.stop_waiting()
        if self._reader.complete:
            self._document.end()
        return self._document.pop_findings()

    @property
    def outline(self) -> Outline:
        """The outline of the document, complete after `close`."""
        return self._document.outline


def validate(
    data: bytes | Iterable[bytes],
    *,
    spec: Profile = Profile.V1_1,
    limits: DocumentLimits = DEFAULT_LIMITS,
) -> list[Finding]:
    """Validate a whole document.

    Args:
        data: The XML, as a whole or in chunks.
        spec: The version of the specification.
        limits: The limits at which reading the document stops.

    Returns:
        All findings, sorted by line.
    """
    validator = Validator(spec, limits)
    chunks = [data] if isinstance(data, bytes) else data
    found = [*chain.from_iterable(map(validator.feed, chunks)), *validator.close()]
    return sorted(found, key=lambda finding: finding.line or 0)


class _Document:
    """Checks the elements of a document as soon as its `rs:md` has stated the kind.

    Entries before `rs:md` wait for it, up to the maximum number of entries in a document. A plain
    Sitemap has no `rs:md`, so its entries are checked at its end or at that limit.
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

    def pop_findings(self) -> list[Finding]:
        found, self._found = self._found, []
        return found

    def report(
        self,
        rule: str,
        line: int | None,
        element: str,
        detail: str = "",
        entry: int | None = None,
    ) -> None:
        self._found.append(make_finding(rule, line, element, detail, entry or self._number))

    # Methods that the reader calls

    def root(self, *, index: bool, line: int) -> None:
        self._index, self._root_line = index, line
        self.outline.line = line

    def head(self, md: Element) -> None:
        if self._head is not None:
            self.report("md-repeated", md.line, "rs:md")
            return
        self._head = md
        check_attributes(md, "rs:md", HEAD_ATTRIBUTES, self.report)
        check_order_of_times(md, self.report)
        check_audit(md, self.report)
        capability = md.attributes.get("capability")
        kind = self._kind(md, capability)
        self.outline.kind, self.outline.capability = kind, capability
        self.outline.line, self.outline.times = md.line, times_of(md.attributes)
        if kind is not None:
            self._check_head(kind, md)
        self._start_checking(kind, md)

    def link(self, link: Element) -> None:
        self._is_resourcesync = True
        check_link(link, self.report)
        relation, href = link.attributes.get("rel"), link.attributes.get("href")
        for name in sorted((LINK_ATTRIBUTES & set(link.attributes)) - {"rel", "href"}):
            self.report("document-link-attribute", link.line, "rs:ln", name)
        if relation and href:
            self.outline.links.setdefault(relation, (href, link.line))

    def entry(self, entry: EntryElement) -> None:
        self.outline.entries += 1
        self._is_resourcesync |= entry.md is not None or bool(entry.links)
        if self.outline.entries == MAX_ENTRIES + 1:
            self.report("too-many-entries", entry.line, entry.name)
            self.stop_waiting()
        if self._waiting is not None:
            self._waiting.append(entry)
        else:
            self._check(entry)

    def stop_waiting(self) -> None:
        """Check the waiting entries without an `rs:md`, at the end or beyond a limit."""
        if self._waiting is not None:
            self._start_checking(None, None)

    def end(self) -> None:
        """Report the missing parts that may be anywhere in the document."""
        kind = self.outline.kind
        if self._head is None:
            rule = "md-missing" if self._is_resourcesync else "plain-sitemap"
            self.report(rule, self._root_line, self._root)
        elif kind is not None:
            for part in kind.required + kind.recommended:
                if part in ("up", "describedby") and part not in self.outline.links:
                    self.report(f"{kind.id}-{part}-missing", self._root_line, self._root)
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
            self.report("capability-missing", md.line, "rs:md")
        elif capability not in CAPABILITIES:
            self.report("capability-unknown", md.line, "rs:md", shown("it", capability))
        elif capability == Capability.CAPABILITY_LIST:
            self.report("capabilitylist-index", self._root_line, self._root)
        elif capability not in SPECIFIED_ELSEWHERE:
            self.report("index-undefined", self._root_line, self._root, capability)
        return None

    def _check_head(self, kind: Kind, md: Element) -> None:
        """Check the times of the document against Appendix A."""
        attributes = md.attributes
        for part in ("at", "from"):
            if part in kind.required and part not in attributes:
                self.report(f"{kind.id}-{part}-missing", md.line, "rs:md")
        for part, pair in (("at", ("at", "completed")), ("from", ("from", "until"))):
            found = ", ".join(name for name in pair if name in attributes)
            if not found or part == kind.time:
                continue
            rule = f"document-{part}-not-allowed" if kind.time else "document-time-not-used"
            self.report(rule, md.line, "rs:md", found)

    def _start_checking(self, kind: Kind | None, md: Element | None) -> None:
        """Start checking entries, beginning with the waiting ones."""
        self._entry_check = EntryCheck(kind, self._spec, self.report)
        if kind is not None and md is not None:
            self._sequence = SequenceCheck(kind, self._spec, md, self.report)
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
            self._add_to_outline(self.outline.kind, entry)

    def _add_to_outline(self, kind: Kind, entry: EntryElement) -> None:
        if kind.is_manifest:
            values = [entry.text("loc"), *(entry.attribute(name) for name in ("path", "change"))]
            self._digest.update(repr(values).encode())
        if kind.documents or kind.packages or kind.is_manifest:
            most = MAX_ENTRIES if kind.is_manifest else MAX_REFERENCES
            free = most - len(self.outline.references)
            found = references_of(entry, manifest=kind.is_manifest)
            self.outline.references += islice(found, max(0, free))
